//! A policy's configuration: JSON in, a validated value or a message that names the key.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The schema of a policy that takes no configuration.
pub const EMPTY_SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "properties": {}}"#;

/// The configuration of a policy that has none; still refuses unknown keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoConfig {}

/// Reads a configuration. `{}` and an empty text are the defaults.
pub fn parse_config<C: DeserializeOwned + Default>(json: &str) -> Result<C, String> {
    if json.trim().is_empty() {
        return Ok(C::default());
    }
    serde_json::from_str(json).map_err(|error| format!("configuration: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Example {
        size: u32,
    }

    #[test]
    fn nothing_and_an_empty_object_are_the_defaults() {
        for json in ["", "  \n", "{}"] {
            assert_eq!(parse_config::<Example>(json), Ok(Example { size: 0 }), "{json:?}");
        }
        assert_eq!(parse_config(r#"{"size": 3}"#), Ok(Example { size: 3 }));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (json, named) in [
            (r#"{"sise": 3}"#, "sise"),
            (r#"{"size": "three"}"#, "three"),
            (r#"{"size": -1}"#, "-1"),
            ("[", "EOF"),
        ] {
            let message = parse_config::<Example>(json).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
        assert!(parse_config::<NoConfig>(r#"{"size": 3}"#).unwrap_err().contains("size"));
    }
}
