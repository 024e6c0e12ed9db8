//! The log on stderr; stdout belongs to the ready line and to results.

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, Environment, near};

/// What a filter may say besides targets.
const LEVELS: &[&str] = &["trace", "debug", "info", "warn", "error", "off"];

/// Starts logging at `INFER_LOG`'s filter, else the `usual` one. `INFER_LOG_FORMAT=json` writes one object a line.
pub fn start(usual: &str) -> Result<(), ConfigError> {
    let environment = Environment::of_process()?;
    let filter = filter(environment.get("INFER_LOG").unwrap_or(usual))?;
    let json = is_json(environment.get("INFER_LOG_FORMAT").unwrap_or("text"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, in a test say, keeps the first.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
    };
    Ok(())
}

fn filter(text: &str) -> Result<EnvFilter, ConfigError> {
    let advice = "give a level (`info`, `debug`), or levels of parts (`infer_server=debug,info`)";
    // A word that is no level would be taken for a part, and all others fall silent.
    let misspelt =
        |word: &&str| !LEVELS.contains(&word.to_ascii_lowercase().as_str()) && near(word, LEVELS).is_some();
    if let Some(word) = text.split(',').map(str::trim).find(misspelt) {
        return Err(ConfigError(format!("INFER_LOG: `{word}` is no level; {advice}")));
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
    fn what_is_no_filter_is_refused() {
        for good in ["info", "WARN", "infer_server=debug", "hyper=off,info", "infer_server[{x}]=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["debgu", "infer_server=debgu", "info,infer_server=loud", "wran,hyper=info"] {
            assert!(filter(bad).is_err_and(|error| error.to_string().starts_with("INFER_LOG: ")), "{bad}");
        }
        assert!(is_json("JSON").unwrap() && !is_json("text").unwrap() && is_json("yaml").is_err());
    }
}
