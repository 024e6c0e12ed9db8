//! Parses sizes, durations, switches and choices. Every error says what is accepted.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Any text but none, without the space around it.
pub fn non_empty(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Most bytes of a model's name, which logs, metrics and responses repeat.
const MAX_NAME: usize = 256;

/// A name of a model, without the space around it.
pub fn model_name(text: &str) -> Result<String, String> {
    let name = non_empty(text)?;
    if name.len() > MAX_NAME {
        let begin: String = name.chars().take(32).collect();
        return Err(format!("a name has at most {MAX_NAME} bytes; {begin:?}... has {}", name.len()));
    }
    if name.contains(char::is_control) {
        return Err(format!("{name:?} has control characters; a name can't"));
    }
    Ok(name)
}

/// The path of a file or folder.
pub fn path(text: &str) -> Result<Option<PathBuf>, String> {
    non_empty(text).map(|path| Some(PathBuf::from(path)))
}

/// A whole number from `min` to `max`.
pub fn number<T>(text: &str, min: T, max: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + std::fmt::Display + Copy,
{
    let clean = text.trim().replace('_', "");
    let wrong = || format!("`{text}` is not a whole number from {min} to {max}");
    let value: T = clean.parse().map_err(|_| wrong())?;
    if value < min || value > max { Err(wrong()) } else { Ok(value) }
}

/// A number of bytes: `1048576`, `512KiB`, `8MiB`, `4GiB`, `1.5GB`, `2TiB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("`{text}` is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    };
    let clean = text.trim();
    let split = clean.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(clean.len());
    let (digits, unit) = clean.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let value: f64 = digits.parse().map_err(|_| wrong())?;
    let total = value * factor as f64;
    if total.is_finite() && (1.0..=1e18).contains(&total) { Ok(total as u64) } else { Err(wrong()) }
}

/// A duration: `300` or `3e2` (seconds), `300s`, `50ms`, `5m`, `1h`, `1h30m`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!("`{text}` is not a duration; write seconds, or numbers with h, m, s or ms, such as `1h30m`")
    };
    let clean = text.trim();
    let total = clean.parse().ok().or_else(|| sum_of_units(clean)).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(total).map_err(|_| wrong())
}

/// The seconds of numbers with units, each unit smaller than the one before.
fn sum_of_units(text: &str) -> Option<f64> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (mut rest, mut total, mut before) = (text, 0.0, f64::INFINITY);
    while !rest.is_empty() {
        let (number, more) = rest.split_at(rest.find(|c: char| !is_number(c))?);
        let (unit, next) = more.split_at(more.find(is_number).unwrap_or(more.len()));
        let factor = match unit.trim() {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        if factor >= before {
            return None;
        }
        total += number.parse::<f64>().ok()? * factor;
        (rest, before) = (next, factor);
    }
    (!text.is_empty()).then_some(total)
}

/// A time limit: neither zero nor practically infinite.
pub fn time_limit(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    let range = Duration::from_millis(1)..=Duration::from_secs(7 * 86_400);
    if range.contains(&time) { Ok(time) } else { Err(format!("`{text}` is not from 1 ms to 7 days")) }
}

/// A share: above 0 and at most 1.
pub fn share(text: &str) -> Result<f32, String> {
    match text.trim().parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err(format!("`{text}` is not a number above 0 and at most 1")),
    }
}

/// `on` or `off`, or a common synonym.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => Err(format!("`{text}` is neither `on` nor `off`")),
    }
}

/// One of a few words, in any case.
pub fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text.trim()));
    found.map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("`{text}` is not one of {}", names.join(", "))
    })
}

/// `HOST:PORT` or `[IPV6]:PORT`. `http://HOST:PORT` is accepted as well: clients of the admin plane read the
/// same variable.
pub fn address(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{text}` is not HOST:PORT, for example `127.0.0.1:8001`");
    let plain = text.trim();
    let plain = plain.strip_prefix("http://").map_or(plain, |rest| rest.strip_suffix('/').unwrap_or(rest));
    let (host, port) = plain.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    Ok((host.to_owned(), port.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_take_units() {
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        assert_eq!(bytes("1.5k"), Ok(1_536));
        assert_eq!(bytes("77"), Ok(77));
        assert_eq!(seconds("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(seconds("5m"), Ok(Duration::from_secs(300)));
        for wrong in ["", "-1", "1 parsec", "1e400", "GiB", "0"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for (same, is) in [
            ("1h30m", 5_400.0),
            ("1h 30m", 5_400.0),
            ("1.5 h", 5_400.0),
            ("1e3", 1_000.0),
            ("1m2s3ms", 62.003),
        ] {
            assert_eq!(seconds(same), Ok(Duration::from_secs_f64(is)), "{same}");
        }
        for wrong in ["", "-3", "h", "1h30", "30m1h", "1m1m", "1h-30m", "1d", "inf", "nan", "1e400"] {
            let why = seconds(wrong).unwrap_err();
            assert!(why.ends_with("such as `1h30m`"), "{wrong}: {why}");
        }
        assert_eq!(bytes("1.5TiB"), Ok(3 << 39));
        assert!(bytes("1PiB").unwrap_err().contains("TiB"));
    }

    #[test]
    fn addresses_need_host_and_port() {
        assert_eq!(address("[::1]:0"), Ok(("::1".to_owned(), 0)));
        for same in ["box:8001", "http://box:8001", "http://box:8001/", " box:8001\n"] {
            assert_eq!(address(same), Ok(("box".to_owned(), 8001)), "{same}");
        }
        for wrong in [
            "8001",
            ":8001",
            "localhost",
            "localhost:99999",
            "https://box:8001",
            "http://box",
            "box:8001/admin",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_name_their_bounds() {
        assert_eq!(number("2_048", 1u32, 4096), Ok(2048));
        assert_eq!(number::<u32>("x", 1, 9).unwrap_err(), "`x` is not a whole number from 1 to 9");
        assert!(number::<u32>("-1", 1, 9).is_err());
    }
}
