//! The directory of the state: private to this user, one host's at a time, every file in it complete.
//!
//! It holds the state file, components by their SHA-256, the file of what policies exported, and `unread/`, where files
//! go that this host can't read, the state file with its components. Nothing else is touched.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::exported::{self, Saved};
use super::format::{self, Document, is_digest};
use crate::cache_file::{Claim, Partial};

/// The state file.
const FILE: &str = "policies.json";
/// The file of what policies exported.
pub(super) const EXPORTED: &str = "exported.state";
/// The directory of a state file that could not be read.
const UNREAD: &str = "unread";
/// Most bytes of a component; the loader accepts no larger ones.
const MAX_COMPONENT_BYTES: u64 = 8 << 20;

/// An open directory.
pub(super) struct Store {
    dir: PathBuf,
    /// The directory as it was claimed; held open, so that no other one is taken for it.
    place: File,
    /// How many directories there have been before this one.
    places: u32,
    /// `None` if its lock could not be written.
    claim: Option<Claim>,
    /// A state file that can't be read is still in the way.
    in_the_way: bool,
    /// Components that are there as they should be.
    whole: RefCell<BTreeSet<String>>,
}

/// Why a directory can't be used.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Its place, its owner or its content is wrong.
    Wrong(String),
    /// Another host uses it.
    Busy,
}

/// Why a state file gives no state.
#[derive(Debug, PartialEq)]
pub(super) enum ReadError {
    /// It was read, and this host can make nothing of it.
    Unusable(String),
    /// The system didn't let it be read, which may pass.
    Unread(String),
}

/// Components by their SHA-256.
pub(super) type Components = BTreeMap<String, Arc<[u8]>>;

impl Store {
    /// Opens the directory, or creates it, and claims it. One that can't be written is opened all the same.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let creating = |error: io::Error| OpenError::Wrong(format!("it can't be created: {error}"));
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(creating)?;
        check(dir).map_err(OpenError::Wrong)?;
        let place =
            File::open(dir).map_err(|error| OpenError::Wrong(format!("it can't be opened: {error}")))?;
        let (dir, whole) = (dir.to_owned(), RefCell::default());
        let mut store = Self { dir, place, places: 0, claim: None, in_the_way: false, whole };
        match store.claim() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Busy),
            // Whoever can't write it finds out at the first save, and says so.
            _ => Ok(store),
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says which directory was used last: another number than before means that another one has taken its place.
    pub fn place(&self) -> u32 {
        self.places
    }

    /// Claims the directory that is there now, which may not be the one of before: it is held to the same.
    fn claim(&mut self) -> io::Result<()> {
        let (was, is) = (self.place.metadata()?, fs::metadata(&self.dir)?);
        if (was.dev(), was.ino()) != (is.dev(), is.ino()) {
            if self.dir.join(FILE).symlink_metadata().is_ok() {
                return Err(io::Error::other(format!(
                    "another directory is there since the start, with a {FILE} in it, which stays as it is"
                )));
            }
            self.place = File::open(&self.dir)?;
            self.places += 1;
            self.whole.get_mut().clear();
        }
        check_dir(&is).map_err(io::Error::other)?;
        if self.claim.as_ref().is_some_and(|claim| !claim.holds()) {
            self.claim = None;
        }
        if self.claim.is_none() {
            let claim = Claim::take(&self.dir.join(FILE));
            self.claim = Some(claim.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => io::Error::new(error.kind(), "another host uses the directory"),
                _ => error,
            })?);
        }
        Ok(())
    }

    /// Reads the state file; `None` if there is none.
    pub fn read(&self) -> Result<Option<Document>, ReadError> {
        read(&self.dir)
    }

    /// Reads a component.
    pub fn component(&self, sha256: &str) -> Result<Arc<[u8]>, String> {
        let path = self.component_path(sha256);
        let bytes = read_bounded(&path, MAX_COMPONENT_BYTES);
        let bytes = bytes.map_err(|error| format!("can't read {}: {error}", path.display()))?;
        if digest(&bytes) == sha256 {
            // A save leaves it as it is: on a full disk, that works.
            self.whole.borrow_mut().insert(sha256.to_owned());
            Ok(bytes.into())
        } else {
            Err(format!("{} is damaged: it has another SHA-256", path.display()))
        }
    }

    /// Moves the state file and its components out of the way, in place of those that were moved before. Returns where
    /// to. Until that has succeeded, no state is saved in its place.
    pub fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.in_the_way = true;
        let unread = self.unread()?;
        for name in components(&unread)? {
            fs::remove_file(unread.join(name))?;
        }
        let names = components(&self.dir)?;
        for name in &names {
            let (from, to) = (self.dir.join(name), unread.join(name));
            // A second name takes no room; not all file systems have them.
            fs::hard_link(&from, &to).or_else(|_| {
                fs::copy(&from, &to)?;
                File::open(&to)?.sync_all()
            })?;
        }
        File::open(&unread)?.sync_all()?;
        // All is still in its old place, too, for a host that is killed before this and the next one that tries.
        fs::rename(self.dir.join(FILE), unread.join(FILE))?;
        self.in_the_way = false;
        for name in names {
            // One that stays goes with the next save.
            let _ = fs::remove_file(self.dir.join(name));
        }
        Ok(unread)
    }

    /// Returns the directory of files that this host can't read, and creates it if it is missing.
    fn unread(&self) -> io::Result<PathBuf> {
        let unread = self.dir.join(UNREAD);
        match DirBuilder::new().mode(0o700).create(&unread) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // A link would lead out of the directory.
        if !fs::symlink_metadata(&unread)?.is_dir() {
            return Err(io::Error::other(format!("{} is no directory", unread.display())));
        }
        Ok(unread)
    }

    /// Reads what policies exported; `None` if there is no file of it.
    pub fn exported(&self) -> Result<Option<Saved>, String> {
        read_exported(&self.dir)
    }

    /// Moves the file of what policies exported out of the way, in place of the one that was moved before. Returns
    /// where to. If it stays, the next one replaces it.
    pub fn set_exported_aside(&self) -> io::Result<PathBuf> {
        let place = self.unread()?.join(EXPORTED);
        fs::rename(self.dir.join(EXPORTED), &place)?;
        Ok(place)
    }

    /// Saves what policies exported.
    pub fn save_exported(&mut self, saved: &Saved) -> io::Result<()> {
        self.claim()?;
        put(&self.dir.join(EXPORTED), &saved.bytes()?)?;
        self.sync()
    }

    /// Saves a state with the components that are new in it, and removes all that it doesn't name.
    pub fn save(&mut self, document: &Document, components: &Components) -> io::Result<()> {
        self.claim()?;
        // Somebody else may have moved it.
        self.in_the_way &= self.dir.join(FILE).symlink_metadata().is_ok();
        if self.in_the_way {
            let moved = self.set_aside();
            moved.map_err(|error| {
                io::Error::other(format!("{FILE}, which can't be read, can't be moved: {error}"))
            })?;
        }
        for (sha256, bytes) in components {
            let path = self.component_path(sha256);
            let there =
                || path.symlink_metadata().is_ok_and(|at| at.is_file() && at.len() == bytes.len() as u64);
            if !self.whole.get_mut().contains(sha256) || !there() {
                put(&path, bytes)?;
                // Before the file that names it.
                self.sync()?;
                self.whole.get_mut().insert(sha256.clone());
            }
        }
        put(&self.dir.join(FILE), &document.bytes()?)?;
        self.sync()?;
        self.whole.get_mut().retain(|sha256| components.contains_key(sha256));
        if let Err(error) = self.tidy(&document.components(), components) {
            tracing::warn!("can't remove old components from {}: {error}", self.dir.display());
        }
        Ok(())
    }

    fn tidy(&self, named: &BTreeSet<&str>, new: &Components) -> io::Result<()> {
        let wanted = |sha256: &str| named.contains(sha256) || new.contains_key(sha256);
        for name in self::components(&self.dir)? {
            if !name.strip_suffix(".wasm").is_some_and(wanted) {
                fs::remove_file(self.dir.join(name))?;
            }
        }
        Ok(())
    }

    /// Makes renames last.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn component_path(&self, sha256: &str) -> PathBuf {
        self.dir.join(format!("{sha256}.wasm"))
    }
}

