//! The command line that `:` opens: parses a [`Command`] and completes the last word. Pure; what a command
//! does is decided in `keys::commands`.

use infer_api::unique;
use serde_json::Value;

use super::Screen;
use super::blocks::ColourBy;
use super::paths;
use super::policies::KINDS;
use super::requests::SortBy;
use super::settings::ThemeName;
use super::table::SortKey;
use crate::order::{Mode, Source};

/// A parsed command.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named as the commands")]
pub enum Command {
    Show(Screen),
    Quit,
    Help,
    Filter(String),
    Sort { by: SortBy, descending: bool },
    Colour(ColourBy),
    Theme(ThemeName),
    Ascii,
    Mouse,
    Pause,
    Swap { kind: &'static str, source: Source, mode: Mode, config: Option<Value>, force: bool },
    Promote { kind: &'static str },
    Rollback { kind: &'static str },
    StopShadow { kind: &'static str },
    Configure { kind: &'static str },
    Cancel { id: u64 },
    ClearQueue,
    EmptyCache,
    Drain,
    Undrain,
}

/// Every command: its name, its arguments, what it does. The help and the completion use this list.
pub const COMMANDS: [(&str, &str, &str); 26] = [
    ("overview", "", "throughput, latencies, memory, policies"),
    ("blocks", "", "the KV pool block by block"),
    ("requests", "", "running and waiting requests, and why they wait"),
    ("policies", "", "the three slots"),
    ("cache", "", "hit rates, prefixes, sessions"),
    ("log", "", "events so far"),
    ("tenants", "", "requests, tokens and latencies of each tenant"),
    (
        "filter",
        "[WORDS]",
        "filter requests, log, tenants; `field:text` searches one field, `field=text` wants all of it",
    ),
    ("sort", "COLUMN [desc]", "sort the requests"),
    ("colour", "state|tenant|age|references", "what the colours of the block map mean"),
    ("theme", "okabe|classic|light|mono", "change the colours"),
    ("ascii", "", "switch between ASCII and Unicode drawing"),
    ("mouse", "", "capture or release the mouse"),
    ("pause", "", "pause or resume the screen"),
    ("swap", "KIND NAME|FILE.wasm [now|shadow|canary] [force] [JSON]", "swap a policy in"),
    ("promote", "KIND", "make the shadow live, or accept the canary"),
    ("rollback", "KIND", "roll back to the previous policy"),
    ("stop-shadow", "KIND", "stop the shadow"),
    ("configure", "KIND", "edit the live policy's configuration"),
    ("cancel", "ID", "cancel a request"),
    ("clear-queue", "", "fail every waiting request"),
    ("empty-cache", "", "drop all cached blocks that no request uses"),
    ("drain", "", "refuse new requests from now on"),
    ("undrain", "", "take new requests again"),
    ("help", "", "all keys and commands"),
    ("quit", "", "quit"),
];

/// Parses a command line.
///
/// # Errors
/// What is wrong and what would be right.
pub fn parse(line: &str) -> Result<Command, String> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return Err("no command given; `help` lists them".into()) };
    let rest: Vec<&str> = words.collect();
    let command = match name {
        "overview" => Command::Show(Screen::Overview),
        "blocks" => Command::Show(Screen::Blocks),
        "requests" => Command::Show(Screen::Requests),
        "policies" => Command::Show(Screen::Policies),
        "cache" => Command::Show(Screen::Cache),
        "log" => Command::Show(Screen::Log),
        "tenants" => Command::Show(Screen::Tenants),
        "q" | "quit" => Command::Quit,
        "help" => Command::Help,
        "filter" => return Ok(Command::Filter(rest.join(" "))),
        "sort" => return sort(&rest),
        "colour" | "color" => Command::Colour(one_of(&rest, name, &ColourBy::ALL, ColourBy::name)?),
        "theme" => Command::Theme(one_of(&rest, name, &ThemeName::ALL, ThemeName::name)?),
        "ascii" => Command::Ascii,
        "mouse" => Command::Mouse,
        "pause" => Command::Pause,
        "swap" => return swap(line, &rest),
        "promote" => Command::Promote { kind: one_of(&rest, name, &KINDS, |kind| kind)? },
        "rollback" => Command::Rollback { kind: one_of(&rest, name, &KINDS, |kind| kind)? },
        "stop-shadow" => Command::StopShadow { kind: one_of(&rest, name, &KINDS, |kind| kind)? },
        "configure" => Command::Configure { kind: one_of(&rest, name, &KINDS, |kind| kind)? },
        "cancel" => {
            let id = rest.first().and_then(|id| id.parse().ok());
            Command::Cancel { id: id.ok_or("cancel needs the id of a request: cancel 1187")? }
        }
        "clear-queue" => Command::ClearQueue,
        "empty-cache" => Command::EmptyCache,
        "drain" => Command::Drain,
        "undrain" => Command::Undrain,
        other => return Err(format!("unknown command `{other}`; `help` lists them")),
    };
    let takes = usize::from(matches!(
        command,
        Command::Colour(_)
            | Command::Theme(_)
            | Command::Promote { .. }
            | Command::Rollback { .. }
            | Command::StopShadow { .. }
            | Command::Configure { .. }
            | Command::Cancel { .. }
    ));
    match rest.get(takes) {
        Some(extra) => Err(format!("{name}: unexpected argument `{extra}`")),
        None => Ok(command),
    }
}

fn one_of<T: Copy>(
    words: &[&str],
    command: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let names: Vec<&str> = all.iter().map(|&one| name(one)).collect();
    let Some(word) = words.first() else {
        return Err(format!("{command} needs one of {}", names.join(", ")));
    };
    let found = all.iter().find(|&&one| name(one) == *word);
    found.copied().ok_or_else(|| format!("{command}: `{word}` is not one of {}", names.join(", ")))
}

fn sort(words: &[&str]) -> Result<Command, String> {
    let by = one_of(words, "sort", SortBy::ALL, SortBy::name)?;
    match words.get(1) {
        None => Ok(Command::Sort { by, descending: false }),
        Some(&"desc") => Ok(Command::Sort { by, descending: true }),
        Some(other) => Err(format!("sort: `{other}` is not an order; only `desc` is")),
    }
}

fn swap(line: &str, words: &[&str]) -> Result<Command, String> {
    let kind = one_of(words, "swap", &KINDS, |kind| kind)?;
    let name = *words.get(1).ok_or("swap needs a policy's name or a .wasm file")?;
    let source = Source::of(name);
    // The JSON is the rest of the line from its first brace on, because it may contain spaces.
    let (head, json) = match line.find('{') {
        Some(at) => (&line[..at], Some(&line[at..])),
        None => (line, None),
    };
    let config = json.map(|json| unique::parse(json.as_bytes())).transpose();
    let config = config.map_err(|error| format!("swap: the configuration is not JSON: {error}"))?;
    let (mut mode, mut force) = (Mode::Now, false);
    for word in head.split_whitespace().skip(3) {
        match word {
            "force" => force = true,
            word => {
                let found = Mode::ALL.into_iter().find(|mode| mode.name() == word);
                mode = found.ok_or_else(|| {
                    format!("swap: `{word}` is not one of now, shadow, canary, force, {{..}}")
                })?;
            }
        }
    }
    Ok(Command::Swap { kind, source, mode, config, force })
}

/// Completes the last word of a line as far as it is unambiguous; returns the line and the candidates.
/// `names` are the policies that can be swapped into a kind.
#[must_use]
pub fn complete(line: &str, names: impl Fn(&str) -> Vec<String>) -> (String, Vec<String>) {
    let before_last = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (head, last) = line.split_at(before_last);
    let words: Vec<&str> = head.split_whitespace().collect();
    let of = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let all: Vec<String> = match words.as_slice() {
        [] => COMMANDS.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        ["swap" | "promote" | "rollback" | "stop-shadow" | "configure"] => of(&KINDS),
        ["swap", kind] => names(kind),
        ["swap", _, _] => of(&["now", "shadow", "canary", "force"]),
        ["sort"] => SortBy::ALL.iter().map(|by| by.name().to_owned()).collect(),
        ["sort", _] => of(&["desc"]),
        ["colour" | "color"] => ColourBy::ALL.iter().map(|by| by.name().to_owned()).collect(),
        ["theme"] => ThemeName::ALL.iter().map(|theme| theme.name().to_owned()).collect(),
        _ => Vec::new(),
    };
    let fitting: Vec<String> = all.into_iter().filter(|name| name.starts_with(last)).collect();
    let Some(shared) = shared_beginning(&fitting) else { return (line.to_owned(), fitting) };
    let end = if fitting.len() == 1 { " " } else { "" };
    (format!("{head}{shared}{end}"), fitting)
}

/// Returns the longest common prefix of some names; `None` without names.
pub(super) fn shared_beginning(names: &[String]) -> Option<&str> {
    let first = names.first()?;
    let alike = |(a, b): &(char, char)| a == b;
    let shared = names.iter().map(|other| {
        first.chars().zip(other.chars()).take_while(alike).map(|(c, _)| c.len_utf8()).sum::<usize>()
    });
    Some(&first[..shared.min().unwrap_or(0)])
}

/// Returns the last word of a line if it is a path and the command takes one there.
#[must_use]
pub fn path(line: &str) -> Option<&str> {
    let before_last = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let (head, last) = line.split_at(before_last);
    let words: Vec<&str> = head.split_whitespace().collect();
    (matches!(words[..], ["swap", _]) && paths::is_path(last)).then_some(last)
}

/// Completes that path. Names with spaces are left out, because a command line can't contain them.
#[must_use]
pub fn complete_path(line: &str, names: &[String]) -> (String, Vec<String>) {
    let Some(typed) = path(line) else { return (line.to_owned(), Vec::new()) };
    let names: Vec<String> =
        names.iter().filter(|name| !name.contains(char::is_whitespace)).cloned().collect();
    let (completed, fitting) = paths::complete(typed, &names);
    let end = if fitting.len() == 1 && !completed.ends_with('/') { " " } else { "" };
    (format!("{}{completed}{end}", &line[..line.len() - typed.len()]), fitting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_with_their_arguments() {
        for (line, want) in [
            (" policies ", Command::Show(Screen::Policies)),
            ("q", Command::Quit),
            ("filter state:held ada", Command::Filter("state:held ada".into())),
            ("sort age desc", Command::Sort { by: SortBy::Age, descending: true }),
            ("color age", Command::Colour(ColourBy::Age)),
            ("rollback prefix-cache", Command::Rollback { kind: "prefix-cache" }),
            ("cancel 7", Command::Cancel { id: 7 }),
        ] {
            assert_eq!(parse(line), Ok(want), "{line}");
        }
        let swap = parse(r#"swap admission ./mine.wasm canary force {"a": 1, "b": "x y"}"#).unwrap();
        let config = Some(serde_json::json!({"a": 1, "b": "x y"}));
        let source = Source::File("./mine.wasm".into());
        assert_eq!(
            swap,
            Command::Swap { kind: "admission", source, mode: Mode::Canary, config, force: true }
        );
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (line, want) in [
            ("", "no command given"),
            ("dance", "unknown command `dance`"),
            ("sort", "needs one of engine, id"),
            ("sort colour", "`colour` is not one of engine"),
            ("swap scheduler", "needs a policy's name"),
            ("swap scheduler fair never", "`never` is not one of now, shadow"),
            ("swap scheduler fair {x", "is not JSON"),
            (r#"swap scheduler fair {"a": 1, "a": 2}"#, "the key `a` occurs twice"),
            ("rollback everything", "not one of scheduler, admission, prefix-cache"),
            ("cancel all", "needs the id"),
            ("drain now", "unexpected argument `now`"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(want), "{line}: {error}");
        }
    }

    #[test]
    fn words_are_completed_as_far_as_they_are_unambiguous() {
        let names = |kind: &str| match kind {
            "scheduler" => vec!["fair".to_owned(), "static-batch".to_owned()],
            _ => Vec::new(),
        };
        let complete = |line: &str| complete(line, names);
        assert_eq!(complete("swa").0, "swap ");
        assert_eq!(complete("swap s").0, "swap scheduler ");
        assert_eq!(complete("swap scheduler st").0, "swap scheduler static-batch ");
        assert_eq!(
            complete("c"),
            (
                "c".into(),
                vec![
                    "cache".into(),
                    "colour".into(),
                    "configure".into(),
                    "cancel".into(),
                    "clear-queue".into()
                ]
            )
        );
        assert_eq!(complete("co").0, "co");
        let files = ["mine.wasm", "my own.wasm", "out/"].map(str::to_owned);
        assert_eq!(path("swap scheduler ./m"), Some("./m"));
        assert_eq!(complete_path("swap scheduler ./m", &files).0, "swap scheduler ./mine.wasm ");
        assert_eq!(complete_path("swap scheduler a/o", &files).0, "swap scheduler a/out/");
        assert_eq!(path("swap scheduler st").or(path("./m")), None);
        assert_eq!(complete("zz"), ("zz".into(), vec![]));
    }

    #[test]
    fn every_listed_command_is_parsed() {
        for (name, arguments, _) in COMMANDS {
            if let Err(error) = parse(name) {
                assert!(!arguments.is_empty() && !error.contains("unknown command"), "{name}: {error}");
            }
        }
    }
}
