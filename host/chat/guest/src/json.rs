//! The filter `tojson`: JSON as Python writes it, with the options that Hugging Face's renderer has.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::wire::object;

/// The options by position.
const OPTIONS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

/// A number that Python writes otherwise has one of these.
const TINY: [&str; 2] = ["e-", "0.0000"];

/// minijinja's own filter also escapes what HTML minds, which models have never seen; in JSON these escapes can
/// stand nowhere but in strings.
pub(crate) fn to_json(value: &Value, placed: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    if placed.len() > OPTIONS.len() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes four options"));
    }
    let option = |at: usize| match placed.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => named.get::<Option<Value>>(OPTIONS[at]),
    };
    let [ascii, indent, separators, sorted] =
        [option(0)?, option(1)?, option(2)?, option(3)?].map(|given| given.filter(|value| !value.is_none()));
    named.assert_all_used()?;
    let is_set = |option: Option<Value>| option.is_some_and(|value| value.is_true());
    let (ascii, sorted) = (is_set(ascii), is_set(sorted));
    let separators = separators.as_ref().map(pair).transpose()?;
    if value.kind() == ValueKind::Undefined {
        return Err(Error::new(ErrorKind::InvalidOperation, "an undefined value has no JSON"));
    }
    let value = if sorted { with_sorted_keys(value)? } else { value.clone() };
    // To Python true is one space.
    let indent =
        indent.map(|indent| bool::try_from(indent.clone()).map_or(indent, |one| u32::from(one).into()));
    let escaped = minijinja::filters::tojson(&value, indent, Kwargs::from_iter(Vec::<(&str, Value)>::new()))?;
    let mut json = unescape_html(&escaped.to_string());
    if ascii || separators.is_some() || TINY.iter().any(|part| json.contains(part)) {
        json = respell(&json, separators.as_ref(), ascii);
    }
    Ok(Value::from_safe_string(json))
}

/// What stands between items, and what after a key.
fn pair(given: &Value) -> Result<[String; 2], Error> {
    let texts = given.try_iter().ok().and_then(|parts| {
        let texts = parts.map(|part| part.as_str().map(str::to_owned));
        texts.collect::<Option<Vec<String>>>()
    });
    texts.and_then(|texts| <[String; 2]>::try_from(texts).ok()).ok_or_else(|| {
        let why = "the separators of tojson must be two texts, such as (',', ':')";
        Error::new(ErrorKind::InvalidOperation, why)
    })
}

fn with_sorted_keys(value: &Value) -> Result<Value, Error> {
    Ok(match value.kind() {
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                let value = with_sorted_keys(&value.get_item(&key)?)?;
                pairs.push((key, value));
            }
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            object(pairs)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| with_sorted_keys(&item));
            Value::from(items.collect::<Result<Vec<Value>, Error>>()?)
        }
        _ => value.clone(),
    })
}

/// The same JSON with numbers as Python writes them, with these separators, and with escapes for all that isn't
/// printable ASCII.
fn respell(json: &str, separators: Option<&[String; 2]>, ascii: bool) -> String {
    let mut text = String::with_capacity(json.len());
    let mut quoted = false;
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                text.push(letter);
            }
            // An escaped quote doesn't end a string.
            '\\' => {
                text.push(letter);
                text.extend(letters.next());
            }
            ',' | ':' if !quoted => match separators {
                Some([item, key]) => {
                    letters.next_if_eq(&' ');
                    text.push_str(if letter == ',' { item } else { key });
                }
                None => text.push(letter),
            },
            '-' | '0'..='9' if !quoted => {
                let mut number = String::from(letter);
                let in_number = |next: &char| matches!(next, '0'..='9' | '.' | 'e' | '+' | '-');
                while let Some(next) = letters.next_if(in_number) {
                    number.push(next);
                }
                text.push_str(&as_in_python(number));
            }
            _ if ascii && quoted && !(' '..='~').contains(&letter) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
            _ => text.push(letter),
        }
    }
    text
}

/// A number of JSON: Python's exponents begin a digit earlier below 1 and have two digits.
fn as_in_python(number: String) -> String {
    let small = number.parse::<f64>().ok().filter(|x| x.abs() > 0.0 && x.abs() < 1e-4);
    let Some(short) = small.map(|x| format!("{x:e}")) else { return number };
    match short.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => short,
    }
}

fn unescape_html(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let escape = &rest[at..];
        let (text, length) = match escape.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // Two characters at once, so that an escaped backslash can't start another escape.
            _ => (&escape[..2.min(escape.len())], 2.min(escape.len())),
        };
        plain.push_str(text);
        rest = &escape[length..];
    }
    plain + rest
}
