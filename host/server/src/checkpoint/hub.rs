//! Checkpoints of the Hugging Face hub: its local cache first, in the layout that its own tools use, so that what
//! one downloaded the other finds. The network is asked only for what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::CheckpointError::{self, Failed, Wrong};
use super::download;

/// Where the hub and its cache are.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    /// `HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`; none without a home.
    pub cache: Option<PathBuf>,
    /// `HF_HUB_OFFLINE`: nothing is downloaded.
    pub offline: bool,
    /// `HF_ENDPOINT`, where it isn't the public hub.
    pub endpoint: Option<String>,
    /// `HF_TOKEN`, else the file that `hf auth login` wrote.
    pub token: Option<String>,
    /// For how long it is waited for.
    pub patience: Patience,
}

/// How long a hub is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For its connection, its answer, and each byte after another.
    pub silence: Duration,
    /// Before what failed is tried again; longer each time.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { silence: Duration::from_secs(30), pause: Duration::from_secs(1) }
    }
}

impl Hub {
    /// As the environment says.
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
            token: text("HF_TOKEN").or(kept).map(|token| token.trim().to_owned()).filter(|t| !t.is_empty()),
            patience: Patience::default(),
        }
    }

    /// The directory of a checkpoint, whose missing files are downloaded first.
    pub(super) fn checkpoint(&self, org: &str, name: &str) -> Result<PathBuf, CheckpointError> {
        let homeless = || Wrong("no home directory; set HF_HUB_CACHE".to_owned());
        let cache = self.cache.as_deref().ok_or_else(homeless)?;
        let repository = cache.join(folder(org, name));
        let missing = match snapshot(&repository) {
            Some(snapshot) => match missing_file(&snapshot) {
                None => return Ok(snapshot),
                Some(file) => format!("{file} is missing in {}", snapshot.display()),
            },
            None => format!("it is not in {}", cache.display()),
        };
        if self.offline {
            return Err(Wrong(format!(
                "{org}/{name} is no directory, {missing}, and HF_HUB_OFFLINE is set; unset it, or fetch the \
                 checkpoint first (`hf download {org}/{name}`)"
            )));
        }
        download::fetch(self, cache, org, name)
            .map_err(|error| error.map(|why| format!("{org}/{name} is no directory, {missing}; {why}")))?;
        let fetched = snapshot(&repository).filter(|snapshot| missing_file(snapshot).is_none());
        fetched.ok_or_else(|| Failed(format!("{org}/{name} was downloaded, but isn't complete; try again")))
    }
}

/// A repository's folder in the cache.
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

/// A file without which the checkpoint can't be served: a download may have been interrupted.
fn missing_file(snapshot: &Path) -> Option<String> {
    let there = |name: &str| snapshot.join(name).is_file();
    let mut needed = vec!["config.json".to_owned(), "tokenizer.json".to_owned()];
    if !there(WEIGHTS) {
        match std::fs::read(snapshot.join(INDEX)) {
            Ok(bytes) => needed.extend(shards(&bytes).unwrap_or_default()),
            Err(_) => needed.push(WEIGHTS.to_owned()),
        }
    }
    needed.into_iter().find(|name| !there(name))
}

pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const WEIGHTS: &str = "model.safetensors";

/// The files that an index names, each directly in the repository.
pub(super) fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|error| format!("{INDEX}: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|name| name.is_empty() || name.starts_with('.') || name.contains(['/', '\\'])) {
        Some(name) => Err(format!("{INDEX} names {name:?}, which is no plain file name")),
        None => Ok(shards),
    }
}
