//! What a user types at the prompt: a question, possibly of several lines, or a command.

/// Begins and ends a block, whose text is taken as it is.
const FENCE: &str = "\"\"\"";

/// Printed by `/help`.
pub const HELP: &str = "\
/system TEXT   sets the system message; without TEXT there will be none
/retry         asks the last question again, for another answer in place of the last one
/reset         begins a new conversation with the same system message
/save FILE     writes the messages as JSON
/quit          ends, as Ctrl-D and Ctrl-C twice do
A line that ends with \\ continues on the next one. Text of any lines, and text that begins with /, goes between
two \"\"\", of which the second ends its line. Ctrl-C stops an answer, and keeps what came of it; at the prompt
it drops what is typed.
";

/// A line, or several that belong together.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// Blank.
    Nothing,
    /// For the model.
    Question(String),
    Help,
    /// The system message from now on.
    System(Option<String>),
    Reset,
    Retry,
    /// The name of a file.
    Save(String),
    Quit,
    /// No command, and why.
    Wrong(String),
}

/// Whether no further line belongs to what is typed.
pub fn is_whole(typed: &str) -> bool {
    match block(typed) {
        Some(rest) => rest.trim_end().ends_with(FENCE),
        None => !typed.ends_with('\\'),
    }
}

/// What to show behind text that is not whole yet, at an empty line or where a block looks closed and isn't.
pub fn advice(typed: &str) -> Option<&'static str> {
    let rest = block(typed).filter(|_| !is_whole(typed))?;
    let (earlier, line) =
        rest.rsplit_once('\n').map_or((None, rest), |(earlier, line)| (Some(earlier), line));
    match earlier {
        _ if line.contains(FENCE) => Some("  (\"\"\" ends the text only at the end of a line)"),
        Some(_) if line.is_empty() => Some("  (\"\"\" ends the text, Ctrl-C drops it)"),
        _ => None,
    }
}

/// Says what is meant.
pub fn read(typed: &str) -> Input {
    if let Some(rest) = block(typed) {
        let rest = rest.trim_end();
        return question(rest.strip_suffix(FENCE).unwrap_or(rest).trim_matches('\n'));
    }
    let text = typed.replace("\\\n", "\n");
    let text = text.trim();
    match text.strip_prefix('/') {
        Some(text) => command(text),
        None => question(text),
    }
}

/// What follows the beginning of a block.
fn block(typed: &str) -> Option<&str> {
    typed.trim_start().strip_prefix(FENCE)
}

fn question(text: &str) -> Input {
    if text.trim().is_empty() { Input::Nothing } else { Input::Question(text.to_owned()) }
}

fn command(text: &str) -> Input {
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let argument = argument.trim();
    let argument = (!argument.is_empty()).then(|| argument.to_owned());
    let quoted = format!("a question that begins with / goes between two {FENCE}");
    match (name, argument) {
        ("help", None) => Input::Help,
        ("system", text) => Input::System(text),
        ("reset", None) => Input::Reset,
        ("retry", None) => Input::Retry,
        // Most likely pasted text that happens to begin like a command.
        ("help" | "reset" | "retry" | "save" | "quit", Some(_)) if text.contains('\n') => {
            Input::Wrong(format!("/{name} has no further lines; {quoted}"))
        }
        ("save", Some(file)) => Input::Save(file),
        ("save", None) => Input::Wrong("/save needs the name of a file".to_owned()),
        ("quit", None) => Input::Quit,
        ("help" | "reset" | "retry" | "quit", Some(_)) => {
            Input::Wrong(format!("/{name} stands alone; {quoted}"))
        }
        _ => Input::Wrong(format!("/{name} is no command, /help lists them; {quoted}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(text: &str) -> Input {
        Input::Question(text.to_owned())
    }

    #[test]
    fn lines_continue_until_they_are_whole() {
        for (typed, whole) in [
            ("", true),
            ("a", true),
            ("a\\", false),
            ("a\\\nb", true),
            ("a\\\nb\\", false),
            ("\"\"\"", false),
            ("\"\"\"\"\"", false),
            ("\"\"\"\"\"\"", true),
            ("\"\"\"a\nb\\\n", false),
            (" \"\"\"\na\n\"\"\" ", true),
            ("a \"\"\"", true),
        ] {
            assert_eq!(is_whole(typed), whole, "{typed:?}");
        }
    }

    #[test]
    fn advice_is_shown_where_a_block_waits_for_its_end() {
        for (typed, words) in [
            ("", None),
            ("a\\\n", None),
            ("\"\"\"", None),
            ("\"\"\"a", None),
            ("\"\"\"a\n", Some("Ctrl-C drops it")),
            ("\"\"\"a\nb", None),
            ("\"\"\"a\"\"\"", None),
            ("\"\"\"a\"\"\" b", Some("only at the end of a line")),
            ("\"\"\"\na\"\"\" b", Some("only at the end of a line")),
            ("\"\"\"a\"\"\" b\n", Some("Ctrl-C drops it")),
            ("\"\"\"a\"\"\" b\nc", None),
        ] {
            let shown = advice(typed);
            assert_eq!(shown.is_some(), words.is_some(), "{typed:?}: {shown:?}");
            assert!(shown.unwrap_or_default().contains(words.unwrap_or_default()), "{typed:?}: {shown:?}");
        }
    }

    #[test]
    fn questions_have_the_lines_that_were_typed() {
        for (typed, meant) in [
            ("  What is KV? ", asks("What is KV?")),
            ("a\\\nb\\\n  c", asks("a\nb\n  c")),
            ("\"\"\"\n  fn main() {\\\n}\n\"\"\"\n", asks("  fn main() {\\\n}")),
            ("\"\"\"/quit\"\"\"", asks("/quit")),
            ("say \"\"\"x\"\"\"", asks("say \"\"\"x\"\"\"")),
            ("", Input::Nothing),
            (" \t", Input::Nothing),
            ("\\\n", Input::Nothing),
            ("\"\"\"\n\n\"\"\"", Input::Nothing),
        ] {
            assert_eq!(read(typed), meant, "{typed:?}");
        }
    }

    #[test]
    fn commands_are_read_with_their_arguments() {
        for (typed, meant) in [
            ("/help", Input::Help),
            (" /system  Be brief.\\\nAlways. ", Input::System(Some("Be brief.\nAlways.".to_owned()))),
            ("/system", Input::System(None)),
            ("/reset ", Input::Reset),
            ("/retry", Input::Retry),
            ("/save my chat.json", Input::Save("my chat.json".to_owned())),
            ("/quit", Input::Quit),
        ] {
            assert_eq!(read(typed), meant, "{typed:?}");
        }
        for (typed, words) in [
            ("/save", "needs the name of a file"),
            ("/quit now", "/quit stands alone; a question that begins with / goes between two \"\"\""),
            ("/quit\nis a command", "/quit has no further lines; a question that begins with / goes between"),
            ("/save a\nb", "/save has no further lines"),
            ("/etc/hosts has what?", "/etc/hosts is no command, /help lists them"),
            ("/Reset", "/Reset is no command"),
            ("/", "/ is no command"),
        ] {
            let Input::Wrong(why) = read(typed) else { panic!("{typed:?} is accepted") };
            assert!(why.contains(words), "{typed:?}: {why}");
        }
    }

    #[test]
    fn help_has_every_command() {
        for name in ["system", "retry", "reset", "save", "quit"] {
            assert!(HELP.contains(&format!("/{name} ")), "{name}");
            assert!(!matches!(read(&format!("/{name} x")), Input::Question(_)));
        }
    }
}
