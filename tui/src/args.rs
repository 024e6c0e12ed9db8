//! Command line of `infer-tui`. Flags take precedence over the environment; usage errors exit with code 2.

use std::path::PathBuf;

use clap::{Arg, CommandFactory, FromArgMatches, Parser, ValueEnum};

use crate::input::Key;
use crate::state::settings::{Colours, Settings, ThemeName};

/// Live console for an infer host: throughput, KV blocks, queues, policies and the prefix cache, read from
/// the admin plane.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "infer-tui",
    version,
    after_help = "The admin token comes from --token-file, else INFER_ADMIN_TOKEN. Otherwise, and only for addresses \
                  of this machine (127.0.0.1, localhost, ..), it is read from the file that the host wrote: \
                  $XDG_RUNTIME_DIR/infer/admin-PORT.token, else TMPDIR/infer-UID/admin-PORT.token.\n\
                  NO_COLOR turns colours off. Press ? inside for all keys and commands.\n\n\
                  Exit codes: 0 success, 1 failure, 2 usage error."
)]
pub struct Args {
    /// Address of the admin plane, as the host prints it when it starts.
    #[arg(long, env = "INFER_ADMIN", value_name = "URL", default_value = "http://127.0.0.1:8001")]
    pub admin: String,

    /// File with the admin token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Print one snapshot and exit: as text, or with --json as JSON.
    #[arg(long, conflicts_with = "print")]
    pub once: bool,

    /// Print the host's state as JSON once and exit.
    #[arg(long, conflicts_with_all = ["replay", "record"])]
    pub json: bool,

    /// Disable every key and command that changes the host; always so for an operator with the role `viewer`.
    #[arg(long)]
    pub read_only: bool,

    /// Updates per second.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub hz: u32,

    /// Colour theme.
    #[arg(long, env = "INFER_TUI_THEME", value_enum, value_name = "NAME", default_value_t = ThemeName::Okabe)]
    pub theme: ThemeName,

    /// Number of colours to use; `auto` decides by NO_COLOR, TERM and COLORTERM.
    #[arg(long, value_enum, value_name = "N", default_value_t = ColourChoice::Auto)]
    pub colours: ColourChoice,

    /// Draw with ASCII only; without the flag the locale decides.
    #[arg(long)]
    pub ascii: bool,

    /// Capture the mouse: click tabs, rows and blocks, scroll with the wheel.
    #[arg(long)]
    pub mouse: bool,

    /// Record everything the host sends to a new file, for a demo or a bug report. The file contains no token
    /// and no prompts, but names of sessions, users and the operator.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "once"])]
    pub record: Option<PathBuf>,

    /// Include prompt text in the recording if the host shows it (`infer serve --show-text`).
    #[arg(long, requires = "record")]
    pub record_text: bool,

    /// Play a recording instead of watching a host.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// Playback speed of a recording.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = speed, requires = "replay")]
    pub speed: f64,

    /// Print one screen as text and exit: after --after seconds, or at the end of the recording.
    #[arg(long)]
    pub print: bool,

    /// Size of the printed screen.
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "110x32", value_parser = size, requires = "print")]
    pub size: (u16, u16),

    /// Seconds to watch before printing; longer if --keys takes longer. For a recording, the time to stop at.
    #[arg(long, value_name = "SECONDS", requires = "print", value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub after: Option<u64>,

    /// Keys to press before printing: `4` for the policies, `3<enter>` for a request, `<down>`.
    #[arg(long, value_name = "KEYS", default_value = "", value_parser = keys, requires = "print")]
    pub keys: Keys,
}

/// The keys of `--keys`.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub Vec<Key>);

/// Choices of `--colours`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColourChoice {
    /// Decided by the environment
    Auto,
    /// No colours
    None,
    /// The sixteen colours that every terminal defines
    #[value(name = "16")]
    Sixteen,
    /// The 256-colour palette
    #[value(name = "256")]
    Many,
}

impl Args {
    /// Reads the command line and the environment, where an empty variable counts as absent. Exits with a
    /// message for `--help`, `--version` and usage errors.
    #[must_use]
    pub fn read() -> Self {
        let matches = Self::command().mut_args(without_empty_variable).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Display settings from flags and environment.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::from_environment(|name| std::env::var(name).ok());
        settings.theme = self.theme;
        settings.ascii |= self.ascii;
        settings.mouse = self.mouse;
        match self.colours {
            ColourChoice::Auto => {}
            ColourChoice::None => settings.colours = Colours::None,
            ColourChoice::Sixteen => settings.colours = Colours::Sixteen,
            ColourChoice::Many => settings.colours = Colours::Many,
        }
        settings
    }
}

/// Containers and units often define a variable as empty to leave it unset.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { arg.env(None) } else { arg }
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.1..=1_000.0).contains(speed));
    speed.ok_or_else(|| "expected a number from 0.1 to 1000".to_owned())
}

fn keys(text: &str) -> Result<Keys, String> {
    Key::script(text).map(Keys)
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let side = |text: &str| text.parse::<u16>().ok().filter(|side| (1..=500).contains(side));
    text.split_once('x')
        .and_then(|(width, height)| Some((side(width)?, side(height)?)))
        .ok_or_else(|| "expected COLUMNSxROWS, for example 110x32, each at most 500".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_below_the_flags_have_no_line_breaks_of_their_own() {
        let text = Args::command().get_after_help().expect("there are some").to_string();
        for line in text.lines() {
            assert!(line.is_empty() || line.ends_with('.'), "the terminal breaks lines, too: {line}");
        }
    }
}
