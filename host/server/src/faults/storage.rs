//! The directory: private to this user, bounded, each file whole or not there. Hosts of one user share it, so what
//! may be another one's work in progress is left alone.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Fault files kept; the oldest goes first.
const MAX_FILES: usize = 64;
/// Leading digits of a digest in a fault file's name.
const SHORT: usize = 12;
/// No host takes so long from a component to the fault file that names it.
const ABANDONED: Duration = Duration::from_secs(3_600);

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

    /// Writes a file that is named after what it holds, unless it is there: then it is wanted again.
    pub fn keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let there = OpenOptions::new().write(true).open(self.dir.join(name));
        match there.and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Ok(()),
            Err(_) => self.put(name, content),
        }
    }

    /// Writes a file, in place of one that has its name.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.dir.join(name);
        // Hosts in containers have the same process id.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let temporary = self.dir.join(format!("{name}.{}-{now}.tmp", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(content).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Drops the oldest fault files beyond the bound, and, once they are abandoned, components that no fault file names
    /// and what a host that was killed left half written. Returns the names of the fault files that are gone.
    pub fn tidy(&self) -> io::Result<Vec<String>> {
        let (mut faults, mut components, mut leftovers) = (Vec::new(), Vec::new(), Vec::new());
        let abandoned = SystemTime::now() - ABANDONED;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Another host may have removed it since.
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
        for name in gone.iter().chain(&components).chain(&leftovers) {
            self.remove(name)?;
        }
        Ok(gone)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// A digest as it stands in a fault file's name.
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
    fn the_oldest_faults_go_and_their_components_with_them() {
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
        let gone = storage.tidy().unwrap();
        assert_eq!((gone.len(), &*gone[0]), (3, "scheduler-000000000000-schedule-trap.json"));
        assert_eq!(names(&storage).len(), 2 * MAX_FILES);
        let entries = fs::read_dir(&storage.dir).unwrap();
        assert!(entries.into_iter().all(|e| e.unwrap().metadata().unwrap().mode() & 0o777 == 0o600));
    }

    #[test]
    fn what_another_host_may_be_writing_stays_until_it_is_abandoned() {
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
        assert!(storage.tidy().unwrap().is_empty());
        assert_eq!(names(&storage), [new, wanted_again, "half.json.1-1.tmp"]);
    }

    #[test]
    fn a_directory_that_others_can_look_into_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Storage::open(dir.path()).is_err());
    }
}
