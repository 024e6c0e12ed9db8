//! Downloads a checkpoint into the hub's cache, in the layout of the hub's own tools and with their locks: contents in
//! `blobs` under the hub's names for them, links to them in `snapshots/COMMIT`, and `refs/main`, which is written
//! last. What goes wrong is said in terms of what the user can do about it.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::CheckpointError::{self, Failed, Wrong};
use super::hub::{Hub, INDEX, WEIGHTS, folder, shards};
use super::part::{self, PIECE_BYTES, Part};
use super::site::{Listing, Remote, Site, Trouble};
use crate::progress::Meter;

/// Taken where the repository has them.
const SMALL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];
/// How often in a row a request may come to nothing.
const RETRIES: u32 = 3;

/// Fetches what a model needs of `ORG/NAME`.
pub(super) fn fetch(hub: &Hub, cache: &Path, org: &str, name: &str) -> Result<(), CheckpointError> {
    let full_name = format!("{org}/{name}");
    let site = Site::new(hub, &full_name)?;
    tracing::info!("asking {} for {full_name}", site.endpoint);
    let listing = site.list()?;
    let has = |file: &str| listing.sizes.contains_key(file);
    let folder = folder(org, name);
    let repository = Repository {
        pause: hub.patience.pause,
        locks: cache.join(".locks").join(&folder),
        root: cache.join(folder),
        cache,
        site: &site,
        listing: &listing,
    };
    let mut wanted: Vec<String> =
        SMALL_FILES.iter().filter(|file| has(file)).map(|file| (*file).to_owned()).collect();
    if !has(WEIGHTS) && has(INDEX) {
        repository.take(&[INDEX.to_owned()])?;
        let index = std::fs::read(repository.snapshot().join(INDEX));
        let index = index.map_err(|error| Failed(format!("can't read {INDEX}: {error}")))?;
        wanted.extend(shards(&index).map_err(Wrong)?);
    } else {
        wanted.push(WEIGHTS.to_owned());
    }
    let needed = ["config.json", "tokenizer.json"].into_iter().chain(wanted.iter().map(String::as_str));
    if let Some(absent) = needed.into_iter().find(|file| !has(file)) {
        return Err(Wrong(format!(
            "the repository has no {absent}; a Hugging Face checkpoint in safetensors is needed (of a repository \
             with GGUF files, download one and give its path)"
        )));
    }
    repository.take(&wanted)?;
    repository.write_ref()
}

/// A repository's place in the cache, and where it comes from.
struct Repository<'a> {
    site: &'a Site,
    listing: &'a Listing,
    cache: &'a Path,
    root: PathBuf,
    locks: PathBuf,
    /// Before a request is tried again, and twice that before it is tried once more.
    pause: Duration,
}

