//! Which checkpoint `--model` means: the embedded demo, a directory, or a name in the local hub cache.
//! Nothing is downloaded.

use std::path::{Path, PathBuf};

use infer_model::Source;

/// A checkpoint that was found.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its files.
    pub source: Source<'static>,
    /// Names that requests may give; the first is shown.
    pub names: Vec<String>,
}

/// Finds what `--model` means. The error says what would be right.
pub fn find(model: &str) -> Result<Checkpoint, String> {
    if model == "demo" {
        return Ok(Checkpoint { source: Source::Embedded(infer_demo::FILES), names: vec![model.to_owned()] });
    }
    let path = Path::new(model);
    if path.is_dir() {
        return directory(path, model);
    }
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
        return Err(format!(
            "--model: {model}: GGUF files are not supported yet; give a directory with config.json and safetensors"
        ));
    }
    if let Some((org, name)) = hub_name(model) {
        return in_hub_cache(org, name);
    }
    Err(format!(
        "--model: {model} is no directory; give `demo`, a checkpoint directory, or ORG/NAME from the local \
         Hugging Face cache"
    ))
}

fn directory(path: &Path, given: &str) -> Result<Checkpoint, String> {
    if !path.join("config.json").is_file() {
        return Err(format!(
            "--model: {given} has no config.json; give the directory of a Hugging Face checkpoint"
        ));
    }
    let path = path.canonicalize().map_err(|e| format!("--model: can't open {given}: {e}"))?;
    let mut names: Vec<String> =
        path.file_name().map(|n| n.to_string_lossy().into_owned()).into_iter().collect();
    names.push(given.to_owned());
    Ok(Checkpoint { source: Source::Directory(path), names })
}

/// `ORG/NAME`, both plain.
fn hub_name(model: &str) -> Option<(&str, &str)> {
    let (org, name) = model.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    (plain(org) && plain(name)).then_some((org, name))
}

fn in_hub_cache(org: &str, name: &str) -> Result<Checkpoint, String> {
    let hub = hub_cache().ok_or("--model: no home directory; set HF_HUB_CACHE")?;
    let repository = hub.join(format!("models--{org}--{name}"));
    let snapshots = repository.join("snapshots");
    let missing = || {
        format!(
            "--model: {org}/{name} is neither a directory nor in {}; fetch it first \
             (`hf download {org}/{name}`), nothing is downloaded here",
            hub.display()
        )
    };
    let revision = std::fs::read_to_string(repository.join("refs").join("main")).map_err(|_| missing())?;
    let snapshot = snapshots.join(revision.trim());
    if !revision.trim().bytes().all(|b| b.is_ascii_alphanumeric()) || !snapshot.is_dir() {
        return Err(missing());
    }
    let found = directory(&snapshot, &format!("{org}/{name}"))?;
    Ok(Checkpoint { names: vec![format!("{org}/{name}")], ..found })
}

/// `HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`.
fn hub_cache() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    from("HF_HUB_CACHE")
        .or_else(|| from("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| from("HOME").map(|home| home.join(".cache").join("huggingface").join("hub")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_is_refused_with_what_would_be_right() {
        let cases = [
            ("x.gguf", "GGUF"),
            ("/nonexistent/dir", "is no directory"),
            ("no-such-org/no-such-model", "fetch it first"),
            ("../../etc/passwd", "is no directory"),
        ];
        for (model, part) in cases {
            let error = find(model).unwrap_err();
            assert!(error.contains("--model") && error.contains(part), "{model}: {error}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(find(empty.path().to_str().unwrap()).unwrap_err().contains("config.json"));
    }
}
