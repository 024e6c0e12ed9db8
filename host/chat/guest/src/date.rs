//! `strftime_now`: the date, as a template asks for it.
//!
//! The sandbox has no clock, so the host says what day it is in UTC. It says no more than that, and times are those
//! of the day's first second: a prompt that told the time would share no prefix with the one before it.

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
/// All directives, for the error about another one.
const KNOWN: &str = "%Y %y %m %-m %d %-d %e %B %b %h %A %a %F %H %I %M %S %T %p %%";

/// The beginning of a day, which is so many days after 1 January 1970, as Python's `strftime` writes it.
///
/// # Errors
/// The format has a directive that isn't known here.
pub(crate) fn strftime(days: u32, format: &str) -> Result<String, Error> {
    let date = Date::of(days);
    let mut text = String::with_capacity(format.len());
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        let letter = after.char_indices().find(|(_, letter)| *letter != '-');
        let end = letter.map_or(after.len(), |(at, letter)| at + letter.len_utf8());
        let (directive, others) = after.split_at(end);
        text.push_str(before);
        text.push_str(&date.written(directive).ok_or_else(|| unknown(directive))?);
        rest = others;
    }
    text.push_str(rest);
    Ok(text)
}

fn unknown(directive: &str) -> Error {
    let why = format!("strftime_now has no directive `%{directive}`; it has {KNOWN}");
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A day of the Gregorian calendar.
struct Date {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
    /// From 0, which is Monday.
    weekday: u64,
}

impl Date {
    /// The day that is so many days after 1 January 1970 (H. Hinnant, chrono-Compatible Low-Level Date Algorithms,
    /// `civil_from_days`).
    fn of(days: u32) -> Self {
        let days = u64::from(days);
        // Eras of 400 years, which begin with March: a leap day is then the last of its year.
        let since = days + 719_468;
        let (era, day) = (since / 146_097, since % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        Self { year: 400 * era + year + u64::from(month <= 2), month, day, weekday: (days + 3) % 7 }
    }

    /// What stands for a directive, which has no percent sign here.
    fn written(&self, directive: &str) -> Option<String> {
        let Self { year, month, day, weekday } = self;
        let (of_month, of_week) = (MONTHS[*month as usize - 1], WEEKDAYS[*weekday as usize]);
        Some(match directive {
            "Y" => year.to_string(),
            "y" => format!("{:02}", year % 100),
            "m" => format!("{month:02}"),
            "-m" => month.to_string(),
            "d" => format!("{day:02}"),
            "-d" => day.to_string(),
            "e" => format!("{day:2}"),
            "B" => of_month.to_owned(),
            "b" | "h" => of_month[..3].to_owned(),
            "A" => of_week.to_owned(),
            "a" => of_week[..3].to_owned(),
            "F" => format!("{year}-{month:02}-{day:02}"),
            "H" | "M" | "S" => "00".to_owned(),
            "I" => "12".to_owned(),
            "T" => "00:00:00".to_owned(),
            "p" => "AM".to_owned(),
            "%" => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are Python's.
    #[test]
    fn days_are_written_as_python_writes_them() {
        for (days, text) in [
            (0, "1970-01-01 Thursday"),
            (10_956, "1999-12-31 Friday"),
            (11_016, "2000-02-29 Tuesday"),
            (11_017, "2000-03-01 Wednesday"),
            (19_782, "2024-02-29 Thursday"),
            (20_118, "2025-01-30 Thursday"),
            (47_540, "2100-02-28 Sunday"),
            (47_541, "2100-03-01 Monday"),
        ] {
            assert_eq!(strftime(days, "%Y-%m-%d %A").unwrap(), text);
        }
        for (format, text) in [
            ("%d %b %Y", "05 Aug 2024"),
            ("%B %d, %Y", "August 05, 2024"),
            ("%a %-d.%-m.%y, %e %h", "Mon 5.8.24,  5 Aug"),
            ("%F %T = %I:%M:%S %p (%H h), 100%%", "2024-08-05 00:00:00 = 12:00:00 AM (00 h), 100%"),
            ("d é", "d é"),
            ("", ""),
        ] {
            assert_eq!(strftime(19_940, format).unwrap(), text, "{format}");
        }
    }

    #[test]
    fn an_unknown_directive_is_an_error_that_names_it_and_the_known_ones() {
        for (format, named) in [("%Y %Q", "`%Q`"), ("%--d", "`%--d`"), ("50%", "`%`"), ("%é", "`%é`")] {
            let error = strftime(0, format).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(KNOWN), "{format}: {error}");
        }
        for known in KNOWN.split(' ') {
            assert!(strftime(0, known).is_ok(), "{known}");
        }
    }
}
