//! A partly downloaded file. It is written beside its final place and hashed as it arrives, so that a
//! download can resume and only content with the right digest reaches the cache.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::site::Remote;

/// Bytes read or hashed at once.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// The part of a file that is there.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    length: u64,
    size: u64,
    /// The greatest length so far.
    furthest: u64,
    /// Whether some of it came from an earlier process.
    inherited: bool,
    digest: Sha256,
    /// The digest of the whole file, if the hub sent one.
    expected: Option<String>,
}

impl Part {
    /// Opens the part of `remote`, whose final place is `blob`. Starts over if there is no digest to check
    /// the result. Hashing what is there may take minutes; `progress` is called with the bytes done.
    pub(super) fn open(blob: &Path, remote: &Remote, progress: impl FnMut(u64)) -> io::Result<Self> {
        let path = path(blob);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut part = Self {
            path,
            length: file.metadata()?.len(),
            file,
            size: remote.size,
            furthest: 0,
            inherited: false,
            digest: Sha256::new(),
            expected: remote.sha256().map(str::to_owned),
        };
        if part.expected.is_none() || part.length > part.size {
            part.restart()?;
        }
        part.digest_what_is_there(progress)?;
        (part.furthest, part.inherited) = (part.length, part.length > 0);
        Ok(part)
    }

    fn digest_what_is_there(&mut self, mut progress: impl FnMut(u64)) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = self.length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            self.file.read_exact(&mut piece[..most])?;
            self.digest.update(&piece[..most]);
            left -= most as u64;
            progress(self.length - left);
        }
        Ok(())
    }

    /// Bytes that are there.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are missing.
    pub(super) fn missing(&self) -> u64 {
        self.size - self.length
    }

    /// Whether the part grew beyond its greatest length since the last call.
    pub(super) fn got_further(&mut self) -> bool {
        let further = self.length > self.furthest;
        self.furthest = self.furthest.max(self.length);
        further
    }

    /// Appends the next bytes, at most as many as are missing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len() as u64 <= self.missing());
        self.file.write_all(bytes)?;
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Discards what is there.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.length, self.inherited) = (0, false);
        self.digest = Sha256::new();
        Ok(())
    }

    /// Whether some of it came from an earlier process.
    pub(super) fn is_inherited(&self) -> bool {
        self.inherited
    }

    /// Whether the digest is right; true if the hub sent none.
    pub(super) fn is_right(&self) -> bool {
        let Some(expected) = &self.expected else { return true };
        let digest: String =
            self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        digest == *expected
    }

    /// Moves the complete file to its final place.
    pub(super) fn settle(&self, blob: &Path) -> io::Result<()> {
        // After a power cut, the name must not exist without its content.
        self.file.sync_all()?;
        std::fs::rename(&self.path, blob)
    }
}

/// Bytes of `remote` that a download would keep.
pub(super) fn kept_bytes(blob: &Path, remote: &Remote) -> u64 {
    let length = std::fs::metadata(path(blob)).map_or(0, |found| found.len());
    if remote.sha256().is_some() && length <= remote.size { length } else { 0 }
}

fn path(blob: &Path) -> PathBuf {
    let mut path = blob.as_os_str().to_owned();
    path.push(".part");
    path.into()
}
