//! Formats numbers for people: short, and a missing measurement is a dash, never a zero. Also measures and
//! cuts text by its width on the terminal.

use infer_api::admin::PolicySlot;
use ratatui::text::Span;

use crate::text::clean;
pub use crate::text::count;

/// The calls of a slot's policy; `-` for a native one, whose calls aren't counted.
#[must_use]
pub fn calls(slot: &PolicySlot) -> String {
    if slot.is_native() { "-".to_owned() } else { count(slot.calls) }
}

/// `7.25`, `412.3`, `12,345`.
#[must_use]
pub fn rate(value: f64) -> String {
    if value >= 1_000.0 {
        return count(value.round() as u64);
    }
    if value >= 10.0 { format!("{value:.1}") } else { format!("{value:.2}") }
}

/// Formats a number of any size and sign: `1,204`, `-0.38`, `2.5e-7`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let text = if size < 1e15 && size.fract() == 0.0 {
        count(size as u64)
    } else if (0.01..1e15).contains(&size) {
        rate(size)
    } else {
        format!("{size:.1e}")
    };
    if value < 0.0 { format!("-{text}") } else { text }
}

/// `0.42 ms`, `12.3 ms`, `1.25 s`; `-` for zero, which means not measured.
#[must_use]
pub fn milliseconds(value: f64) -> String {
    match value {
        value if value <= 0.0 || !value.is_finite() => "-".to_owned(),
        value if value < 1.0 => format!("{value:.2} ms"),
        value if value < 100.0 => format!("{value:.1} ms"),
        value if value < 1_000.0 => format!("{value:.0} ms"),
        value => format!("{:.2} s", value / 1_000.0),
    }
}

/// `3.2 us`, `150 us`, `1.25 ms`; `-` for zero, which means not measured.
#[must_use]
pub fn microseconds(value: f64) -> String {
    match value {
        value if value <= 0.0 || !value.is_finite() => "-".to_owned(),
        value if value < 100.0 => format!("{value:.1} us"),
        value if value < 1_000.0 => format!("{value:.0} us"),
        value => milliseconds(value / 1_000.0),
    }
}

/// `350 ms`, `12 s`, `3m12s`, `1h02m`, `4d03h`.
#[must_use]
pub fn age(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// `512 B`, `1.2 GiB`.
#[must_use]
pub fn bytes(value: u64) -> String {
    let mut scaled = value as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1_024.0 {
            return if unit == "B" { format!("{value} B") } else { format!("{scaled:.1} {unit}") };
        }
        scaled /= 1_024.0;
    }
    format!("{scaled:.1} TiB")
}

/// `part` as a percentage of `whole`; `-` if `whole` is zero.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0}%", part as f64 * 100.0 / whole as f64) }
}

/// Returns the width of a text in columns.
#[must_use]
pub fn columns(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// Returns the longest prefix that fits into `width` columns.
#[must_use]
pub fn beginning(text: &str, width: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += columns(&text[at..at + c.len_utf8()]);
        if used > width {
            return &text[..at];
        }
    }
    text
}

/// The first `width` columns of a text, [`clean`], the last an ellipsis where something is cut.
#[must_use]
pub fn fit(text: &str, width: usize) -> String {
    let text = clean(text);
    if columns(&text) <= width {
        return text;
    }
    let mut cut = beginning(&text, width.saturating_sub(1)).to_owned();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// The same, with spaces up to `width` columns.
#[must_use]
pub fn padded(text: &str, width: usize) -> String {
    let mut text = fit(text, width);
    let missing = width.saturating_sub(columns(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

/// Splits `width` cells among parts in proportion. The cells always sum to `width`, and a part that isn't
/// empty gets at least one cell if possible: three used blocks of a million must not look like none.
#[must_use]
pub fn split(width: usize, parts: &[u64]) -> Vec<usize> {
    let total: u64 = parts.iter().sum();
    if total == 0 || width == 0 {
        return vec![0; parts.len()];
    }
    let exact = |part: u64| part as f64 * width as f64 / total as f64;
    let mut cells: Vec<usize> = parts.iter().map(|&part| exact(part) as usize).collect();
    while cells.iter().sum::<usize>() < width {
        let shortfall = |index: usize| exact(parts[index]) - cells[index] as f64;
        let neediest = (0..parts.len()).max_by(|&a, &b| shortfall(a).total_cmp(&shortfall(b)));
        cells[neediest.expect("there are parts")] += 1;
    }
    for index in 0..parts.len() {
        let largest = (0..cells.len()).max_by_key(|&other| cells[other]).expect("there are parts");
        if parts[index] > 0 && cells[index] == 0 && cells[largest] > 1 {
            cells[largest] -= 1;
            cells[index] = 1;
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 9.999, 412.34, 12_345.6].map(rate), ["0.00", "10.00", "412.3", "12,346"]);
        assert_eq!(
            [0.0, 1_204.0, -0.384, 12_345.6, 2.5e-7, 1e300].map(number),
            ["0", "1,204", "-0.38", "12,346", "2.5e-7", "1.0e300"]
        );
        assert_eq!(
            [0.0, 0.5, 12.34, 340.0, 1_250.0].map(milliseconds),
            ["-", "0.50 ms", "12.3 ms", "340 ms", "1.25 s"]
        );
        assert_eq!([0.0, 3.21, 150.4, 1_250.0].map(microseconds), ["-", "3.2 us", "150 us", "1.2 ms"]);
        assert_eq!(
            [350, 12_000, 192_000, 3_720_000, 356_400_000].map(age),
            ["350 ms", "12 s", "3m12s", "1h02m", "4d03h"]
        );
        assert_eq!([512, 2_048, 3 << 30].map(bytes), ["512 B", "2.0 KiB", "3.0 GiB"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33%".into(), "-".into()));
    }

    #[test]
    fn text_is_cut_and_has_no_control_characters() {
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("äöü", 3), "äöü");
        assert_eq!(fit("a\x1b[2Jb", 9), "a [2Jb");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(fit("a\u{202e}b\u{200b}\u{9b}31m", 9), "ab 31m");
    }

    #[test]
    fn widths_match_the_terminal() {
        assert_eq!(
            (fit("会话会话", 8), fit("会话会话", 7), fit("会话会话", 6)),
            ("会话会话".into(), "会话会…".into(), "会话…".into())
        );
        assert_eq!((padded("会话", 6), padded("e\u{301}x", 4)), ("会话  ".into(), "e\u{301}x  ".into()));
        assert_eq!(padded(&"\u{200b}".repeat(12), 4), "    ");
        assert_eq!((beginning("会话", 3), beginning("会话", 1)), ("会", ""));
    }

    #[test]
    fn split_sums_to_its_width_and_hides_no_part() {
        for width in 0..60 {
            for parts in [[0, 0, 0], [1, 1, 1], [1, 0, 1_000_000], [3, 2, 5], [0, 7, 0], [999, 1, 1]] {
                let cells = split(width, &parts);
                let want = if parts.iter().sum::<u64>() == 0 { 0 } else { width };
                assert_eq!(cells.iter().sum::<usize>(), want, "{width} {parts:?}");
                for (part, cells) in parts.iter().zip(&cells) {
                    assert!(*part > 0 || *cells == 0, "{width} {parts:?}");
                    assert!(*part == 0 || *cells > 0 || width < 3, "{width} {parts:?}");
                }
            }
        }
        assert_eq!(split(10, &[1, 0, 1]), [5, 0, 5]);
    }
}
