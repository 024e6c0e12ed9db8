//! Terminal events become keys. The state knows `Key` alone, so its tests need no terminal; what a key
//! means on which screen is decided there, not here.

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};

/// A key that the console may react to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as on the keyboard")]
pub enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
    Delete,
    /// Ctrl-C.
    Interrupt,
}

impl Key {
    /// The arrow that `h`, `j`, `k`, `l`, `g` and `G` stand for, as in vi.
    #[must_use]
    pub fn motion(self) -> Self {
        match self {
            Self::Char('h') => Self::Left,
            Self::Char('j') => Self::Down,
            Self::Char('k') => Self::Up,
            Self::Char('l') => Self::Right,
            Self::Char('g') => Self::Home,
            Self::Char('G') => Self::End,
            other => other,
        }
    }
}

/// The key of a terminal event; `None` for releases, the mouse, resizes and keys without a meaning.
#[must_use]
pub fn key(event: &Event) -> Option<Key> {
    let Event::Key(event) = event else { return None };
    if event.kind == KeyEventKind::Release {
        return None;
    }
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return match event.code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('d' | 'f') => Some(Key::PageDown),
            KeyCode::Char('u' | 'b') => Some(Key::PageUp),
            _ => None,
        };
    }
    Some(match event.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Delete => Key::Delete,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossterm::event::KeyEvent;

    #[test]
    fn control_c_is_an_interrupt_and_plain_c_is_not() {
        let press = |modifiers| key(&Event::Key(KeyEvent::new(KeyCode::Char('c'), modifiers)));
        assert_eq!(press(KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(press(KeyModifiers::NONE), Some(Key::Char('c')));
    }

    #[test]
    fn releases_and_resizes_are_not_keys() {
        let mut release = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        release.kind = KeyEventKind::Release;
        assert_eq!(key(&Event::Key(release)), None);
        assert_eq!(key(&Event::Resize(10, 10)), None);
    }

    #[test]
    fn vi_letters_move() {
        assert_eq!(Key::Char('j').motion(), Key::Down);
        assert_eq!(Key::Char('x').motion(), Key::Char('x'));
    }
}
