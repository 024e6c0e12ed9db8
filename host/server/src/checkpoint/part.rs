//! A file on its way into the cache. What came stands beside its place and is digested as it comes, so that a download
//! goes on where an earlier one broke off, and nothing takes its place that isn't what the hub has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::site::Remote;

/// What is read or digested at once.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// What there is of a file.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    length: u64,
    size: u64,
    /// Longest that it was.
    furthest: u64,
    /// Some of it came from an earlier process.
    inherited: bool,
    digest: Sha256,
    /// What that has to be, where the hub says it.
    expected: Option<String>,
}

impl Part {
    /// What there is of `remote`, which is to stand at `blob`. Where nothing tells whether what is there is right,
    /// it begins anew.
    pub(super) fn open(blob: &Path, remote: &Remote) -> io::Result<Self> {
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
        part.digest_what_is_there()?;
        (part.furthest, part.inherited) = (part.length, part.length > 0);
        Ok(part)
    }

    fn digest_what_is_there(&mut self) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = self.length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            self.file.read_exact(&mut piece[..most])?;
            self.digest.update(&piece[..most]);
            left -= most as u64;
        }
        Ok(())
    }

    /// Bytes that are there.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are not.
    pub(super) fn missing(&self) -> u64 {
        self.size - self.length
    }

    /// Whether it is longer than it ever was when this was asked last.
    pub(super) fn got_further(&mut self) -> bool {
        let further = self.length > self.furthest;
        self.furthest = self.furthest.max(self.length);
        further
    }

    /// The next bytes, no more than are missing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len() as u64 <= self.missing());
        self.file.write_all(bytes)?;
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what is there.
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

    /// Whether it is what the hub has, as far as the hub says.
    pub(super) fn is_right(&self) -> bool {
        let Some(expected) = &self.expected else { return true };
        let digest: String =
            self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        digest == *expected
    }

    /// Takes its place.
    pub(super) fn settle(&self, blob: &Path) -> io::Result<()> {
        // A power cut must not leave a name without what it stands for.
        self.file.sync_all()?;
        std::fs::rename(&self.path, blob)
    }
}

/// Bytes of `remote` that are there already.
pub(super) fn kept_bytes(blob: &Path, remote: &Remote) -> u64 {
    let length = std::fs::metadata(path(blob)).map_or(0, |found| found.len());
    if remote.sha256().is_some() && length <= remote.size { length } else { 0 }
}

fn path(blob: &Path) -> PathBuf {
    let mut path = blob.as_os_str().to_owned();
    path.push(".part");
    path.into()
}
