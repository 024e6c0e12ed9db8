//! A new file while it is written, beside the one whose place it takes when it is whole.
//!
//! It is locked, so that hosts that end at the same time don't write into each other's file, and reaches the disk as it
//! grows, so that the time for saving covers the disk, too.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes that wait in memory for the disk.
const WAITING_BYTES: u64 = 256 << 20;
/// How often a host looks whether another one has finished.
const LOOK: Duration = Duration::from_millis(50);

/// A file that is removed if it doesn't take its place.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    is_placed: bool,
}

impl Partial {
    /// Creates it for the file at `place`, instead of one that a killed host left.
    ///
    /// # Errors
    /// `WouldBlock` while another host writes it.
    pub(crate) fn create(place: &Path) -> io::Result<Self> {
        let path = place.with_added_extension("partial");
        // Its lock is held until the new file has one.
        let _left = remove_left(&path)?;
        // Refuses what came in between, links among it.
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = created.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => busy(),
            _ => error,
        })?;
        lock(&file, &path)?;
        Ok(Self { path, file, is_placed: false })
    }

    /// Creates it when no other host writes it any more, at the latest at `end`.
    pub(super) fn wait(place: &Path, end: Instant) -> io::Result<Self> {
        loop {
            match Self::create(place) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(LOOK);
                }
                created => return created,
            }
        }
    }

    /// Where to write its content.
    pub(crate) fn writer(&self) -> impl Write {
        Steady { to: &self.file, sync: |file: &&File| file.sync_data(), waiting: 0 }
    }

    /// Gives it its place, and returns its length.
    pub(crate) fn put(mut self, place: &Path) -> io::Result<u64> {
        self.file.sync_all()?;
        let bytes = self.file.metadata()?.len();
        std::fs::rename(&self.path, place)?;
        self.is_placed = true;
        Ok(bytes)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes what is at a path, and returns it locked if it is a file that can be opened.
fn remove_left(path: &Path) -> io::Result<Option<File>> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    let left = match found.is_file() {
        true => match OpenOptions::new().read(true).write(true).open(path) {
            // What is there next may be another host's.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(busy()),
            opened => opened.ok(),
        },
        false => None,
    };
    if let Some(left) = &left {
        lock(left, path)?;
    }
    std::fs::remove_file(path)?;
    Ok(left)
}

/// Locks a file that is at this path. Where the file system has no locks, it does nothing.
pub(super) fn lock(file: &File, path: &Path) -> io::Result<()> {
    let locked = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    // Whoever had the lock before may have renamed or removed it.
    let is_there = || io::Result::Ok(place(file.metadata()?) == place(path.symlink_metadata()?));
    if locked && is_there().unwrap_or(false) { Ok(()) } else { Err(busy()) }
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "another host is writing it")
}

/// Writes what reaches the disk every now and then.
struct Steady<W, S> {
    to: W,
    sync: S,
    /// Bytes since then.
    waiting: u64,
}

impl<W: Write, S: FnMut(&W) -> io::Result<()>> Write for Steady<W, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting >= WAITING_BYTES {
            (self.sync)(&self.to)?;
            self.waiting = 0;
        }
        let written = self.to.write(bytes)?;
        self.waiting += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (place, partial) = (dir.path().join("a.cache"), dir.path().join("a.cache.partial"));
        (dir, place, partial)
    }

    #[test]
    fn only_one_host_writes_at_a_time_and_the_next_one_takes_its_place() {
        let (_dir, place, partial) = place();
        let first = Partial::create(&place).unwrap();
        first.writer().write_all(b"first").unwrap();
        let error = Partial::create(&place).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (busy().kind(), busy().to_string()));
        let error = Partial::wait(&place, Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(std::fs::read(&partial).unwrap(), b"first", "it is left alone");
        assert_eq!(std::fs::metadata(&partial).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(first.put(&place).unwrap(), 5);
        let second = Partial::create(&place).unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"first", "a file in its place is no partial one");
        drop(second);
        assert!(!partial.exists());
    }

    #[test]
    fn a_host_that_waits_writes_after_the_other() {
        let (_dir, place, _) = place();
        let first = Partial::create(&place).unwrap();
        let later = place.clone();
        let end = Instant::now() + Duration::from_secs(600);
        let second = std::thread::spawn(move || Partial::wait(&later, end).and_then(|file| file.put(&later)));
        first.writer().write_all(b"first").unwrap();
        first.put(&place).unwrap();
        assert_eq!(second.join().unwrap().unwrap(), 0);
        assert_eq!(std::fs::read(&place).unwrap(), b"");
    }

    #[test]
    fn what_a_killed_host_or_someone_else_left_is_replaced_and_not_followed() {
        let (dir, place, partial) = place();
        std::fs::write(&partial, "of a killed host").unwrap();
        drop(Partial::create(&place).unwrap());
        assert!(!partial.exists());
        let other = dir.path().join("other");
        std::fs::write(&other, "other").unwrap();
        symlink(&other, &partial).unwrap();
        let file = Partial::create(&place).unwrap();
        file.writer().write_all(b"new").unwrap();
        file.put(&place).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        assert!(!place.is_symlink());
        std::fs::create_dir(&partial).unwrap();
        assert!(Partial::create(&place).is_err());
    }

    #[test]
    fn content_reaches_the_disk_as_it_is_written() {
        let mut times = 0;
        let sync = |_: &io::Sink| {
            times += 1;
            io::Result::Ok(())
        };
        let mut writer = Steady { to: io::sink(), sync, waiting: 0 };
        let piece = vec![0; 1 << 20];
        for _ in 0..4 * (WAITING_BYTES >> 20) {
            writer.write_all(&piece).unwrap();
        }
        assert_eq!(times, 3, "the rest when it is whole");
    }
}
