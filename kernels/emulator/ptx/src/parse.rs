//! The outer grammar of a PTX file: directives, entries with their parameters, and bodies. Directives that change nothing
//! here (`.pragma`, `.minnctapersm`, debugging sections) are named and skipped; any other is an error.

use std::collections::HashMap;

use crate::Error;
use crate::decode::Body;
use crate::lex::{Placed, Token, tokens};
use crate::ops::Forms;
use crate::program::{Kernel, Module, SHARED, SHARED_BASE};

impl Module {
    /// Reads PTX text.
    ///
    /// # Errors
    /// Names the line that isn't understood.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let tokens = tokens(text)?;
        let mut reader = Reader { tokens: &tokens, at: 0 };
        let mut module = Self { target: 0, kernels: HashMap::new() };
        let forms = Forms::new();
        let mut files = HashMap::new();
        while let Some(word) = reader.optional_word()? {
            match word {
                ".version" => {
                    reader.word()?;
                }
                ".address_size" => {
                    let size = reader.word()?;
                    if size != "64" {
                        return Err(reader.wrong(format!("addresses of {size} bits")));
                    }
                }
                ".target" => {
                    let target = reader.word()?;
                    let number =
                        target.strip_prefix("sm_").map(|name| name.strip_suffix('a').unwrap_or(name));
                    let number = number.and_then(|number| number.parse().ok());
                    module.target = number.ok_or_else(|| reader.wrong(format!("target {target}")))?;
                    // Set by `-lineinfo` and `-G`.
                    while reader.skip(',') {
                        reader.word()?;
                    }
                }
                ".extern" => reader.shared()?,
                ".visible" => {
                    let kernel = reader.entry(&forms)?;
                    module.kernels.insert(kernel.name.clone(), kernel);
                }
                ".file" => {
                    let index = reader.number()?;
                    let name = reader.text()?;
                    files.insert(index, name.to_owned());
                }
                ".section" => reader.skip_braces()?,
                _ => return Err(reader.wrong(format!("unknown directive `{word}`"))),
            }
        }
        if module.target < 80 {
            return Err(Error::new("no `.target` of sm_80 or newer"));
        }
        for kernel in module.kernels.values_mut() {
            kernel.files.clone_from(&files);
        }
        Ok(module)
    }
}

struct Reader<'a, 't> {
    tokens: &'t [Placed<'a>],
    at: usize,
}

impl<'a> Reader<'a, '_> {
    fn line(&self) -> u32 {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.at.saturating_sub(1).min(last)).map_or(0, |(_, line)| *line)
    }

    fn wrong(&self, what: impl AsRef<str>) -> Error {
        Error::new(format!("line {}: {}", self.line(), what.as_ref()))
    }

    fn next(&mut self) -> Result<Token<'a>, Error> {
        let token = self.tokens.get(self.at).map(|(token, _)| *token);
        self.at += 1;
        token.ok_or_else(|| self.wrong("the file ends too early"))
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn optional_word(&mut self) -> Result<Option<&'a str>, Error> {
        match self.peek() {
            None => Ok(None),
            Some(_) => self.word().map(Some),
        }
    }

    fn word(&mut self) -> Result<&'a str, Error> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(self.wrong(format!("a word instead of {other:?}"))),
        }
    }

    fn text(&mut self) -> Result<&'a str, Error> {
        match self.next()? {
            Token::Text(text) => Ok(text),
            other => Err(self.wrong(format!("a text instead of {other:?}"))),
        }
    }

    fn number(&mut self) -> Result<u32, Error> {
        let word = self.word()?;
        word.parse().map_err(|_| self.wrong(format!("a number instead of `{word}`")))
    }

    fn skip(&mut self, mark: char) -> bool {
        let there = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, mark: char) -> Result<(), Error> {
        match self.next()? {
            Token::Mark(found) if found == mark => Ok(()),
            other => Err(self.wrong(format!("`{mark}` instead of {other:?}"))),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<(), Error> {
        match self.word()? {
            found if found == word => Ok(()),
            found => Err(self.wrong(format!("`{word}` instead of `{found}`"))),
        }
    }

    fn skip_braces(&mut self) -> Result<(), Error> {
        while self.next()? != Token::Mark('{') {}
        while self.next()? != Token::Mark('}') {}
        Ok(())
    }

    /// `.extern .shared .align 16 .b8 shared[];`: the dynamic shared memory, of which a kernel knows one name.
    fn shared(&mut self) -> Result<(), Error> {
        self.expect_word(".shared")?;
        self.expect_word(".align")?;
        let align = self.number()?;
        self.expect_word(".b8")?;
        let name = self.word()?;
        self.expect('[')?;
        self.expect(']')?;
        if !SHARED.contains(&name) || u64::from(align) > SHARED_BASE {
            return Err(self.wrong("shared memory of another name or alignment"));
        }
        self.expect(';')
    }

    fn entry(&mut self, forms: &Forms) -> Result<Kernel, Error> {
        self.expect_word(".entry")?;
        let mut kernel = Kernel { name: self.word()?.to_owned(), ..Kernel::default() };
        self.expect('(')?;
        self.expect_word(".param")?;
        self.expect_word(".align")?;
        let align = self.number()?;
        self.expect_word(".b8")?;
        let param = self.word()?;
        if align > 256 || param != format!("{}_param_0", kernel.name) {
            return Err(self.wrong("a kernel takes one struct"));
        }
        self.expect('[')?;
        kernel.param_bytes = self.number()? as usize;
        self.expect(']')?;
        self.expect(')')?;
        loop {
            match self.next()? {
                Token::Word(".maxntid") => kernel.most_threads = Some(self.threads()?),
                Token::Word(".reqntid") => kernel.threads = Some(self.threads()?),
                Token::Word(".minnctapersm") => _ = self.number()?,
                Token::Mark('{') => break,
                other => return Err(self.wrong(format!("unknown directive {other:?} of an entry"))),
            }
        }
        self.body(Body::new(kernel, forms))
    }

    /// Product of three dimensions, of which kernels use the first.
    fn threads(&mut self) -> Result<u32, Error> {
        let first = self.number()?;
        while self.skip(',') {
            if self.number()? != 1 {
                return Err(self.wrong("blocks of several dimensions"));
            }
        }
        Ok(first)
    }

    fn body(&mut self, mut body: Body<'a, '_>) -> Result<Kernel, Error> {
        let mut statement = Vec::with_capacity(32);
        loop {
            let token = self.next()?;
            match token {
                Token::Mark('{') if statement.is_empty() => body.open(),
                Token::Mark('}') if statement.is_empty() && !body.close() => break,
                Token::Mark('}') if statement.is_empty() => {}
                Token::Mark(';') => {
                    body.statement(&statement, self.line())?;
                    statement.clear();
                }
                Token::Mark(':') => match statement.pop() {
                    Some(Token::Word(label)) if statement.is_empty() => body.label(label, self.line())?,
                    _ => return Err(self.wrong("`:` without a label")),
                },
                // Without a semicolon: file, line, column, and for what was inlined its name and caller.
                Token::Word(".loc") if statement.is_empty() => {
                    let own = self.line();
                    let [file, line, _] = [self.number()?, self.number()?, self.number()?];
                    let mut caller = None;
                    while self.tokens.get(self.at).is_some_and(|(_, line)| *line == own) {
                        if self.next()? == Token::Word("inlined_at") {
                            caller = Some((self.number()?, self.number()?));
                        }
                    }
                    body.source((file, line), caller);
                }
                token => statement.push(token),
            }
        }
        body.finish()
    }
}