impl Repository<'_> {
    /// Makes sure that these files are there.
    fn take(&self, files: &[String]) -> Result<(), CheckpointError> {
        let snapshot = self.snapshot();
        let mut missing = Vec::new();
        for file in files.iter().filter(|file| !snapshot.join(file).is_file()) {
            missing.push(self.look(file)?);
        }
        for folder in [&snapshot, &self.root.join("blobs"), &self.locks] {
            std::fs::create_dir_all(folder).map_err(|error| {
                Failed(format!("can't make {}: {error}; set HF_HUB_CACHE", folder.display()))
            })?;
        }
        self.check_space(&missing)?;
        for remote in &missing {
            self.download(remote)?;
            self.link(remote).map_err(|error| self.disk(&error))?;
        }
        Ok(())
    }

    fn look(&self, file: &str) -> Result<Remote, CheckpointError> {
        let mut tries = Tries { failed: 0, pause: self.pause };
        loop {
            match self.site.look(self.listing, file) {
                Ok(remote) => return Ok(remote),
                Err(trouble) => tries.failed(file, trouble)?,
            }
        }
    }

    /// Room for what is not there yet.
    fn check_space(&self, missing: &[Remote]) -> Result<(), CheckpointError> {
        let Ok(disk) = rustix::fs::statvfs(self.cache) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let bytes = missing.iter().map(|remote| match self.is_there(remote) {
            true => 0,
            false => remote.size - part::kept_bytes(&self.blob(remote), remote),
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        if bytes <= free {
            return Ok(());
        }
        Err(Failed(format!(
            "it takes {} MiB more and {} has {} MiB free; make room, or set HF_HUB_CACHE to another disk",
            bytes.div_ceil(1 << 20),
            self.cache.display(),
            free >> 20
        )))
    }

    /// Makes sure that a file's content is there. Several processes may want it: one downloads.
    fn download(&self, remote: &Remote) -> Result<(), CheckpointError> {
        let _lock = self.lock(remote)?;
        if self.is_there(remote) {
            return Ok(());
        }
        let Remote { file, size, .. } = remote;
        tracing::info!("downloading {file}, {size} bytes, to {}", self.root.display());
        let blob = self.blob(remote);
        let mut part = Part::open(&blob, remote).map_err(|error| self.disk(&error))?;
        let mut meter = Meter::new(format!("downloading {file}"));
        meter.start(*size);
        let mut tries = Tries { failed: 0, pause: self.pause };
        while let Err(trouble) = self.go_on(remote, &mut part, &mut meter) {
            if part.got_further() {
                tries.failed = 0;
            }
            tries.failed(file, trouble)?;
        }
        part.settle(&blob).map_err(|error| self.disk(&error))
    }

    /// Fetches what is missing of a file, as far as it comes.
    fn go_on(&self, remote: &Remote, part: &mut Part, meter: &mut Meter) -> Result<(), Trouble> {
        let disk = |error: io::Error| Trouble::Lasting(self.disk(&error));
        if part.missing() > 0 {
            let (begins, body) = self.site.open(&self.listing.commit, &remote.file, part.length())?;
            if begins != part.length() {
                part.restart().map_err(disk)?;
            }
            self.pour(remote, body.into_reader(), part, meter)?;
        }
        if part.is_right() {
            return Ok(());
        }
        let inherited = part.is_inherited();
        part.restart().map_err(disk)?;
        let Remote { file, .. } = remote;
        Err(match inherited {
            true => {
                Trouble::Passing("what an earlier download left is not the hub's: it begins anew".to_owned())
            }
            false => Trouble::Lasting(Failed(format!(
                "what came as {file} is not what {} says it is (its SHA-256 differs); something on the way changes \
                 it, or the repository is broken",
                self.site.endpoint
            ))),
        })
    }

    fn pour(
        &self,
        remote: &Remote,
        mut body: impl Read,
        part: &mut Part,
        meter: &mut Meter,
    ) -> Result<(), Trouble> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            meter.set(part.length());
            let broke_off = |why: &dyn std::fmt::Display| {
                Trouble::Passing(format!(
                    "the download broke off: {why}; start again, it goes on where it was"
                ))
            };
            match body.read(&mut piece).map_err(|error| broke_off(&error))? {
                0 if part.missing() > 0 => {
                    return Err(broke_off(&format_args!("{} bytes did not come", part.missing())));
                }
                0 => return Ok(()),
                bytes if bytes as u64 > part.missing() => {
                    part.restart().map_err(|error| Trouble::Lasting(self.disk(&error)))?;
                    let Remote { file, size, .. } = remote;
                    let endpoint = &self.site.endpoint;
                    let why = format!("{endpoint} sends more of {file} than the {size} bytes that it has");
                    return Err(Trouble::Lasting(Failed(why)));
                }
                bytes => part.append(&piece[..bytes]).map_err(|error| Trouble::Lasting(self.disk(&error)))?,
            }
        }
    }

    /// Waits until nobody else downloads the file. The lock goes with the file that it is returned as.
    fn lock(&self, remote: &Remote) -> Result<File, CheckpointError> {
        let path = self.locks.join(format!("{}.lock", remote.etag));
        let locked = || {
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
                tracing::info!("another process downloads {}; waiting for it", remote.file);
            }
            file.lock().map(|()| file)
        };
        locked().map_err(|error: io::Error| {
            Failed(format!("can't lock {}: {error}; set HF_HUB_CACHE", path.display()))
        })
    }

    fn blob(&self, remote: &Remote) -> PathBuf {
        self.root.join("blobs").join(&remote.etag)
    }

    fn is_there(&self, remote: &Remote) -> bool {
        std::fs::metadata(self.blob(remote)).is_ok_and(|found| found.is_file() && found.len() == remote.size)
    }

    fn snapshot(&self) -> PathBuf {
        self.root.join("snapshots").join(&self.listing.commit)
    }

    /// Gives a content its file's name.
    fn link(&self, remote: &Remote) -> io::Result<()> {
        let link = self.snapshot().join(&remote.file);
        let content = Path::new("../../blobs").join(&remote.etag);
        match std::os::unix::fs::symlink(&content, &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !link.is_file() => {
                std::fs::remove_file(&link)?;
                std::os::unix::fs::symlink(&content, &link)
            }
            // Another process was first.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// Has `main` name the commit. Another host may read it at any moment, so it is never half there.
    fn write_ref(&self) -> Result<(), CheckpointError> {
        let written = || {
            let refs = self.root.join("refs");
            std::fs::create_dir_all(&refs)?;
            let new = self.locks.join(format!("main.{:016x}", getrandom::u64().map_err(io::Error::other)?));
            std::fs::write(&new, &self.listing.commit)?;
            std::fs::rename(&new, refs.join("main"))
        };
        written().map_err(|error| self.disk(&error))
    }

    fn disk(&self, error: &io::Error) -> CheckpointError {
        let cache = self.cache.display();
        Failed(match error.kind() {
            ErrorKind::StorageFull => format!("the disk of {cache} is full; make room, or set HF_HUB_CACHE"),
            _ => format!("can't write to {cache}: {error}; set HF_HUB_CACHE"),
        })
    }
}

/// Requests that came to nothing, one after the other.
struct Tries {
    failed: u32,
    pause: Duration,
}

impl Tries {
    /// Waits a little before the next one, unless that is hopeless.
    fn failed(&mut self, file: &str, trouble: Trouble) -> Result<(), CheckpointError> {
        let why = match trouble {
            Trouble::Passing(why) if self.failed < RETRIES => why,
            trouble => return Err(trouble.into()),
        };
        let pause = self.pause * 2_u32.pow(self.failed);
        self.failed += 1;
        tracing::warn!("{file}: {why} (it is tried again in {} s)", pause.as_secs_f32());
        std::thread::sleep(pause);
        Ok(())
    }
}
