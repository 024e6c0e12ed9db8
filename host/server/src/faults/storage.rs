//! The directory: private to this user, bounded, each file whole or not there.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Fault files kept; the oldest goes first.
const MAX_FILES: usize = 64;
/// Leading digits of a digest in a fault file's name.
const SHORT: usize = 12;

pub(super) struct Storage {
    dir: PathBuf,
}

impl Storage {
    /// Makes the directory where there is none. Refuses one that others can look into.
    pub fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let metadata = fs::symlink_metadata(dir)?;
        let ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if metadata.is_dir() && ours && metadata.mode() & 0o077 == 0 {
            Ok(Self { dir: dir.to_owned() })
        } else {
            Err(io::Error::other("must be a real directory of this user that nobody else can access"))
        }
    }

    /// Writes a file, unless it is there.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.dir.join(name);
        if path.exists() {
            return Ok(());
        }
        let temporary = self.dir.join(format!("{name}.{}.tmp", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(content).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Drops the oldest fault files beyond the bound, components that no fault file names, and what a host
    /// that was killed left half written.
    pub fn tidy(&self) -> io::Result<()> {
        let mut faults = Vec::new();
        let mut components = Vec::new();
        let own = format!(".{}.tmp", std::process::id());
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".json") {
                let modified = entry.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                faults.push((modified, name));
            } else if name.ends_with(".wasm") {
                components.push(name);
            } else if name.ends_with(".tmp") && !name.ends_with(&own) {
                fs::remove_file(self.dir.join(name))?;
            }
        }
        faults.sort();
        let excess = faults.len().saturating_sub(MAX_FILES);
        for (_, name) in faults.drain(..excess) {
            fs::remove_file(self.dir.join(name))?;
        }
        for component in components {
            if !faults.iter().any(|(_, fault)| fault.contains(short(&component))) {
                fs::remove_file(self.dir.join(component))?;
            }
        }
        Ok(())
    }
}

/// A digest as it stands in a fault file's name.
pub(super) fn short(digest: &str) -> &str {
    digest.get(..SHORT).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_faults_go_and_their_components_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("faults")).unwrap();
        for at in 0..MAX_FILES + 3 {
            let digest = format!("{at:064}").chars().rev().collect::<String>();
            storage.put(&format!("{digest}.wasm"), b"component").unwrap();
            let name = format!("scheduler-{}-schedule-trap.json", short(&digest));
            storage.put(&name, b"{}").unwrap();
            let file = OpenOptions::new().write(true).open(storage.dir.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at as u64)).unwrap();
        }
        storage.tidy().unwrap();
        let names: Vec<_> = fs::read_dir(&storage.dir).unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(names.len(), 2 * MAX_FILES);
        assert!(names.iter().all(|e| e.metadata().unwrap().mode() & 0o777 == 0o600));
    }

    #[test]
    fn what_was_left_half_written_goes_and_what_is_being_written_stays() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("faults")).unwrap();
        let own = format!("b.json.{}.tmp", std::process::id());
        for name in ["a.json.1.tmp", &own] {
            fs::write(storage.dir.join(name), b"{").unwrap();
        }
        storage.tidy().unwrap();
        let names: Vec<_> = fs::read_dir(&storage.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [&*own]);
    }

    #[test]
    fn a_directory_that_others_can_look_into_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Storage::open(dir.path()).is_err());
    }
}
