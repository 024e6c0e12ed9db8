//! The directory of fault files: private to this user, bounded, every file complete. Hosts of one user share it, so
//! files that another host may still be writing are left alone.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Fault files kept; the oldest are removed.
const MAX_FILES: usize = 64;
/// Leading digits of a component's digest in a fault file's name.
const SHORT: usize = 12;
/// Age at which a component without a fault file, or a temporary file, is abandoned. No host takes that long.
const ABANDONED: Duration = Duration::from_secs(3_600);

pub(super) struct Storage {
    dir: PathBuf,
}

impl Storage {
    /// Opens the directory, or creates it. Fails if other users can read it.
    pub fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        check(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Whether a file is there.
    pub fn has(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }

    /// Writes a file that is named after its content. If it exists, renews its age instead.
    pub fn keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let there = OpenOptions::new().write(true).open(self.dir.join(name));
        match there.and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Ok(()),
            Err(_) => self.put(name, content),
        }
    }

    /// Writes or replaces a file.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.dir.join(name);
        // Process ids are not unique: hosts in containers often have the same one.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let temporary = self.dir.join(format!("{name}.{}-{now}.tmp", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(content).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Removes the oldest fault files beyond the bound and, once they are abandoned, components that no fault file
    /// names and temporary files of hosts that were killed.
    pub fn tidy(&self) -> io::Result<()> {
        let (mut faults, mut components, mut leftovers) = (Vec::new(), Vec::new(), Vec::new());
        let abandoned = SystemTime::now() - ABANDONED;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Another host may have removed it.
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
            if name.ends_with(".json") {
                faults.push((modified, name));
            } else if name.ends_with(".wasm") && modified < abandoned {
                components.push(name);
            } else if name.ends_with(".tmp") && modified < abandoned {
                leftovers.push(name);
            }
        }
        faults.sort();
        let excess = faults.len().saturating_sub(MAX_FILES);
        let gone: Vec<String> = faults.drain(..excess).map(|(_, name)| name).collect();
        components.retain(|name| !faults.iter().any(|(_, fault)| fault.contains(short(name))));
        gone.iter().chain(&components).chain(&leftovers).try_for_each(|name| self.remove(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Fails if a directory is not there, or if other users can read it.
pub(super) fn check(dir: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(dir)?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && ours && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(
        "it must be a directory of this user that nobody else can read: mode 0700 (chmod 700)",
    ))
}

/// Shortens a digest for a fault file's name.
pub(super) fn short(digest: &str) -> &str {
    digest.get(..SHORT).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(storage: &Storage, name: &str, at: SystemTime) {
        OpenOptions::new().write(true).open(storage.dir.join(name)).unwrap().set_modified(at).unwrap();
    }

    fn names(storage: &Storage) -> Vec<String> {
        let names =
            fs::read_dir(&storage.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_faults_are_removed_with_their_components() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("faults")).unwrap();
        for at in 0..MAX_FILES + 3 {
            let digest = format!("{at:064}").chars().rev().collect::<String>();
            let component = format!("{digest}.wasm");
            storage.keep(&component, b"component").unwrap();
            let name = format!("scheduler-{}-schedule-trap.json", short(&digest));
            storage.put(&name, b"{}").unwrap();
            for name in [name, component] {
                age(&storage, &name, SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64));
            }
        }
        storage.tidy().unwrap();
        let names = names(&storage);
        assert_eq!(names.len(), 2 * MAX_FILES);
        for oldest in 0..3 {
            let fault = format!("scheduler-{oldest}{}-schedule-trap.json", "0".repeat(SHORT - 1));
            let component = format!("{oldest}{}.wasm", "0".repeat(63));
            assert!(!names.contains(&fault) && !names.contains(&component), "{fault} is left");
        }
        let entries = fs::read_dir(&storage.dir).unwrap();
        assert!(entries.into_iter().all(|e| e.unwrap().metadata().unwrap().mode() & 0o777 == 0o600));
    }

    #[test]
    fn files_that_another_host_may_be_writing_stay_until_they_are_abandoned() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("faults")).unwrap();
        let digests = ["a", "b", "c"].map(|digit| format!("{}.wasm", digit.repeat(64)));
        let [new, old, wanted_again] = &digests;
        for name in ["half.json.1-1.tmp", "old.json.1-2.tmp", new, old, wanted_again] {
            storage.put(name, b"{").unwrap();
        }
        for name in ["old.json.1-2.tmp", old, wanted_again] {
            age(&storage, name, SystemTime::now() - 2 * ABANDONED);
        }
        storage.keep(wanted_again, b"{").unwrap();
        storage.tidy().unwrap();
        assert_eq!(names(&storage), [new, wanted_again, "half.json.1-1.tmp"]);
    }

    #[test]
    fn a_directory_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Storage::open(dir.path()).is_err());
    }
}
