//! Operands as they are written, and the numbers and special registers among them.

use crate::lex::Token;
use crate::ops::Class;
use crate::program::Special;

/// An operand as written.
pub(crate) enum Operand<'a> {
    Word(&'a str),
    /// `{a, b}`
    List(Vec<&'a str>),
    /// `[a+b]`
    Address(&'a str, i64),
    /// `a|b`
    Pair(&'a str, &'a str),
}

pub(crate) fn operands_of<'a>(tokens: &[Token<'a>]) -> Result<Vec<Operand<'a>>, String> {
    let mut operands = Vec::with_capacity(4);
    let mut rest = tokens;
    while !rest.is_empty() {
        let (operand, used) = match rest {
            [Token::Word(first), Token::Mark('|'), Token::Word(second), ..] => {
                (Operand::Pair(first, second), 3)
            }
            [Token::Word(word), ..] => (Operand::Word(word), 1),
            [Token::Mark('['), Token::Word(base), Token::Mark(']'), ..] => (Operand::Address(base, 0), 3),
            [
                Token::Mark('['),
                Token::Word(base),
                Token::Mark('+'),
                Token::Word(offset),
                Token::Mark(']'),
                ..,
            ] => {
                let offset = offset.parse().map_err(|_| "not an offset")?;
                (Operand::Address(base, offset), 5)
            }
            [Token::Mark('{'), list @ ..] => {
                let end =
                    list.iter().position(|token| *token == Token::Mark('}')).ok_or("`{` without `}`")?;
                let mut words = Vec::with_capacity(4);
                for (index, token) in list[..end].iter().enumerate() {
                    match token {
                        Token::Word(word) if index % 2 == 0 => words.push(*word),
                        Token::Mark(',') if index % 2 == 1 => {}
                        _ => return Err("a list that is not known".to_owned()),
                    }
                }
                (Operand::List(words), end + 2)
            }
            _ => return Err("an operand that is not known".to_owned()),
        };
        operands.push(operand);
        rest = match &rest[used..] {
            [Token::Mark(','), more @ ..] if !more.is_empty() => more,
            [] => &[],
            _ => return Err("`,` is missing".to_owned()),
        };
    }
    Ok(operands)
}

pub(crate) fn special_named(word: &str) -> Option<Special> {
    let (name, dimension) = word.strip_prefix('%')?.split_once('.')?;
    let dimension = ["x", "y", "z"].iter().position(|known| *known == dimension)?;
    Some(match name {
        "tid" => Special::Thread(dimension),
        "ntid" => Special::Threads(dimension),
        "ctaid" => Special::Block(dimension),
        "nctaid" => Special::Blocks(dimension),
        _ => return None,
    })
}

/// Bits of a number: decimal with a sign, or the bits of a float in hexadecimal.
pub(crate) fn constant(word: &str, class: Class) -> Option<u64> {
    if let Some(bits) = word.strip_prefix("0f") {
        return u32::from_str_radix(bits, 16).ok().map(u64::from).filter(|_| class == Class::Word);
    }
    if let Some(bits) = word.strip_prefix("0d") {
        return u64::from_str_radix(bits, 16).ok().filter(|_| class == Class::Double);
    }
    let number: i128 = word.parse().ok()?;
    let bits = match class {
        Class::Predicate => 1,
        Class::Half => 16,
        Class::Word => 32,
        Class::Double => 64,
    };
    let fits = number >= -(1 << (bits - 1)) && number < 1 << bits;
    fits.then_some((number & ((1 << bits) - 1)) as u64)
}

pub(crate) fn shown(token: &Token<'_>) -> String {
    match token {
        Token::Word(word) => (*word).to_owned(),
        Token::Mark(mark) => mark.to_string(),
        Token::Text(text) => format!("\"{text}\""),
    }
}
