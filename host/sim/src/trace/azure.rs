//! Azure's LLM inference traces (2023 and 2024): timestamp, prompt tokens, generated tokens.

use std::io::BufRead;

use time::{Date, Month, OffsetDateTime};

use super::empty::{Empty, Rows};
use super::lines::{Cells, Lines, short};
use super::{MAX_NEW_TOKENS, Recorded, TraceError};

pub(super) const NAMES: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

pub(super) fn is_head(line: &str) -> bool {
    let cells = Cells::of(1, line);
    NAMES.iter().all(|name| cells.find(name).is_ok())
}

pub(super) struct Azure<R> {
    lines: Lines<R>,
    columns: Option<[usize; 3]>,
    rows: Rows,
    id: u64,
}

impl<R: BufRead> Azure<R> {
    pub fn new(file: R, empty: &Empty) -> Self {
        Self { lines: Lines::new(file), columns: None, rows: Rows::new(empty), id: 0 }
    }

    fn read(&mut self) -> Result<Option<Recorded>, TraceError> {
        if self.columns.is_none() {
            let Some((line, text)) = self.lines.next()? else { return Ok(None) };
            let head = Cells::of(line, text);
            self.columns = Some([head.find(NAMES[0])?, head.find(NAMES[1])?, head.find(NAMES[2])?]);
        }
        let [at, context, generated] = self.columns.expect("the head was read");
        let Some((line, text)) = self.lines.next()? else { return Ok(None) };
        let row = Cells::of(line, text);
        let (column, time) = row.get(at, NAMES[0])?;
        let time_us = microseconds(time).ok_or_else(|| {
            row.wrong(column, format!("`{}` is not a time such as 2024-05-10 00:00:00.009930", short(time)))
        })?;
        let prompt_tokens = row.tokens(context, NAMES[1])?;
        let output_tokens = row.tokens(generated, NAMES[2])?;
        self.rows.add(prompt_tokens.into(), output_tokens.into());
        let (prompt_tokens, output_tokens) = (prompt_tokens.max(1), output_tokens.max(1));
        self.id += 1;
        Ok(Some(Recorded {
            id: self.id,
            at_us: time_us,
            prompt_tokens,
            output_tokens,
            max_tokens: output_tokens.max(MAX_NEW_TOKENS),
            ..Recorded::default()
        }))
    }
}

impl<R: BufRead> Iterator for Azure<R> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Microseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]`.
fn microseconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let (time, shift) = match time.find(['+', '-', 'Z']) {
        Some(at) => (&time[..at], &time[at..]),
        None => (time, ""),
    };
    let shift_minutes = match shift {
        "" | "Z" => 0,
        _ => {
            let [hours, minutes] = numbers(&shift[1..], ':')?;
            let sign = if shift.starts_with('-') { -1 } else { 1 };
            sign * (hours * 60 + minutes)
        }
    };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    let valid = (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second)
        && (1970..10_000).contains(&year)
        && !fraction.is_empty()
        && fraction.bytes().all(|digit| digit.is_ascii_digit());
    if !valid {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}")[..6].parse().ok()?;
    let seconds = ((days(year, month, day)? * 24 + hour) * 60 + minute - shift_minutes) * 60 + second;
    u64::try_from(seconds * 1_000_000 + micros).ok()
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let mut all = [0; N];
    let mut parts = text.split(separator);
    for number in &mut all {
        let part = parts.next()?;
        let digits = !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit());
        *number = digits.then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(all)
}

/// Days since 1970-01-01 of a date that exists.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    Some(i64::from(date.to_julian_day() - OffsetDateTime::UNIX_EPOCH.to_julian_day()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_of_both_years_are_read() {
        assert_eq!(microseconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(microseconds("2000-03-01 00:00:00.5"), Some(951_868_800_500_000));
        assert_eq!(microseconds("2024-02-29 00:00:00"), Some(1_709_164_800_000_000));
        let plain = microseconds("2023-11-16 18:15:46.6805900").unwrap();
        assert_eq!(plain, 1_700_158_546_680_590);
        assert_eq!(microseconds("2023-11-16T18:15:46.680590Z"), Some(plain));
        assert_eq!(microseconds("2023-11-16 19:15:46.680590+01:00"), Some(plain));
        for wrong in [
            "",
            "yesterday",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "2023-11-00 00:00:00",
            "2023-11-31 18:15:45",
            "2023-02-29 00:00:00",
            "2100-02-29 00:00:00",
            "0000-01-01 00:00:00",
            "2023-11-16 18:15",
            "2023-11-16 18:15:46.x",
            "1970-01-01 00:00:00+01:00",
        ] {
            assert_eq!(microseconds(wrong), None, "{wrong}");
        }
    }
}
