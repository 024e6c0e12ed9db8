//! How things are shown: what a person may like otherwise. Nothing here is about the host.

use super::history::WINDOWS;

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ThemeName {
    /// Okabe and Ito's palette, told apart with any colour vision
    #[default]
    Okabe,
    /// Green is well, red is not
    Classic,
    /// For light backgrounds
    Light,
    /// Weight and inversion only
    Mono,
}

impl ThemeName {
    /// All of them, in the order of the key.
    pub const ALL: [Self; 4] = [Self::Okabe, Self::Classic, Self::Light, Self::Mono];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Okabe => "okabe",
            Self::Classic => "classic",
            Self::Light => "light",
            Self::Mono => "mono",
        }
    }
}

/// How many colours the terminal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colours {
    /// None, or none are wanted.
    None,
    /// The sixteen that every terminal names.
    Sixteen,
    /// The cube of 256.
    #[default]
    Many,
}

/// What a person chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Which colours.
    pub theme: ThemeName,
    /// How many there are.
    pub colours: Colours,
    /// Whether only ASCII may be drawn.
    pub ascii: bool,
    /// Whether the mouse is the console's; the terminal's own selection then needs a shift key.
    pub mouse: bool,
    /// Index into [`WINDOWS`].
    pub window: usize,
}

impl Settings {
    /// Seconds that a column of a graph stands for.
    #[must_use]
    pub fn seconds_per_column(&self) -> usize {
        WINDOWS[self.window]
    }

    /// A wider look (positive) or a closer one.
    pub fn zoom(&mut self, by: isize) {
        self.window = self.window.saturating_add_signed(by).min(WINDOWS.len() - 1);
    }

    /// The next theme.
    pub fn next_theme(&mut self) {
        self.theme = ThemeName::ALL[(self.theme as usize + 1) % ThemeName::ALL.len()];
    }

    /// What the environment says of the terminal: `NO_COLOR`, `TERM`, `COLORTERM`, the locale.
    #[must_use]
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let term = get("TERM").unwrap_or_default();
        let rich = get("COLORTERM").is_some_and(|value| value == "truecolor" || value == "24bit");
        let many = ["256color", "kitty", "alacritty", "direct", "ghostty", "wezterm"];
        let colours = if get("NO_COLOR").is_some() || matches!(term.as_str(), "dumb" | "vt100" | "vt220") {
            Colours::None
        } else if rich || many.iter().any(|name| term.contains(name)) {
            Colours::Many
        } else {
            Colours::Sixteen
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(get);
        // No locale at all says nothing: containers often have none, and terminals that draw UTF-8.
        let ascii = locale.is_some_and(|name| {
            let name = name.to_lowercase();
            !(name.contains("utf-8") || name.contains("utf8") || name == "c" || name == "posix")
        });
        Self { colours, ascii, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(all: &[(&str, &str)]) -> Settings {
        Settings::from_environment(|name| {
            all.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_decides_colours_and_glyphs() {
        assert_eq!(with(&[("TERM", "xterm-256color")]).colours, Colours::Many);
        assert_eq!(with(&[("TERM", "xterm"), ("COLORTERM", "truecolor")]).colours, Colours::Many);
        assert_eq!(with(&[("TERM", "linux")]).colours, Colours::Sixteen);
        assert_eq!(with(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]).colours, Colours::None);
        assert_eq!(with(&[("TERM", "xterm-256color"), ("NO_COLOR", "")]).colours, Colours::Many);
        assert!(with(&[("LANG", "de_DE.ISO-8859-1")]).ascii);
        assert!(!with(&[("LC_ALL", "en_US.UTF-8"), ("LANG", "de_DE.ISO-8859-1")]).ascii);
        assert!(!with(&[]).ascii);
    }

    #[test]
    fn zooming_ends_at_both_ends_and_themes_go_round() {
        let mut settings = Settings::default();
        settings.zoom(-1);
        assert_eq!(settings.seconds_per_column(), 1);
        settings.zoom(99);
        assert_eq!(settings.seconds_per_column(), 30);
        for _ in ThemeName::ALL {
            settings.next_theme();
        }
        assert_eq!(settings.theme, ThemeName::default());
    }
}
