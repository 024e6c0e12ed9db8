//! Display settings. Nothing here is about the host.

use super::history::WINDOWS;

/// A colour theme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ThemeName {
    /// Okabe and Ito's palette, distinguishable with any colour vision
    #[default]
    Okabe,
    /// Green is good, red is bad
    Classic,
    /// For light backgrounds
    Light,
    /// No colours, only bold and inverse
    Mono,
}

impl ThemeName {
    /// All themes, in the order in which the key steps through them.
    pub const ALL: [Self; 4] = [Self::Okabe, Self::Classic, Self::Light, Self::Mono];

    /// Returns the name.
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
    /// None available, or none wanted.
    None,
    /// The sixteen colours that every terminal defines.
    Sixteen,
    /// The 256-colour palette.
    #[default]
    Many,
}

/// The display settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The theme.
    pub theme: ThemeName,
    /// How many colours to use.
    pub colours: Colours,
    /// Whether to draw with ASCII only.
    pub ascii: bool,
    /// Whether the mouse is captured; the terminal's own selection then needs the shift key.
    pub mouse: bool,
    /// Index into [`WINDOWS`].
    pub window: usize,
}

impl Settings {
    /// Returns the seconds per column of a graph.
    #[must_use]
    pub fn seconds_per_column(&self) -> usize {
        WINDOWS[self.window]
    }

    /// Widens (positive) or narrows the time window of the graphs.
    pub fn zoom(&mut self, by: isize) {
        self.window = self.window.saturating_add_signed(by).min(WINDOWS.len() - 1);
    }

    /// Switches to the next theme.
    pub fn next_theme(&mut self) {
        self.theme = ThemeName::ALL[(self.theme as usize + 1) % ThemeName::ALL.len()];
    }

    /// Derives the settings from `NO_COLOR`, `TERM`, `COLORTERM` and the locale.
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
        // A missing locale decides nothing: containers often have none while their terminal draws UTF-8.
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
    fn the_environment_sets_colours_and_glyphs() {
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
    fn zoom_is_bounded_and_themes_wrap_around() {
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
