//! What a swap brings in: names or a component, with a configuration, read and checked before a host is asked.

use std::path::Path;

use infer_api::unique;
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::policies::is_component_path;

/// Longest configuration beside a component: both are one request, with the configuration in its request
/// line.
const MAX_CONFIG_BYTES: usize = 8 << 10;

/// A policy as a command line names it.
pub(super) struct Order {
    pub source: Source,
    /// A JSON object.
    pub config: Option<Value>,
}

/// Where a host has the policy from.
pub(super) enum Source {
    /// A name that it knows, or several, separated by commas.
    Names(String),
    /// The bytes of a component.
    Component(Vec<u8>),
}

impl Order {
    /// Reads the files that are named.
    pub fn read(policy: &str, config: Option<&str>) -> Result<Self, Failure> {
        let config = config.map(read_config).transpose()?;
        if (policy.contains('/') || [".", ".."].contains(&policy)) && !is_component_path(policy) {
            let path = Path::new(policy);
            let why = if path.is_file() {
                "is no component, whose name ends in .wasm"
            } else if path.is_dir() {
                "is a directory; `infer policy build` makes a component, whose name ends in .wasm, of a policy's crate"
            } else {
                "is neither a component, whose name ends in .wasm, nor the name of a policy"
            };
            return Err(Failure::Usage(format!("{policy} {why}")));
        }
        if !is_component_path(policy) {
            return Ok(Self { source: Source::Names(policy.to_owned()), config });
        }
        let bytes = read_component(policy)?;
        let config_bytes = config.as_ref().map_or(0, |config| config.to_string().len());
        if config_bytes > MAX_CONFIG_BYTES {
            return Err(Failure::Usage(format!(
                "--config: {config_bytes} bytes are too long beside a component, which allows {MAX_CONFIG_BYTES}; swap \
                 the component in by --mode shadow without a configuration, then by its name with this one",
            )));
        }
        Ok(Self { source: Source::Component(bytes), config })
    }

    /// The content type and the body of the request. A component's configuration goes into the query.
    pub fn body(&self, query: &mut Vec<(&'static str, String)>) -> (&'static str, Vec<u8>) {
        match &self.source {
            Source::Component(bytes) => {
                query.extend(self.config.as_ref().map(|config| ("config", config.to_string())));
                ("application/wasm", bytes.clone())
            }
            Source::Names(names) => {
                let body = json!({"name": names, "config": self.config});
                ("application/json", body.to_string().into_bytes())
            }
        }
    }
}

fn read_component(path: &str) -> Result<Vec<u8>, Failure> {
    let unreadable = |error| {
        let mut message = format!("can't read the component {path}: {error}");
        if path.contains(',') {
            message += "; a list takes names: swap each component in by --mode shadow first, then name it in the list";
        }
        Failure::Usage(message)
    };
    std::fs::read(path).map_err(unreadable)
}

/// Reads a JSON object, given inline or as the path of a file.
pub(super) fn read_config(text: &str) -> Result<Value, Failure> {
    let inline = text.trim_start().starts_with('{');
    let json = if inline {
        text.to_owned()
    } else {
        std::fs::read_to_string(text).map_err(|e| {
            Failure::Usage(format!("--config: {text} is neither a JSON object nor a readable file: {e}"))
        })?
    };
    let value = unique::parse(json.as_bytes())
        .map_err(|e| Failure::Usage(format!("--config: not valid JSON: {e}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Failure::Usage("--config: expected a JSON object".to_owned()))
    }
}
