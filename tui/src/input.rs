//! Turns terminal events into inputs. The state knows only these, so its tests need no terminal. What a key
//! means on which screen is decided there, not here.

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind};

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
    Backspace,
    Delete,
    /// Ctrl-U: deletes everything before the cursor.
    Wipe,
    /// Ctrl-C.
    Interrupt,
}

impl Key {
    /// Returns the movement key that `h`, `j`, `k`, `l`, `g`, `G` and Ctrl-U stand for, as in vi.
    #[must_use]
    pub fn motion(self) -> Self {
        match self {
            Self::Char('h') => Self::Left,
            Self::Char('j') => Self::Down,
            Self::Char('k') => Self::Up,
            Self::Char('l') => Self::Right,
            Self::Char('g') => Self::Home,
            Self::Char('G') => Self::End,
            Self::Wipe => Self::PageUp,
            other => other,
        }
    }

    /// Parses a script of keys: characters stand for themselves, `<enter>`, `<esc>`, `<tab>`, `<up>`,
    /// `<down>`, `<left>`, `<right>`, `<space>` and `<lt>` for the keys they name.
    ///
    /// # Errors
    /// The unknown name, or that a `>` is missing.
    pub fn script(text: &str) -> Result<Vec<Self>, String> {
        let mut keys = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            if c != '<' {
                keys.push(Self::Char(c));
                continue;
            }
            let (name, after) = rest.split_once('>').ok_or_else(|| format!("`<{rest}` has no `>`"))?;
            rest = after;
            keys.push(match name {
                "enter" => Self::Enter,
                "esc" => Self::Escape,
                "tab" => Self::Tab,
                "up" => Self::Up,
                "down" => Self::Down,
                "left" => Self::Left,
                "right" => Self::Right,
                "space" => Self::Char(' '),
                "lt" => Self::Char('<'),
                other => return Err(format!("`<{other}>` is not a key")),
            });
        }
        Ok(keys)
    }
}

/// What the operator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Pressed a key.
    Key(Key),
    /// Pressed Escape and a key right after it. Terminals send Alt and a key the same way; no binding uses
    /// Alt.
    AfterEscape(Key),
    /// Clicked at a column and a row.
    Click(u16, u16),
    /// Pasted text. It must not count as keys.
    Paste(String),
}

/// Returns the input of a terminal event; `None` for key releases, resizes and everything unbound.
#[must_use]
pub fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Key(event) => {
            if event.kind == KeyEventKind::Release {
                return None;
            }
            let key = key(event.code, event.modifiers)?;
            Some(if event.modifiers.contains(KeyModifiers::ALT) {
                Input::AfterEscape(key)
            } else {
                Input::Key(key)
            })
        }
        Event::Paste(text) => Some(Input::Paste(text.clone())),
        Event::Mouse(event) => match event.kind {
            MouseEventKind::Down(MouseButton::Left) => Some(Input::Click(event.column, event.row)),
            MouseEventKind::ScrollUp => Some(Input::Key(Key::Up)),
            MouseEventKind::ScrollDown => Some(Input::Key(Key::Down)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether it asks to draw the whole screen anew (Ctrl-L), which is no key to the state: something else has written to
/// the terminal, and nothing of what should be there has changed.
#[must_use]
pub fn is_redraw(event: &Event) -> bool {
    let Event::Key(event) = event else { return false };
    let pressed = event.kind != KeyEventKind::Release && event.modifiers.contains(KeyModifiers::CONTROL);
    pressed && event.code == KeyCode::Char('l')
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    if modifiers.contains(KeyModifiers::CONTROL) {
        return match code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('d' | 'f') => Some(Key::PageDown),
            KeyCode::Char('b') => Some(Key::PageUp),
            KeyCode::Char('u') => Some(Key::Wipe),
            KeyCode::Char('h') => Some(Key::Backspace),
            KeyCode::Char('n') => Some(Key::Down),
            KeyCode::Char('p') => Some(Key::Up),
            _ => None,
        };
    }
    Some(match code {
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
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Delete => Key::Delete,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossterm::event::{KeyEvent, MouseEvent};

    #[test]
    fn control_c_is_an_interrupt_and_plain_c_is_not() {
        let press = |modifiers| input(&Event::Key(KeyEvent::new(KeyCode::Char('c'), modifiers)));
        assert_eq!(press(KeyModifiers::CONTROL), Some(Input::Key(Key::Interrupt)));
        assert_eq!(press(KeyModifiers::NONE), Some(Input::Key(Key::Char('c'))));
    }

    #[test]
    fn control_l_draws_anew_and_is_no_key() {
        for (code, modifiers, draws) in [
            (KeyCode::Char('l'), KeyModifiers::CONTROL, true),
            (KeyCode::Char('l'), KeyModifiers::NONE, false),
            (KeyCode::Char('u'), KeyModifiers::CONTROL, false),
        ] {
            let event = Event::Key(KeyEvent::new(code, modifiers));
            assert_eq!(is_redraw(&event), draws, "{event:?}");
            assert_eq!(input(&event).is_none(), draws, "{event:?}");
        }
    }

    #[test]
    fn a_key_right_after_escape_is_not_lost() {
        let press = KeyEvent::new(KeyCode::Char('5'), KeyModifiers::ALT);
        assert_eq!(input(&Event::Key(press)), Some(Input::AfterEscape(Key::Char('5'))));
    }

    #[test]
    fn pasted_text_is_not_keys() {
        assert_eq!(input(&Event::Paste("cy".into())), Some(Input::Paste("cy".into())));
    }

    #[test]
    fn releases_and_resizes_are_ignored() {
        let mut release = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        release.kind = KeyEventKind::Release;
        assert_eq!(input(&Event::Key(release)), None);
        assert_eq!(input(&Event::Resize(10, 10)), None);
    }

    #[test]
    fn the_wheel_moves_and_the_left_button_clicks() {
        let mouse = |kind| {
            input(&Event::Mouse(MouseEvent { kind, column: 3, row: 4, modifiers: KeyModifiers::NONE }))
        };
        assert_eq!(mouse(MouseEventKind::ScrollDown), Some(Input::Key(Key::Down)));
        assert_eq!(mouse(MouseEventKind::Down(MouseButton::Left)), Some(Input::Click(3, 4)));
        assert_eq!(mouse(MouseEventKind::Moved), None);
    }

    #[test]
    fn vi_letters_move() {
        assert_eq!(Key::Char('j').motion(), Key::Down);
        assert_eq!(Key::Char('x').motion(), Key::Char('x'));
    }

    #[test]
    fn a_key_script_is_parsed() {
        assert_eq!(
            Key::script("4s<down><enter>"),
            Ok(vec![Key::Char('4'), Key::Char('s'), Key::Down, Key::Enter])
        );
        assert_eq!(Key::script("<f13>"), Err("`<f13>` is not a key".to_owned()));
        assert!(Key::script("<up").is_err());
    }
}
