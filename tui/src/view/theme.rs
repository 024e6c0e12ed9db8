//! Colours by meaning. The palette is Okabe and Ito's, which people with any colour vision tell apart,
//! in the 256-colour cube's nearest entries so that it works over ssh and in tmux. Meaning never hangs on
//! colour alone: states also differ in glyph and word, which is what `NO_COLOR` leaves.

use ratatui::style::{Color, Modifier, Style};

use crate::state::blocks::BlockState;
use crate::state::log::Level;

const SKY: Color = Color::Indexed(74);
const BLUE: Color = Color::Indexed(32);
const GREEN: Color = Color::Indexed(36);
const ORANGE: Color = Color::Indexed(214);
const VERMILION: Color = Color::Indexed(202);
const PURPLE: Color = Color::Indexed(175);
const GREY: Color = Color::Indexed(244);

/// Styles by meaning.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named by their meaning")]
pub struct Theme {
    pub title: Style,
    pub label: Style,
    pub border: Style,
    pub key: Style,
    pub selected: Style,
    pub good: Style,
    pub warning: Style,
    pub bad: Style,
    pub throughput: Style,
    pub ttft: Style,
    pub itl: Style,
    pub used: Style,
    pub shared: Style,
    pub cached: Style,
    pub free: Style,
}

impl Theme {
    /// With colours.
    #[must_use]
    pub fn colour() -> Self {
        let fg = |colour| Style::new().fg(colour);
        Self {
            title: fg(SKY).add_modifier(Modifier::BOLD),
            label: fg(GREY),
            border: fg(GREY),
            key: fg(ORANGE),
            selected: Style::new().add_modifier(Modifier::REVERSED),
            good: fg(GREEN),
            warning: fg(ORANGE).add_modifier(Modifier::BOLD),
            bad: fg(VERMILION).add_modifier(Modifier::BOLD),
            throughput: fg(SKY),
            ttft: fg(ORANGE),
            itl: fg(PURPLE),
            used: fg(BLUE),
            shared: fg(PURPLE),
            cached: fg(GREEN),
            free: fg(GREY),
        }
    }

    /// Without: weight and inversion only.
    #[must_use]
    pub fn plain() -> Self {
        let none = Style::new();
        let bold = none.add_modifier(Modifier::BOLD);
        Self {
            title: bold,
            label: none,
            border: none,
            key: bold,
            selected: none.add_modifier(Modifier::REVERSED),
            good: none,
            warning: bold,
            bad: bold,
            throughput: none,
            ttft: none,
            itl: none,
            used: none,
            shared: none,
            cached: none,
            free: none,
        }
    }

    /// As the environment asks: `NO_COLOR` set to anything but nothing turns colours off.
    #[must_use]
    pub fn from_environment() -> Self {
        if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            Self::plain()
        } else {
            Self::colour()
        }
    }

    /// Of a block.
    #[must_use]
    pub fn block(&self, state: BlockState) -> Style {
        match state {
            BlockState::Free => self.free,
            BlockState::Cached => self.cached,
            BlockState::Used => self.used,
            BlockState::Shared => self.shared,
        }
    }

    /// Of an outcome.
    #[must_use]
    pub fn level(&self, level: Level) -> Style {
        match level {
            Level::Info => self.good,
            Level::Warning => self.warning,
            Level::Error => self.bad,
        }
    }
}

/// Glyph of a block.
#[must_use]
pub fn glyph(state: BlockState) -> char {
    match state {
        BlockState::Free => '·',
        BlockState::Cached => '▒',
        BlockState::Used => '█',
        BlockState::Shared => '◆',
    }
}
