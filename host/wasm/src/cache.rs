//! Compiled code, kept on disk so that a restart doesn't compile it again.
//!
//! Cached compiled code is run without validation, so the directory must be private: ours, mode 0700, and
//! every file in it ours, mode 0600, with a SHA-256 of its content at its end. If anything is wrong, the code
//! is compiled instead; a cache never makes a load fail. Deliberately absent: sharing between users.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use wasmtime::Engine;

const CHECKSUM_BYTES: usize = 32;
/// Artifacts kept, those used last; a policy's takes some hundred kilobytes, the chat renderer's some megabytes.
const MAX_FILES: usize = 64;
/// No artifact of anything within the size limit comes near this.
const MAX_FILE_BYTES: u64 = 256 << 20;

pub(crate) struct Cache {
    dir: PathBuf,
    compatibility: u64,
}

/// An artifact that this user wrote with this engine. Only `Cache::get` makes one.
pub(crate) struct TrustedArtifact(Vec<u8>);

impl TrustedArtifact {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Cache {
    /// Opens `dir`, creating it if needed. Refuses one that others could write to.
    pub(crate) fn open(dir: &Path, engine: &Engine) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        check_private(&fs::symlink_metadata(dir)?, fs::Metadata::is_dir)?;
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Ok(Self { dir: dir.to_owned(), compatibility: hasher.finish() })
    }

    /// The artifact of the component or module with this digest; `None` if there is none. Renews its age.
    pub(crate) fn get(&self, digest: &str) -> io::Result<Option<TrustedArtifact>> {
        let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("a small flag");
        let mut file = match OpenOptions::new().read(true).custom_flags(no_follow).open(self.path(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        check_private(&metadata, fs::Metadata::is_file)?;
        if metadata.len() > MAX_FILE_BYTES {
            return Err(io::Error::other("is too large"));
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        let split =
            content.len().checked_sub(CHECKSUM_BYTES).ok_or_else(|| io::Error::other("is truncated"))?;
        if Sha256::digest(&content[..split])[..] != content[split..] {
            return Err(io::Error::other("has a wrong checksum"));
        }
        content.truncate(split);
        // Without it, the artifact only goes sooner.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(TrustedArtifact(content)))
    }

    /// Keeps an artifact, whole or not at all.
    pub(crate) fn put(&self, digest: &str, artifact: &[u8]) -> io::Result<()> {
        if artifact.len() as u64 > MAX_FILE_BYTES - CHECKSUM_BYTES as u64 {
            return Err(io::Error::other("is too large"));
        }
        // Random: containers that share the directory share their process ids too.
        let temporary = self.dir.join(format!("{:016x}.tmp", RandomState::new().hash_one(digest)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = write(file, artifact).and_then(|()| fs::rename(&temporary, self.path(digest)));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        self.evict()
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(format!("{digest}-{:016x}.cwasm", self.compatibility))
    }

    /// Drops the least recently used files beyond the bound.
    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Other processes with the same cache rename and drop files meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            // A directory is no artifact, and not ours to remove.
            if metadata.is_dir() {
                continue;
            }
            files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
        }
        files.sort();
        let excess = files.len().saturating_sub(MAX_FILES);
        files.iter().take(excess).try_for_each(|(_, path)| match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }
}

fn write(mut file: File, artifact: &[u8]) -> io::Result<()> {
    file.write_all(artifact)?;
    file.write_all(&Sha256::digest(artifact))
}

fn check_private(metadata: &fs::Metadata, is_kind: fn(&fs::Metadata) -> bool) -> io::Result<()> {
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if is_kind(metadata) && ours && metadata.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(io::Error::other(
            "must be a real directory or file of this user that no other user can access (chmod go=)",
        ))
    }
}
