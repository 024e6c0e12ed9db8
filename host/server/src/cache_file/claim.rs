//! Whose a file is while its host runs: a locked file beside it. It keeps nobody from anything, and only lets the second
//! of two hosts with one file know. Of a cache file that one warns; with the state of policies (`policy_state`) it
//! doesn't start.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::partial::lock;

/// The lock, whose file goes with it. A host that is killed leaves the file, unlocked.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    file: File,
}

impl Claim {
    /// Claims the file at `place`.
    ///
    /// # Errors
    /// `WouldBlock` while another host has it; what keeps the lock's file from being opened.
    pub(crate) fn take(place: &Path) -> io::Result<Self> {
        let path = place.with_added_extension("lock");
        let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("a small flag");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_follow);
        let file = options.open(&path)?;
        lock(&file, &path)?;
        Ok(Self { path, file })
    }

    /// Whether its file is still the one that everybody finds there.
    pub(crate) fn holds(&self) -> bool {
        let (Ok(own), Ok(found)) = (self.file.metadata(), self.path.symlink_metadata()) else { return false };
        (own.dev(), own.ino()) == (found.dev(), found.ino())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Still locked, so it is nobody else's, unless its directory has been replaced.
        if self.holds() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn one_host_at_a_time_has_a_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (place, path) = (dir.path().join("a.cache"), dir.path().join("a.cache.lock"));
        // Of a host that was killed.
        std::fs::write(&path, "").unwrap();
        let first = Claim::take(&place).unwrap();
        assert_eq!(Claim::take(&place).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let other = Claim::take(&dir.path().join("b.cache")).unwrap();
        // Somebody removed the lock, and somebody else has it now.
        std::fs::remove_file(&path).unwrap();
        assert!(!first.holds());
        let second = Claim::take(&place).unwrap();
        drop(first);
        assert!(second.holds(), "it stays");
        drop((second, other));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(Claim::take(&place).unwrap());
        symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert_ne!(Claim::take(&place).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!dir.path().join("elsewhere").exists(), "links are not followed");
    }
}
