//! Whether a release may link a crate, by the expression that states its licence: SPDX 2.3, annex D, or the older form
//! `MIT/Apache-2.0`.

/// Licences that ask for no more than a notice. Those that also ask for sources (MPL, LGPL, GPL) are not among them,
/// because an archive has no sources of others.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether what an expression demands is allowed, by any of its alternatives.
pub fn allowed(expression: &str) -> bool {
    let spaced = spaced(expression);
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words) == Some(true) && words.next().is_none()
}

/// Where SPDX has the texts of the licences and exceptions that an expression names.
pub fn texts(expression: &str) -> Vec<String> {
    let spaced = spaced(expression);
    let names = spaced.split_whitespace().filter(|word| !["(", ")", "AND", "OR", "WITH"].contains(word));
    names.map(|name| format!("https://spdx.org/licenses/{name}.html")).collect()
}

fn spaced(expression: &str) -> String {
    expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ")
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Alternatives, of which one is enough. `None` if the words are no expression.
fn any(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

/// What holds together.
fn all(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut Words<'_>) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let allowed = any(words)?;
        return words.next_if_eq(&")").map(|_| allowed);
    }
    let licence = match words.next_if_eq(&"WITH") {
        Some(_) => format!("{word} WITH {}", words.next()?),
        None => word.to_owned(),
    };
    Some(ALLOWED.contains(&licence.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alternative_is_enough_and_what_holds_together_is_not_chosen_from() {
        for (expression, may) in [
            ("MIT", true),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/GPL-3.0", true),
            ("GPL-2.0 / Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("GPL-3.0-only OR MIT AND ISC", true),
            ("GPL-3.0-only", false),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND MPL-2.0", false),
            ("Apache-2.0 WITH an-exception", false),
        ] {
            assert_eq!(allowed(expression), may, "{expression}");
        }
    }

    #[test]
    fn what_is_no_expression_is_not_allowed() {
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "OR", "Apache-2.0 WITH", "mit"] {
            assert!(!allowed(expression), "{expression:?}");
        }
    }

    #[test]
    fn texts_are_those_of_all_licences_and_exceptions() {
        let of = |name: &str| format!("https://spdx.org/licenses/{name}.html");
        let expression = "(Apache-2.0 WITH LLVM-exception) OR MIT";
        assert_eq!(texts(expression), ["Apache-2.0", "LLVM-exception", "MIT"].map(of));
        assert_eq!(texts("MIT/Zlib"), ["MIT", "Zlib"].map(of));
    }
}
