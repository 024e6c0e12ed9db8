//! Where commands write: `print!`, `println!` and `eprintln!` (the standard library's macros panic if nothing can be
//! written), and files that `--out` names. What they show may come from clients, policies, models and other hosts, so a terminal gets
//! it without what controls terminals.

use std::ffi::OsString;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use super::Failure;

/// Writes to stdout, or exits: quietly if the reader has closed its end, as `head` does.
pub(super) fn put(text: Arguments<'_>) {
    put_styled(text, false);
}

/// As `put`, and dimmed on a terminal, unless NO_COLOR is set or the terminal knows no styles.
pub(super) fn put_dimmed(text: Arguments<'_>) {
    put_styled(text, may_dim(std::env::var_os("NO_COLOR"), std::env::var_os("TERM")));
}

fn may_dim(no_color: Option<OsString>, term: Option<OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty()) && term.is_some_and(|term| term != "dumb")
}

fn put_styled(text: Arguments<'_>, dimmed: bool) {
    let mut out = std::io::stdout().lock();
    // Generated text must appear piece by piece.
    let written = match out.is_terminal() {
        true if dimmed => write!(out, "\x1b[2m{}\x1b[22m", harmless(&text.to_string())),
        true => out.write_all(harmless(&text.to_string()).as_bytes()),
        false => out.write_fmt(text),
    };
    let Err(error) = written.and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(std::io::stderr().lock(), "error: can't write the output: {error}");
    std::process::exit(1);
}

/// Writes a line to stderr if that takes it: what a command says beside its work must not end the work.
pub(super) fn note(text: Arguments<'_>) {
    let mut out = std::io::stderr().lock();
    let is_terminal = out.is_terminal();
    let _ = put_line(&mut out, is_terminal, text);
}

fn put_line(out: &mut impl Write, is_terminal: bool, text: Arguments<'_>) -> std::io::Result<()> {
    match is_terminal {
        true => writeln!(out, "{}", harmless(&text.to_string())),
        false => writeln!(out, "{text}"),
    }
}

/// A text without what controls a terminal or reorders what it shows. Such characters, except line breaks and tabs, are
/// written as JSON escapes them, so JSON keeps its value.
pub(super) fn harmless(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for c in text.chars() {
        let controls = c.is_control() && !matches!(c, '\n' | '\t');
        if controls || reorders(c) {
            harmless.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            harmless.push(c);
        }
    }
    harmless
}

/// Marks of the direction of writing, their overrides and isolates.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Fails if no result could be written to the file of `--out`, so that a wrong path costs no measurement.
pub(super) fn check_out(file: Option<&Path>) -> Result<(), Failure> {
    file.map_or(Ok(()), |path| check_file("--out", path))
}

/// Fails if nothing could be written to the file of a flag. A file that exists keeps its content.
pub(super) fn check_file(flag: &str, path: &Path) -> Result<(), Failure> {
    // Opening a pipe waits for its reader.
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let is_new = path.symlink_metadata().is_err();
    File::options().write(true).create(true).truncate(false).open(path).map_err(|error| {
        Failure::Usage(format!("{flag}: can't write {}: {error}; choose another file", path.display()))
    })?;
    if is_new {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Fails if a flag's file, which a result will overwrite, is one of those that the command reads.
pub(super) fn check_inputs<'a>(
    flag: &str,
    file: Option<&Path>,
    what: &str,
    mut inputs: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    if file.is_some_and(|file| inputs.any(|input| is_same_file(file, input))) {
        return Err(Failure::Usage(format!("{flag}: the file is one of {what}; choose another one")));
    }
    Ok(())
}

/// Whether two paths name one file, which need not exist.
pub(super) fn is_same_file(a: &Path, b: &Path) -> bool {
    a == b || resolved(a).is_some_and(|a| resolved(b) == Some(a))
}

/// A path without links, `.` and `..`; `None` if its folder doesn't exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(found) = path.canonicalize() {
        return Some(found);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

/// Writes a result to a file, or to stdout if none is given. Stdout also gets what the file doesn't take, because it
/// may have taken hours.
pub(super) fn emit(file: Option<&Path>, text: &str) -> Result<(), Failure> {
    let Some(path) = file else {
        put(format_args!("{text}"));
        return Ok(());
    };
    std::fs::write(path, text).map_err(|error| {
        let mut out = std::io::stdout().lock();
        // `put` exits if stdout doesn't take it, either, and may call that a success.
        let is_shown = out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok();
        let instead = if is_shown { "; the result is on stdout" } else { "" };
        Failure::Failed(format!("can't write {}: {error}{instead}", path.display()))
    })
}

macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::put(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::cli::out::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::put(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::out::note(format_args!($($text)*)) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn text_for_a_terminal_controls_nothing_and_json_keeps_its_value() {
        assert_eq!(
            harmless("a\tb\r\nnäive \u{1b}[31m\u{9b}0m \u{202e}x\u{7f}"),
            "a\tb\\u000d\nnäive \\u001b[31m\\u009b0m \\u202ex\\u007f"
        );
        let value = serde_json::json!({"user": "\u{9b}31m \u{202e}\u{1b}é会"});
        let shown = harmless(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n') && shown.contains("é会"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn notes_control_no_terminal_and_reach_files_as_they_are() {
        let host = "refused: \u{1b}]0;x\u{7}";
        for (is_terminal, shown) in
            [(true, "refused: \\u001b]0;x\\u0007\n"), (false, "refused: \u{1b}]0;x\u{7}\n")]
        {
            let mut out = Vec::new();
            put_line(&mut out, is_terminal, format_args!("{host}")).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), shown);
        }
    }

    #[test]
    fn only_terminals_with_styles_get_them() {
        for (no_color, term, dims) in [
            (None, Some("xterm"), true),
            (Some(""), Some("linux"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
            (None, None, false),
        ] {
            assert_eq!(
                may_dim(no_color.map(Into::into), term.map(Into::into)),
                dims,
                "{no_color:?} {term:?}"
            );
        }
    }

    #[test]
    fn paths_name_one_file_whatever_links_and_folders_they_lead_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("there"), "").unwrap();
        symlink(at("there"), at("link")).unwrap();
        symlink(at("folder"), at("linked")).unwrap();
        for (one, other, is_same) in [
            ("there", "there", true),
            ("there", "folder/../there", true),
            ("there", "link", true),
            ("new", "folder/../new", true),
            ("folder/new", "linked/new", true),
            ("new", "there", false),
            ("new", "folder/new", false),
            ("nowhere/new", "nowhere/other", false),
        ] {
            assert_eq!(is_same_file(&at(one), &at(other)), is_same, "{one} {other}");
            assert_eq!(is_same_file(&at(other), &at(one)), is_same, "{other} {one}");
        }
        assert!(is_same_file(Path::new("./new"), Path::new("new")));
    }
}
