//! Colours by meaning. The default is Okabe and Ito's palette, distinguishable with any colour vision, in the
//! nearest entries of the 256-colour palette so that it works over ssh and in tmux. Nothing depends on colour
//! alone: states also differ in glyph and word, which remain with `NO_COLOR`.

use ratatui::style::{Color, Modifier, Style};

use crate::state::blocks::BlockState;
use crate::state::log::Level;
use crate::state::settings::{Colours, Settings, ThemeName};

/// The colours of a theme.
struct Palette {
    sky: Color,
    blue: Color,
    green: Color,
    orange: Color,
    vermilion: Color,
    purple: Color,
    yellow: Color,
    grey: Color,
    frame: Color,
}

/// Builds a palette from 256-colour indexes, in the order of the fields.
const fn cube(all: [u8; 9]) -> Palette {
    let [sky, blue, green, orange, vermilion, purple, yellow, grey, frame] = all;
    Palette {
        sky: Color::Indexed(sky),
        blue: Color::Indexed(blue),
        green: Color::Indexed(green),
        orange: Color::Indexed(orange),
        vermilion: Color::Indexed(vermilion),
        purple: Color::Indexed(purple),
        yellow: Color::Indexed(yellow),
        grey: Color::Indexed(grey),
        frame: Color::Indexed(frame),
    }
}

const OKABE: Palette = cube([74, 32, 36, 214, 202, 175, 227, 246, 240]);
const CLASSIC: Palette = cube([81, 75, 77, 215, 203, 141, 221, 246, 240]);
const LIGHT: Palette = cube([25, 26, 29, 130, 160, 90, 136, 240, 248]);
/// Contrasts rely on blue and yellow; red and green are never opposed.
const OKABE_16: Palette = Palette {
    sky: Color::LightCyan,
    blue: Color::LightBlue,
    green: Color::Cyan,
    orange: Color::Yellow,
    vermilion: Color::LightRed,
    purple: Color::LightMagenta,
    yellow: Color::LightYellow,
    grey: Color::Gray,
    frame: Color::DarkGray,
};
const CLASSIC_16: Palette = Palette { green: Color::LightGreen, ..OKABE_16 };
const LIGHT_16: Palette = Palette {
    sky: Color::Blue,
    blue: Color::Blue,
    green: Color::Cyan,
    orange: Color::Red,
    vermilion: Color::Red,
    purple: Color::Magenta,
    yellow: Color::Magenta,
    grey: Color::DarkGray,
    frame: Color::Gray,
};

/// Styles by meaning.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "named by their meaning")]
pub struct Theme {
    /// Whether there are colours; without them glyphs and digits carry the meaning.
    pub has_colours: bool,
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
    pub kept: Style,
    pub free: Style,
    /// For values without a meaning of their own, such as tenants.
    pub series: [Style; 7],
}

impl Theme {
    /// Returns the chosen theme in the colours that the terminal has.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        match (settings.theme, settings.colours) {
            (ThemeName::Mono, _) | (_, Colours::None) => Self::plain(),
            (ThemeName::Okabe, Colours::Many) => Self::of(&OKABE),
            (ThemeName::Okabe, Colours::Sixteen) => Self::of(&OKABE_16),
            (ThemeName::Classic, Colours::Many) => Self::of(&CLASSIC),
            (ThemeName::Classic, Colours::Sixteen) => Self::of(&CLASSIC_16),
            (ThemeName::Light, Colours::Many) => Self::of(&LIGHT),
            (ThemeName::Light, Colours::Sixteen) => Self::of(&LIGHT_16),
        }
    }

    fn of(p: &Palette) -> Self {
        let fg = |colour| Style::new().fg(colour);
        Self {
            has_colours: true,
            title: fg(p.sky).add_modifier(Modifier::BOLD),
            label: fg(p.grey),
            border: fg(p.frame),
            key: fg(p.orange),
            selected: Style::new().add_modifier(Modifier::REVERSED),
            good: fg(p.green),
            warning: fg(p.orange).add_modifier(Modifier::BOLD),
            bad: fg(p.vermilion).add_modifier(Modifier::BOLD),
            throughput: fg(p.sky),
            ttft: fg(p.orange),
            itl: fg(p.purple),
            used: fg(p.blue),
            shared: fg(p.purple),
            cached: fg(p.green),
            kept: fg(p.yellow),
            free: fg(p.frame),
            series: [p.blue, p.orange, p.green, p.purple, p.yellow, p.sky, p.vermilion].map(fg),
        }
    }

    /// The theme without colours: bold and inverse only.
    fn plain() -> Self {
        let none = Style::new();
        let bold = none.add_modifier(Modifier::BOLD);
        Self {
            has_colours: false,
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
            shared: bold,
            cached: none,
            kept: bold,
            free: none,
            series: [none; 7],
        }
    }

    /// Returns the style of a block.
    #[must_use]
    pub fn block(&self, state: BlockState) -> Style {
        match state {
            BlockState::Free => self.free,
            BlockState::Cached => self.cached,
            BlockState::Kept => self.kept,
            BlockState::Used => self.used,
            BlockState::Shared => self.shared,
        }
    }

    /// Returns the style of an outcome.
    #[must_use]
    pub fn level(&self, level: Level) -> Style {
        match level {
            Level::Info => self.good,
            Level::Warning => self.warning,
            Level::Error => self.bad,
        }
    }

    /// Returns the mark and the style of a policy slot in this state.
    #[must_use]
    pub fn slot(&self, state: &str) -> (&'static str, Style) {
        match state {
            "live" => ("●", self.good),
            "canary" => ("◐", self.warning),
            _ => ("▲", self.bad),
        }
    }
}

/// Returns the glyph of a block.
#[must_use]
pub fn glyph(state: BlockState) -> char {
    match state {
        BlockState::Free => '·',
        BlockState::Cached => '▒',
        BlockState::Kept => '▓',
        BlockState::Used => '█',
        BlockState::Shared => '◆',
    }
}
