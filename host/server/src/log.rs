//! The log on stderr; stdout is for the ready line and for results.

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, Environment};

/// The levels of a filter.
const LEVELS: &[&str] = &["trace", "debug", "info", "warn", "error", "off"];

/// Starts logging with the filter of `INFER_LOG`, or with `usual`. `INFER_LOG_FORMAT=json` writes one JSON
/// object a line.
pub fn start(usual: &str) -> Result<(), ConfigError> {
    let environment = Environment::of_process();
    let filter = filter(environment.get("INFER_LOG")?.unwrap_or(usual))?;
    let json = is_json(environment.get("INFER_LOG_FORMAT")?.unwrap_or("text"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, for example in a test, keeps the first.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
    };
    Ok(())
}

fn filter(text: &str) -> Result<EnvFilter, ConfigError> {
    let advice = "give a level (`info`, `debug`), or levels of targets (`infer_server=debug,hyper=info`)";
    // `EnvFilter` takes any other word for the name of a target, and silences everything else.
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let is_clear = |word: &&str| {
        word.is_empty() || word.contains(['=', '[']) || word.starts_with("infer") || is_level(word)
    };
    if let Some(word) = text.split(',').map(str::trim).find(|word| !is_clear(word)) {
        return Err(ConfigError(format!("INFER_LOG: `{word}` is not a level; {advice}")));
    }
    EnvFilter::try_new(text).map_err(|error| ConfigError(format!("INFER_LOG: `{text}`: {error}; {advice}")))
}

fn is_json(text: &str) -> Result<bool, ConfigError> {
    match text.to_ascii_lowercase().as_str() {
        "json" => Ok(true),
        "text" => Ok(false),
        _ => Err(ConfigError(format!("INFER_LOG_FORMAT: `{text}` is neither `text` nor `json`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_filters_are_refused() {
        for good in [
            "info",
            "WARN",
            "infer_server=debug",
            "hyper=off,info",
            "infer_server[{x}]=trace",
            "infer",
            "infer_server,warn",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in [
            "debgu",
            "verbose",
            "infer_server=debgu",
            "info,infer_server=loud",
            "wran,hyper=info",
            "info,hyper",
        ] {
            assert!(filter(bad).is_err_and(|error| error.to_string().starts_with("INFER_LOG: ")), "{bad}");
        }
        assert!(is_json("JSON").unwrap() && !is_json("text").unwrap() && is_json("yaml").is_err());
    }
}