/// Checks a directory that exists, and that it holds no other file under the name of ours.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    check_dir(&fs::metadata(dir).map_err(|error| error.to_string())?)?;
    let file = dir.join(FILE);
    match file.symlink_metadata() {
        Ok(at) if !at.is_file() => Err(format!("{FILE} in it is no file")),
        // The first change would replace it. One that can't be opened is left to the start, which fails.
        Ok(_) => match open(&file).and_then(format::is_ours) {
            Ok(false) => Err(format!(
                "{FILE} in it holds something else than the state of policies; name a new directory"
            )),
            Ok(true) | Err(_) => Ok(()),
        },
        Err(_) => Ok(()),
    }
}

/// Checks that a directory is this user's alone.
fn check_dir(found: &fs::Metadata) -> Result<(), String> {
    if !found.is_dir() {
        return Err("it is no directory".to_owned());
    }
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    // A group may be given access, as Kubernetes gives it to that of a volume.
    if !ours || found.mode() & 0o007 != 0 {
        return Err("it must be a directory of this user that others can't open (chmod 700)".to_owned());
    }
    Ok(())
}

/// Reads the state file of a directory; `None` if there is none.
pub(super) fn read(dir: &Path) -> Result<Option<Document>, ReadError> {
    match read_bounded(&dir.join(FILE), format::MAX_BYTES) {
        Ok(bytes) => Document::parse(&bytes).map(Some).map_err(ReadError::Unusable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error().is_some() => Err(ReadError::Unread(error.to_string())),
        Err(error) => Err(ReadError::Unusable(error.to_string())),
    }
}

/// Reads what policies exported from a directory; `None` if there is no file of it.
pub(super) fn read_exported(dir: &Path) -> Result<Option<Saved>, String> {
    match read_bounded(&dir.join(EXPORTED), exported::MAX_BYTES) {
        Ok(bytes) => Saved::parse(&bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The names of the components in a directory, finished or not.
fn components(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let whole = name.strip_suffix(".partial").unwrap_or(&name);
        let ours = whole.strip_suffix(".wasm").is_some_and(is_digest);
        if ours && entry.file_type()?.is_file() {
            names.push(name);
        }
    }
    Ok(names)
}

/// Writes or replaces a file, at once and for good.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = Partial::create(path)?;
    partial.writer().write_all(bytes)?;
    partial.put(path).map(|_| ())
}

/// Opens a file, but no link, and without waiting for whoever writes a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("small flags");
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
