//! Downloads a checkpoint into the hub's cache, in the layout of the hub's own tools and under their locks:
//! contents in `blobs` named by their etags, links to them in `snapshots/COMMIT`, and `refs/main`, which is
//! written last. Error messages say what the user can do.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::CheckpointError::{self, Failed, Wrong};
use super::hub::{ADAPTER_FILES, Content, Hub, INDEX, WEIGHTS, folder, read_index, shards};
use super::part::{self, PIECE_BYTES, Part};
use super::site::{Listing, Remote, Site, Trouble};
use crate::startup::progress::Meter;

/// Downloaded if the repository has them.
const SMALL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "modules.json",
    "1_Pooling/config.json",
];
/// How often a request is repeated in a row without progress.
const RETRIES: u32 = 3;
/// The longest pause that a hub can demand. Its limits count requests over five minutes.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// Downloads the files of `ORG/NAME` that a model or an adapter needs.
pub(super) fn fetch(
    hub: &Hub,
    cache: &Path,
    org: &str,
    name: &str,
    content: Content,
) -> Result<(), CheckpointError> {
    let full_name = format!("{org}/{name}");
    let site = Site::new(hub, &full_name)?;
    tracing::info!("asking {} for {full_name}", site.endpoint);
    let listing = Tries::new(hub.patience.pause).until_done(&full_name, || site.list())?;
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
    let wanted = match content {
        Content::Checkpoint => repository.of_checkpoint()?,
        Content::Adapter => ADAPTER_FILES.map(str::to_owned).into(),
    };
    if let Some(absent) = wanted.iter().find(|file| !has(file)) {
        let advice = match content {
            Content::Checkpoint => {
                "give a Hugging Face checkpoint in safetensors format (from a repository with GGUF files, download one and \
                 give its path)"
            }
            Content::Adapter => "give an adapter that PEFT saved in safetensors format",
        };
        return Err(Wrong(format!("the repository has no {absent}; {advice}")));
    }
    repository.take(&wanted)?;
    repository.write_ref()
}

/// A repository of the hub and its directory in the cache.
struct Repository<'a> {
    site: &'a Site,
    listing: &'a Listing,
    cache: &'a Path,
    root: PathBuf,
    locks: PathBuf,
    /// Pause before the first retry; it doubles with each further one.
    pause: Duration,
}

