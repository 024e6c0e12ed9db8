//! Local files: lists the folder entries that can be part of a component's path, and expands `~`.

use std::path::{Path, PathBuf};

/// Most entries read from a folder.
const MAX_ENTRIES: usize = 20_000;
/// Most names returned for a folder.
const MAX_NAMES: usize = 2_000;

/// Returns a typed path with a leading `~` replaced by the home directory.
#[must_use]
pub fn expanded(typed: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (typed.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            Path::new(&home).join(rest.trim_start_matches('/'))
        }
        _ => typed.into(),
    }
}

/// Returns the subfolders (with a trailing `/`) and components of a folder, sorted. Reads on a thread that
/// may block.
///
/// # Errors
/// A message for the operator if the folder can't be read.
pub async fn list(folder: &str) -> Result<Vec<String>, String> {
    let path = if folder.is_empty() { ".".into() } else { expanded(folder) };
    let failed = format!("can't list {}", path.display());
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    match read {
        Ok(Ok(names)) => Ok(names),
        Ok(Err(error)) => Err(format!("{failed}: {error}")),
        Err(_) => Err(failed),
    }
}

fn read(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Follows links, unlike the entry's own file type.
        let is_folder = entry.path().is_dir();
        let is_component = Path::new(&name).extension().is_some_and(|e| e.eq_ignore_ascii_case("wasm"));
        if is_folder {
            names.push(format!("{name}/"));
        } else if is_component {
            names.push(name);
        }
    }
    names.sort_unstable();
    names.truncate(MAX_NAMES);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_lists_only_folders_and_components() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("target")).unwrap();
        for name in ["b.wasm", "a.WASM", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let path = folder.path().to_str().unwrap();
        assert_eq!(list(path).await.unwrap(), ["a.WASM", "b.wasm", "target/"]);
        let missing = format!("{path}/nothing/");
        assert!(list(&missing).await.unwrap_err().starts_with(&format!("can't list {missing}: ")));
        assert_eq!(expanded("a/~/b"), Path::new("a/~/b"));
        assert_ne!(expanded("~/b"), Path::new("~/b"));
    }
}
