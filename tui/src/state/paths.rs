//! Completion of typed paths: which folder to list, and what a prefix expands to. Pure; the folder is read
//! elsewhere.

use super::command::shared_beginning;

/// Whether a word looks like a path.
#[must_use]
pub fn is_path(word: &str) -> bool {
    word.contains('/') || matches!(word, "." | ".." | "~")
}

/// Returns the folder of a typed path: everything up to its last `/`.
#[must_use]
pub fn folder(typed: &str) -> &str {
    &typed[..typed.rfind('/').map_or(0, |at| at + 1)]
}

/// Completes a typed path as far as it is unambiguous; returns the path and the candidates for its last part.
/// Hidden names are offered only after a dot was typed.
#[must_use]
pub fn complete(typed: &str, names: &[String]) -> (String, Vec<String>) {
    if matches!(typed, "." | ".." | "~") {
        return (format!("{typed}/"), Vec::new());
    }
    let folder = folder(typed);
    let last = &typed[folder.len()..];
    let shown = |name: &&String| name.starts_with(last) && (last.starts_with('.') || !name.starts_with('.'));
    let fitting: Vec<String> = names.iter().filter(shown).cloned().collect();
    match shared_beginning(&fitting) {
        Some(shared) => (format!("{folder}{shared}"), fitting),
        None => (typed.to_owned(), fitting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_completed_part_by_part() {
        let names = [".git/", "mine.wasm", "mine-too.wasm", "target/", "ümlaut.wasm", "ünder/"];
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let complete = |typed| complete(typed, &names);
        assert_eq!(folder("./a/b"), "./a/");
        assert_eq!(folder("mine"), "");
        assert_eq!(complete("./t").0, "./target/");
        assert_eq!(complete("./m"), ("./mine".into(), vec!["mine.wasm".into(), "mine-too.wasm".into()]));
        assert_eq!(complete("./mine.").0, "./mine.wasm");
        assert_eq!(complete("x/.").0, "x/.git/");
        assert_eq!(complete("x/ü").0, "x/ü", "the names differ after a two-byte letter");
        assert_eq!(complete("x/").1.len(), 5, "without hidden names");
        assert_eq!(complete("x/z"), ("x/z".into(), vec![]));
        assert_eq!(complete("~").0, "~/");
    }
}
