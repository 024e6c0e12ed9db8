//! Checkpoints of the Hugging Face hub. The local cache has the layout of the hub's own tools, so that each
//! finds what the other downloaded. Only missing files are requested from the network.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use infer_model::{ModelErrorKind, Source};

use super::CheckpointError::{self, Failed, Wrong};
use super::download;

/// Where the hub and its cache are.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    /// `HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`; `None` without a home directory.
    pub cache: Option<PathBuf>,
    /// `HF_HUB_OFFLINE`: download nothing.
    pub offline: bool,
    /// `HF_ENDPOINT`, if it isn't the public hub.
    pub endpoint: Option<String>,
    /// `HF_TOKEN`, else the token that `hf auth login` stored.
    pub token: Option<String>,
    /// `SSL_CERT_FILE`, else `REQUESTS_CA_BUNDLE`: PEM file of the certificates to trust, for mirrors and
    /// proxies. Without it, Mozilla's are trusted.
    pub certificates: Option<PathBuf>,
    /// How long to wait for the hub.
    pub patience: Patience,
}

/// How long to wait for a hub.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Limit for the connection, the response, and each gap between bytes.
    pub silence: Duration,
    /// Pause before the first retry; it doubles with each further one.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { silence: Duration::from_secs(30), pause: Duration::from_secs(1) }
    }
}

impl Hub {
    /// The hub that the environment names.
    pub fn from_env() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| path("HOME").map(|home| home.join(".cache").join("huggingface")));
        let kept = home.as_ref().and_then(|home| std::fs::read_to_string(home.join("token")).ok());
        let offline = text("HF_HUB_OFFLINE").unwrap_or_default().to_ascii_lowercase();
        Self {
            cache: path("HF_HUB_CACHE").or_else(|| home.map(|home| home.join("hub"))),
            offline: ["1", "true", "yes", "on"].contains(&offline.as_str()),
            endpoint: text("HF_ENDPOINT"),
            certificates: path("SSL_CERT_FILE").or_else(|| path("REQUESTS_CA_BUNDLE")),
            token: text("HF_TOKEN").or(kept).map(|token| token.trim().to_owned()).filter(|t| !t.is_empty()),
            patience: Patience::default(),
        }
    }

    /// The directory of a repository; downloads missing files first.
    pub(super) fn directory(
        &self,
        org: &str,
        name: &str,
        content: Content,
    ) -> Result<PathBuf, CheckpointError> {
        let homeless = || Wrong("no home directory; set HF_HUB_CACHE".to_owned());
        let cache = self.cache.as_deref().ok_or_else(homeless)?;
        let repository = cache.join(folder(org, name));
        let missing = match snapshot(&repository) {
            Some(snapshot) => match missing_file(&snapshot, content)? {
                None => return Ok(snapshot),
                Some(file) => format!("{file} is missing in {}", snapshot.display()),
            },
            None => format!("it is not in {}", cache.display()),
        };
        if self.offline {
            return Err(Wrong(format!(
                "{org}/{name} is not a directory, {missing}, and HF_HUB_OFFLINE is set; unset it, or download the \
                 {} first (`hf download {org}/{name}`)",
                content.noun()
            )));
        }
        download::fetch(self, cache, org, name, content)
            .map_err(|error| error.map(|why| format!("{org}/{name} is not a directory, {missing}; {why}")))?;
        if let Some(snapshot) = snapshot(&repository)
            && missing_file(&snapshot, content)?.is_none()
        {
            return Ok(snapshot);
        }
        Err(Failed(format!("{org}/{name} was downloaded, but is incomplete; try again")))
    }
}

/// What a repository is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A model.
    Checkpoint,
    /// An adapter, as PEFT saves it.
    Adapter,
}

impl Content {
    fn noun(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Adapter => "adapter",
        }
    }
}

/// Name of a repository's directory in the cache.
pub(super) fn folder(org: &str, name: &str) -> String {
    format!("models--{org}--{name}")
}

/// The snapshot that `main` names.
fn snapshot(repository: &Path) -> Option<PathBuf> {
    let revision = std::fs::read_to_string(repository.join("refs").join("main")).ok()?;
    let revision = revision.trim();
    let plain = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let snapshot = repository.join("snapshots").join(revision);
    (plain && snapshot.is_dir()).then_some(snapshot)
}

/// A file that is needed and missing, for example after an interrupted download.
fn missing_file(snapshot: &Path, content: Content) -> Result<Option<String>, CheckpointError> {
    let there = |name: &str| snapshot.join(name).is_file();
    if content == Content::Adapter {
        return Ok(ADAPTER_FILES.into_iter().find(|name| !there(name)).map(str::to_owned));
    }
    let mut needed = vec!["config.json".to_owned(), "tokenizer.json".to_owned()];
    if !there(WEIGHTS) {
        match read_index(snapshot)? {
            Some(bytes) => needed.extend(shards(&bytes).unwrap_or_default()),
            None => needed.push(WEIGHTS.to_owned()),
        }
    }
    Ok(needed.into_iter().find(|name| !there(name)))
}

/// The index of a snapshot, if it has one; an error if that can't be read or is too large.
pub(super) fn read_index(snapshot: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    let read = Source::Directory(snapshot.to_owned()).read(INDEX).map_err(|error| match error.kind {
        ModelErrorKind::Io => Failed(error.message),
        _ => Wrong(error.message),
    })?;
    Ok(read.map(Cow::into_owned))
}

pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The files of an adapter.
pub(super) const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The files that an index names, all at the top level of the repository.
pub(super) fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| format!("{INDEX}: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    // The log shows them as they are: a line break could fake a line of the host's.
    let is_plain = |name: &str| {
        !name.is_empty()
            && !name.starts_with('.')
            && !name.contains(|c: char| matches!(c, '/' | '\\') || c.is_control())
    };
    match shards.iter().find(|name| !is_plain(name)) {
        Some(name) => Err(format!("{INDEX} names {name:?}, which is not a plain file name")),
        None => Ok(shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_names_plain_files_only() {
        let of = |name: &str| {
            let index = serde_json::json!({"weight_map": {"a": "model-1.safetensors", "b": name}});
            shards(index.to_string().as_bytes()).map(|shards| shards.len())
        };
        for (name, found) in [("model-1.safetensors", 1), ("model 2.safetensors", 2), ("mod\u{e8}le", 2)] {
            assert_eq!(of(name), Ok(found), "{name}");
        }
        for name in
            ["", "..", ".hidden", "a/b", "../a", "a\\b", "a\n2026 ERROR b", "a\u{1b}[2J", "a\u{9b}2J", "a\0"]
        {
            let why = of(name).unwrap_err();
            assert!(why.ends_with("is not a plain file name") && !why.contains(char::is_control), "{why}");
        }
    }
}
