//! Command line of `infer-tui`. Flags win over the environment; a bad one ends with exit code 2.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::input::Key;
use crate::state::settings::{Colours, Settings, ThemeName};

/// Live console for an infer host: throughput, KV blocks, queues, policies and the prefix cache over the
/// admin plane.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "infer-tui",
    version,
    after_help = "The bearer token comes from --token-file, else INFER_ADMIN_TOKEN, else the file that a host on this\n\
                  machine writes, for 127.0.0.1 and localhost alone: $XDG_RUNTIME_DIR/infer/admin-PORT.token, or\n\
                  TMPDIR/infer-UID/admin-PORT.token where XDG_RUNTIME_DIR is not set. NO_COLOR turns colours off. Inside, ? lists all keys.\n\n\
                  Exit codes: 0 fine, 1 failed, 2 bad usage."
)]
pub struct Args {
    /// Address of the admin plane, as the host's ready line prints it.
    #[arg(long, env = "INFER_ADMIN", value_name = "URL", default_value = "http://127.0.0.1:8001")]
    pub admin: String,

    /// File that holds the admin token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Print one text snapshot and exit.
    #[arg(long, conflicts_with_all = ["json", "print"])]
    pub once: bool,

    /// Print the host's state as JSON once and exit.
    #[arg(long, conflicts_with_all = ["replay", "record"])]
    pub json: bool,

    /// Refuse every key that would change something on the host.
    #[arg(long)]
    pub read_only: bool,

    /// Snapshots a second.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub hz: u32,

    /// Colours.
    #[arg(long, env = "INFER_TUI_THEME", value_enum, value_name = "NAME", default_value_t = ThemeName::Okabe)]
    pub theme: ThemeName,

    /// How many colours the terminal has; `auto` goes by NO_COLOR, TERM and COLORTERM.
    #[arg(long, value_enum, value_name = "N", default_value_t = ColourChoice::Auto)]
    pub colours: ColourChoice,

    /// Draw with ASCII alone; without it the locale decides.
    #[arg(long)]
    pub ascii: bool,

    /// Take the mouse: click tabs, rows and blocks, scroll with the wheel.
    #[arg(long)]
    pub mouse: bool,

    /// Write everything that the host says to a new file, for a demo or a bug report; it has no token and no
    /// prompts in it, but names of sessions and users.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["replay", "once"])]
    pub record: Option<PathBuf>,

    /// Keep text of prompts in the recording, too, where the host shows it (`--show-text`).
    #[arg(long, requires = "record")]
    pub record_text: bool,

    /// Play a recording instead of watching a host.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// How fast a recording plays.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = speed, requires = "replay")]
    pub speed: f64,

    /// Print a screen as text and exit, after --after seconds or at the end of the recording.
    #[arg(long)]
    pub print: bool,

    /// Columns and rows of what is printed.
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "110x32", value_parser = size, requires = "print")]
    pub size: (u16, u16),

    /// Seconds to watch before it is printed, at least: every key is pressed. Of a recording, where to stop.
    #[arg(long, value_name = "SECONDS", requires = "print", value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub after: Option<u64>,

    /// Keys to press before it is printed: `4` for the policies, `3<enter>` for a request, `<down>`.
    #[arg(long, value_name = "KEYS", default_value = "", value_parser = keys, requires = "print")]
    pub keys: Keys,
}

/// Keys of `--keys`.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub Vec<Key>);

/// Choices of `--colours`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColourChoice {
    /// As the environment says
    Auto,
    /// No colours
    None,
    /// The sixteen that every terminal names
    #[value(name = "16")]
    Sixteen,
    /// The cube of 256
    #[value(name = "256")]
    Many,
}

impl Args {
    /// How things are shown, by flags and environment.
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
        .ok_or_else(|| "expected COLUMNSxROWS, 110x32 say, each at most 500".to_owned())
}