impl Repository<'_> {
    /// The files of a checkpoint: those it must have, and those of [`SMALL_FILES`] that it has.
    fn of_checkpoint(&self) -> Result<Vec<String>, CheckpointError> {
        let has = |file: &str| self.listing.sizes.contains_key(file);
        let is_needed = |file: &str| ["config.json", "tokenizer.json"].contains(&file);
        let small = SMALL_FILES.iter().filter(|file| has(file) || is_needed(file));
        let mut wanted: Vec<String> = small.map(|file| (*file).to_owned()).collect();
        if !has(WEIGHTS) && has(INDEX) {
            self.take(&[INDEX.to_owned()])?;
            let index = read_index(&self.snapshot())?;
            let index = index.ok_or_else(|| Failed(format!("{INDEX} was removed meanwhile; try again")))?;
            wanted.extend(shards(&index).map_err(Wrong)?);
        } else {
            wanted.push(WEIGHTS.to_owned());
        }
        Ok(wanted)
    }

    /// Downloads those of the files that are missing.
    fn take(&self, files: &[String]) -> Result<(), CheckpointError> {
        let snapshot = self.snapshot();
        let mut missing = Vec::new();
        for file in files.iter().filter(|file| !snapshot.join(file).is_file()) {
            let look = || self.site.look(self.listing, file);
            missing.push(Tries::new(self.pause).until_done(file, look)?);
        }
        for folder in [&snapshot, &self.root.join("blobs"), &self.locks] {
            std::fs::create_dir_all(folder).map_err(|error| {
                Failed(format!("can't create {}: {error}; set HF_HUB_CACHE", folder.display()))
            })?;
        }
        self.check_space(&missing)?;
        for remote in &missing {
            self.download(remote)?;
            self.link(remote).map_err(|error| self.disk(&error))?;
        }
        Ok(())
    }

    /// Checks that the disk has room for the missing files.
    fn check_space(&self, missing: &[Remote]) -> Result<(), CheckpointError> {
        let Ok(disk) = rustix::fs::statvfs(&self.root) else { return Ok(()) };
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
            "the download needs {} MiB and {} has {} MiB free; free some space, or set HF_HUB_CACHE to another disk",
            bytes.div_ceil(1 << 20),
            self.root.display(),
            free >> 20
        )))
    }

    /// Downloads a file's content, unless it is there. Of several processes that need it, one downloads.
    fn download(&self, remote: &Remote) -> Result<(), CheckpointError> {
        let _lock = self.lock(remote)?;
        if self.is_there(remote) {
            return Ok(());
        }
        let Remote { file, size, .. } = remote;
        tracing::info!("downloading {file}, {size} bytes, to {}", self.root.display());
        let blob = self.blob(remote);
        let mut meter = Meter::new(format!("downloading {file}"));
        meter.start(*size);
        let part = Part::open(&blob, remote, |bytes| meter.set(bytes));
        let mut part = part.map_err(|error| self.disk(&error))?;
        let mut tries = Tries::new(self.pause);
        while let Err(trouble) = self.resume(remote, &mut part, &mut meter) {
            if part.got_further() {
                tries.failed = 0;
            }
            tries.pause_after(file, trouble)?;
        }
        part.settle(&blob).map_err(|error| self.disk(&error))
    }

    /// Downloads the missing rest of a file, or as much of it as arrives.
    fn resume(&self, remote: &Remote, part: &mut Part, meter: &mut Meter) -> Result<(), Trouble> {
        let disk = |error: io::Error| Trouble::Permanent(self.disk(&error));
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
            true => Trouble::transient("an earlier download left wrong content; starting over".to_owned()),
            false => Trouble::Permanent(Failed(format!(
                "the content of {file} has another SHA-256 than {} promised; a proxy changes it, or the repository is \
                 broken",
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
                Trouble::transient(format!("the download broke off: {why}; start again to resume it"))
            };
            match body.read(&mut piece).map_err(|error| broke_off(&error))? {
                0 if part.missing() > 0 => {
                    return Err(broke_off(&format_args!("{} bytes are missing", part.missing())));
                }
                0 => return Ok(()),
                bytes if bytes as u64 > part.missing() => {
                    part.restart().map_err(|error| Trouble::Permanent(self.disk(&error)))?;
                    let Remote { file, size, .. } = remote;
                    let endpoint = &self.site.endpoint;
                    let why = format!("{endpoint} sends more of {file} than its {size} bytes");
                    return Err(Trouble::Permanent(Failed(why)));
                }
                bytes => {
                    part.append(&piece[..bytes]).map_err(|error| Trouble::Permanent(self.disk(&error)))?;
                }
            }
        }
    }

    /// Waits until no other process downloads the file. Dropping the returned file releases the lock.
    fn lock(&self, remote: &Remote) -> Result<File, CheckpointError> {
        let path = self.locks.join(format!("{}.lock", remote.etag));
        let locked = || {
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
                tracing::info!("another process is downloading {}; waiting for it", remote.file);
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

    /// Links the file's name to its content.
    fn link(&self, remote: &Remote) -> io::Result<()> {
        let link = self.snapshot().join(&remote.file);
        // Out of the file's own folders, the commit's and the snapshots'.
        let up: PathBuf = Path::new(&remote.file).iter().map(|_| "..").chain([".."]).collect();
        let content = up.join("blobs").join(&remote.etag);
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder)?;
        }
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

    /// Makes `main` name the commit, by a rename, because another host may read the file at any moment.
    fn write_ref(&self) -> Result<(), CheckpointError> {
        let written = || {
            let refs = self.root.join("refs");
            std::fs::create_dir_all(&refs)?;
            // In the same directory: the repository's may be on another disk than the locks.
            let new = refs.join(format!(".main.{:016x}", getrandom::u64().map_err(io::Error::other)?));
            let renamed = std::fs::write(&new, &self.listing.commit)
                .and_then(|()| std::fs::rename(&new, refs.join("main")));
            renamed.inspect_err(|_| drop(std::fs::remove_file(&new)))
        };
        written().map_err(|error| self.disk(&error))
    }

    fn disk(&self, error: &io::Error) -> CheckpointError {
        let cache = self.cache.display();
        Failed(match error.kind() {
            ErrorKind::StorageFull => {
                format!("the disk of {cache} is full; free some space, or set HF_HUB_CACHE")
            }
            _ => format!("can't write to {cache}: {error}; set HF_HUB_CACHE"),
        })
    }
}

/// Counts failed requests in a row, and pauses between them.
struct Tries {
    failed: u32,
    pause: Duration,
}

impl Tries {
    fn new(pause: Duration) -> Self {
        Self { failed: 0, pause }
    }

    /// Repeats a request until it succeeds, fails permanently or has failed too often. `what` is for the log.
    fn until_done<T>(
        mut self,
        what: &str,
        mut request: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, CheckpointError> {
        loop {
            match request() {
                Ok(done) => return Ok(done),
                Err(trouble) => self.pause_after(what, trouble)?,
            }
        }
    }

    /// Pauses before the next try; fails if that is pointless.
    fn pause_after(&mut self, what: &str, trouble: Trouble) -> Result<(), CheckpointError> {
        let (why, pause) = match trouble {
            Trouble::Transient { why, after } if self.failed < RETRIES => (why, self.pause(after)),
            trouble => return Err(trouble.into()),
        };
        self.failed += 1;
        tracing::warn!("{what}: {why} (trying again in {} s)", pause.as_secs_f32());
        std::thread::sleep(pause);
        Ok(())
    }

    fn pause(&self, after: Option<Duration>) -> Duration {
        let own = self.pause * 2_u32.pow(self.failed);
        after.map_or(own, |after| own.max(after.min(MAX_PAUSE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_follow_retry_after_within_bounds() {
        let s = Duration::from_secs;
        let pause = |failed, after: Option<u64>| Tries { failed, pause: s(1) }.pause(after.map(s));
        assert_eq!([0, 1, 2].map(|failed| pause(failed, None)), [s(1), s(2), s(4)]);
        assert_eq!(
            (pause(2, Some(3)), pause(0, Some(60)), pause(0, Some(u64::MAX))),
            (s(4), s(60), MAX_PAUSE)
        );
    }
}
