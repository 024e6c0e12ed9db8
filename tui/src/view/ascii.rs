//! Supports terminals that draw only ASCII: replaces every other symbol of a finished screen by the most
//! similar ASCII one, in one place, so that views need not care.

use ratatui::buffer::Buffer;

/// Replaces everything that isn't ASCII.
pub fn exchange(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if let Some(c) = cell.symbol().chars().next().filter(|c| !c.is_ascii()) {
            cell.set_char(nearest(c));
        }
    }
}

fn nearest(c: char) -> char {
    match c {
        '─' | '╌' => '-',
        '━' => '=',
        '│' => '|',
        '╭' | '╮' | '╰' | '╯' | '┌' | '┐' | '└' | '┘' | '├' | '┤' => '+',
        '·' | '▁' => '.',
        '▂' | '▃' => ':',
        '▄' | '▅' => 'o',
        '▆' | '▇' | '▓' => '%',
        '█' | '■' => '#',
        '▒' => ':',
        '░' => '.',
        '◆' => '@',
        '●' => '*',
        '◐' => '%',
        '○' => 'o',
        '▲' => '!',
        '▼' => 'v',
        '▶' | '→' | '›' => '>',
        '⏸' => '"',
        '…' => '~',
        '×' => 'x',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn only_ascii_is_left() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 9, 1));
        buffer.set_string(0, 0, "╭─▇█◆ñx…", Style::new());
        exchange(&mut buffer);
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "+-%#@?x~ ");
    }
}
