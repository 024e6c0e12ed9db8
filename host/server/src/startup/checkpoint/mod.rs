//! Finds the checkpoint that `--model` names: the embedded demo, a directory, a GGUF file, or a repository of
//! the Hugging Face hub, which is downloaded into the local cache if necessary.

mod download;
mod hub;
mod part;
mod site;

use std::path::{Path, PathBuf};

use infer_model::Source;

use self::CheckpointError::Wrong;
use self::hub::Content;
pub use self::hub::{Hub, Patience};

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The checkpoint doesn't exist, or access to it is denied; the message says what to do.
    #[error("--model: {0}")]
    Wrong(String),
    /// The network, the hub or the disk failed; another try may succeed.
    #[error("--model: {0}")]
    Failed(String),
}

impl CheckpointError {
    fn map(self, say: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Wrong(why) => Self::Wrong(say(why)),
            Self::Failed(why) => Self::Failed(say(why)),
        }
    }
}

/// A checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its files.
    pub source: Source<'static>,
    /// Names that requests may use; responses show the first.
    pub names: Vec<String>,
}

/// What `--model` names.
pub enum Found<'a> {
    /// A checkpoint on this machine.
    Local(Checkpoint),
    /// A repository of the hub: organization and name.
    Repository(&'a str, &'a str),
}

/// What names an adapter.
pub enum FoundAdapter<'a> {
    /// Its directory on this machine.
    Directory(PathBuf),
    /// A repository of the hub: organization and name.
    Repository(&'a str, &'a str),
}

/// Finds the checkpoint of `--model`; downloads one of `hub` that is not in its cache.
pub fn find(model: &str, hub: &Hub) -> Result<Checkpoint, CheckpointError> {
    match locate(model)? {
        Found::Local(checkpoint) => Ok(checkpoint),
        Found::Repository(org, name) => {
            let found = directory(&hub.directory(org, name, Content::Checkpoint)?, model)?;
            Ok(Checkpoint { names: vec![model.to_owned()], ..found })
        }
    }
}

/// Finds what `--model` names, without using the network.
pub fn locate(model: &str) -> Result<Found<'_>, CheckpointError> {
    if model == "demo" {
        let source = Source::Embedded(infer_demo::FILES);
        return Ok(Found::Local(Checkpoint { source, names: vec![model.to_owned()] }));
    }
    let path = Path::new(model);
    if path.is_dir() {
        return directory(path, model).map(Found::Local);
    }
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
        return gguf(path, model).map(Found::Local);
    }
    let repository = hub_name(model).map(|(org, name)| Found::Repository(org, name));
    repository.ok_or_else(|| {
        Wrong(format!(
            "{model} {}; give `demo`, a checkpoint directory, a .gguf file, or ORG/NAME on the Hugging Face hub",
            what_is_wrong(path)
        ))
    })
}

/// Finds the directory of an adapter; downloads one of `hub` that is not in its cache.
pub fn find_adapter(place: &str, hub: &Hub) -> Result<PathBuf, CheckpointError> {
    match locate_adapter(place)? {
        FoundAdapter::Directory(directory) => Ok(directory),
        FoundAdapter::Repository(org, name) => hub.directory(org, name, Content::Adapter),
    }
}

/// Finds an adapter without using the network.
pub fn locate_adapter(place: &str) -> Result<FoundAdapter<'_>, CheckpointError> {
    let path = Path::new(place);
    if path.is_dir() {
        let path = path.canonicalize().map_err(|e| Wrong(format!("can't open {place}: {e}")))?;
        return Ok(FoundAdapter::Directory(path));
    }
    let repository = hub_name(place).map(|(org, name)| FoundAdapter::Repository(org, name));
    repository.ok_or_else(|| {
        Wrong(format!(
            "{place} {}; give the directory of an adapter, or ORG/NAME on the Hugging Face hub",
            what_is_wrong(path)
        ))
    })
}

/// Why a path is not the directory that was expected.
fn what_is_wrong(path: &Path) -> &'static str {
    if path.exists() { "is not a directory" } else { "does not exist" }
}

fn directory(path: &Path, given: &str) -> Result<Checkpoint, CheckpointError> {
    if !path.join("config.json").is_file() {
        let files = std::fs::read_dir(path).into_iter().flatten().flatten();
        let gguf = files.map(|file| file.path()).find(|file| file.extension().is_some_and(|e| e == "gguf"));
        let hint = gguf.map_or_else(
            || "give the directory of a Hugging Face checkpoint".to_owned(),
            |file| format!("give the GGUF file itself: {}", file.display()),
        );
        return Err(Wrong(format!("{given} has no config.json; {hint}")));
    }
    let path = path.canonicalize().map_err(|e| Wrong(format!("can't open {given}: {e}")))?;
    Ok(Checkpoint { names: names(path.file_name(), given), source: Source::Directory(path) })
}

fn gguf(path: &Path, given: &str) -> Result<Checkpoint, CheckpointError> {
    // Links are not resolved: in the hub's cache their targets have names without the number of the part.
    let found = std::fs::metadata(path).and_then(|_| std::path::absolute(path));
    let path: PathBuf = found.map_err(|e| Wrong(format!("can't open {given}: {e}")))?;
    let source = Source::gguf(&path).map_err(|error| Wrong(error.to_string()))?;
    Ok(Checkpoint { names: names(path.file_stem(), given), source })
}

/// The short name, and the name as given.
fn names(short: Option<&std::ffi::OsStr>, given: &str) -> Vec<String> {
    let mut names: Vec<String> = short.map(|name| name.to_string_lossy().into_owned()).into_iter().collect();
    names.push(given.to_owned());
    names
}

/// Splits `ORG/NAME`, if both are valid.
fn hub_name(model: &str) -> Option<(&str, &str)> {
    let (org, name) = model.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    (plain(org) && plain(name)).then_some((org, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_models_are_refused_with_a_hint() {
        let empty = tempfile::tempdir().unwrap();
        let hub = Hub { cache: Some(empty.path().join("hub")), offline: true, ..Hub::default() };
        std::fs::write(empty.path().join("junk.gguf"), "junk").unwrap();
        let junk = empty.path().join("junk.gguf").display().to_string();
        let cases = [
            ("x.gguf", "can't open x.gguf"),
            (junk.as_str(), "start with GGUF"),
            ("/nonexistent/dir", "/nonexistent/dir does not exist; give `demo`"),
            ("/dev/null", "/dev/null is not a directory"),
            ("no-such-org/no-such-model", "HF_HUB_OFFLINE"),
            ("../../etc/passwd", "does not exist"),
            (empty.path().to_str().unwrap(), "give the GGUF file itself"),
        ];
        for (model, part) in cases {
            let error = find(model, &hub).unwrap_err().to_string();
            assert!(error.contains("--model") && error.contains(part), "{model}: {error}");
        }
        let homeless = Hub::default();
        assert!(find("a/b", &homeless).unwrap_err().to_string().contains("HF_HUB_CACHE"));
    }
}
