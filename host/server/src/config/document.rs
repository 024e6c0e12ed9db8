//! A TOML file whose errors name file, line and key.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A parsed file.
pub struct Document<'i> {
    shown: &'i str,
    text: &'i str,
    root: DeTable<'i>,
}

/// A key of a table.
pub struct Entry<'d> {
    /// The key itself.
    pub key: String,
    /// The key with the tables around it, such as `tenants.alice.weight`.
    pub path: String,
    at: Range<usize>,
    value: &'d Spanned<DeValue<'d>>,
}

impl<'i> Document<'i> {
    /// Parses `text`; errors name the file `shown`.
    pub fn parse(shown: &'i str, text: &'i str) -> Result<Self, String> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { shown, text, root: root.into_inner() }),
            Err(error) => {
                let line = line_of(text, error.span().map_or(0, |span| span.start));
                Err(format!("{shown}:{line}: not valid TOML: {}", error.message()))
            }
        }
    }

    /// The top-level keys, in the order of the file.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        entries("", &self.root)
    }

    /// The keys of a table.
    pub fn table<'d>(&self, entry: &Entry<'d>) -> Result<Vec<Entry<'d>>, String> {
        match entry.value.get_ref().as_table() {
            Some(table) => Ok(entries(&entry.path, table)),
            None => Err(self.wrong(entry, format!("expected a table, found {}", entry.kind()))),
        }
    }

    /// An error about a key.
    pub fn wrong(&self, entry: &Entry<'_>, message: impl AsRef<str>) -> String {
        self.wrong_at(entry.at.clone(), &entry.path, message.as_ref())
    }

    /// An error about a position inside a key's value.
    pub fn wrong_at(&self, at: Range<usize>, path: &str, message: &str) -> String {
        format!("{}:{}: {path}: {message}", self.shown, line_of(self.text, at.start))
    }

    /// The line of a key, counted from 1.
    pub fn line(&self, entry: &Entry<'_>) -> usize {
        line_of(self.text, entry.at.start)
    }

    /// The end of an error about an unknown key: the known key that was probably meant, or all known ones.
    pub fn near(&self, key: &str, known: &[&str]) -> String {
        near(key, known).map_or_else(
            || format!("; known are {}", known.join(", ")),
            |meant| format!("; did you mean `{meant}`?"),
        )
    }
}

impl Entry<'_> {
    /// The value.
    pub fn value(&self) -> &DeValue<'_> {
        self.value.get_ref()
    }

    /// What kind of value it is.
    pub fn kind(&self) -> &'static str {
        self.value().type_str()
    }

    /// As a whole number.
    pub fn integer(&self) -> Option<i64> {
        self.whole().and_then(|number| i64::try_from(number).ok())
    }

    /// Wider than any setting: each setting checks its own range.
    fn whole(&self) -> Option<i128> {
        let number = self.value().as_integer()?;
        i128::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok()
    }

    /// As a number.
    pub fn number(&self) -> Option<f64> {
        match self.value() {
            DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
            _ => self.integer().map(|n| n as f64),
        }
    }

    /// A plain value in the form that its flag takes; `None` for lists, tables and times.
    pub fn text(&self) -> Option<String> {
        match self.value() {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(_) => self.whole().map(|n| n.to_string()),
            DeValue::Float(float) => Some(float.as_str().to_owned()),
            DeValue::Boolean(b) => Some(if *b { "on" } else { "off" }.to_owned()),
            _ => None,
        }
    }

    /// As a list of strings.
    pub fn texts(&self) -> Option<Vec<String>> {
        let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        };
        self.value().as_array()?.iter().map(text).collect()
    }
}

fn entries<'d>(path: &str, table: &'d DeTable<'d>) -> Vec<Entry<'d>> {
    let mut all: Vec<Entry<'d>> = table
        .iter()
        .map(|(key, value)| {
            let name = key.get_ref().to_string();
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            Entry { key: name, path, at: key.span(), value }
        })
        .collect();
    all.sort_by_key(|entry| entry.at.start);
    all
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}

/// The text of a file, or why there is none.
pub fn read_text(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() + 1;
        format!("it is no text: byte {at} is not UTF-8")
    })
}

/// The known name that an unknown one probably stands for, for a hint: the nearest one within an edit
/// distance that grows with the length, or one that begins with it.
pub fn near<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let name = normalized(name);
    let (best, distance) = nearest(&name, known)?;
    let begins = name.len() >= 4 && best.starts_with(&name);
    (distance <= 1 + name.len() / 4 || begins).then_some(best)
}

/// The known name that an unknown one almost certainly misspells. Stricter than [`near`], for names that may
/// also belong to other programs.
pub fn misspelt<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let name = normalized(name);
    let allowed = if name.len() < 8 { 1 } else { 2 };
    nearest(&name, known).filter(|&(_, distance)| distance <= allowed).map(|(best, _)| best)
}

fn normalized(name: &str) -> String {
    name.replace('_', "-").to_ascii_lowercase()
}

/// The nearest known name by the Damerau-Levenshtein distance, and that distance.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<(&'k str, usize)> {
    let distances = known.iter().map(|&key| (key, strsim::damerau_levenshtein(name, key)));
    distances.min_by_key(|&(_, distance)| distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_distant_ones_are_not() {
        let known = ["max-batch-size", "max-batch-tokens", "port", "host"];
        assert_eq!(near("max_batch_sise", &known), Some("max-batch-size"));
        assert_eq!(near("prot", &known), Some("port"));
        assert_eq!(near("hots", &known), Some("host"));
        assert_eq!(near("colour", &known), None);
        assert_eq!(misspelt("max_batch_sise", &known), Some("max-batch-size"));
        assert_eq!((misspelt("prot", &known), misspelt("home", &known)), (Some("port"), None));
    }

    #[test]
    fn entries_keep_the_order_and_lines_of_the_file() {
        let text = "z = 1_000\n\na = 0x10\n[t]\nb = 1.5\n";
        let document = Document::parse("f", text).unwrap();
        let all = document.entries();
        let seen: Vec<_> = all.iter().map(|e| (e.key.as_str(), document.line(e))).collect();
        assert_eq!(seen, [("z", 1), ("a", 3), ("t", 4)]);
        assert_eq!((all[0].integer(), all[1].integer()), (Some(1_000), Some(16)));
        let seed = Document::parse("f", "seed = 18446744073709551615").unwrap();
        assert_eq!(seed.entries()[0].text(), Some(u64::MAX.to_string()));
        let inner = document.table(&all[2]).unwrap();
        assert_eq!((inner[0].path.as_str(), inner[0].number()), ("t.b", Some(1.5)));
        assert_eq!(
            Document::parse("f", "a = 1\nb =").map(|_| ()).unwrap_err().split(": ").next(),
            Some("f:2")
        );
    }
}
