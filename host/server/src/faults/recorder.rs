//! Takes faults from the engine thread and has them written by another one.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::Fault;

use super::format::{self, Artifact};
use super::library::Library;
use super::storage::{Storage, short};

/// Faults that may wait for the disk.
const QUEUE: usize = 16;
/// Names remembered, so that the same fault a thousand times is written once.
const NAMES: usize = 1_024;

/// Keeps the first fault of each kind.
#[derive(Debug)]
pub struct FaultRecorder {
    dir: PathBuf,
    queue: SyncSender<Box<Fault>>,
    seen: Mutex<HashSet<String>>,
}

impl FaultRecorder {
    /// Starts the writer. Fails where the directory is not private or can't be made.
    pub fn start(dir: &Path, library: Arc<Library>) -> io::Result<Self> {
        let storage = Storage::open(dir)?;
        let (queue, inbox) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("faults".to_owned())
            .spawn(move || write_all(&storage, &library, &inbox))?;
        Ok(Self { dir: dir.to_owned(), queue, seen: Mutex::default() })
    }

    /// A policy failed. Returns the file that tells of it, or of an earlier fault just like it; it is
    /// there soon after.
    pub fn note(&self, fault: &Fault) -> Option<PathBuf> {
        let name = file_name(fault)?;
        let path = self.dir.join(&name);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(&name) {
            return Some(path);
        }
        self.queue.try_send(Box::new(fault.clone())).ok()?;
        if seen.len() == NAMES {
            seen.clear();
        }
        seen.insert(name);
        Some(path)
    }

    /// The file of a fault that was noted.
    pub fn path_of(&self, fault: &Fault) -> Option<PathBuf> {
        let name = file_name(fault)?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.contains(&name).then(|| self.dir.join(name))
    }
}

/// `scheduler-0123456789ab-schedule-trap.json`; nothing for a native policy.
fn file_name(fault: &Fault) -> Option<String> {
    let digests: Vec<&str> = fault.policy.digest.split('+').filter(|d| !d.is_empty()).map(short).collect();
    (!digests.is_empty()).then(|| {
        let question = format::question_name(&fault.view);
        format!("{}-{}-{question}-{}.json", fault.slot.name(), digests.join("+"), fault.fault.kind.name())
    })
}

fn write_all(storage: &Storage, library: &Library, inbox: &Receiver<Box<Fault>>) {
    while let Ok(fault) = inbox.recv() {
        if let Err(error) = write(storage, library, &fault) {
            tracing::warn!(policy = fault.policy.name, "the fault could not be written down: {error}");
        }
    }
}

fn write(storage: &Storage, library: &Library, fault: &Fault) -> io::Result<()> {
    let (Some(name), Some(loaded)) = (file_name(fault), library.find(fault.slot, &fault.policy)) else {
        return Ok(());
    };
    let artifact = Artifact::of(fault, &loaded);
    for member in &loaded.members {
        if let Some(bytes) = member.component.bytes() {
            storage.put(&format!("{}.wasm", member.info.digest), bytes)?;
        }
    }
    storage.put(&name, &serde_json::to_vec_pretty(&artifact)?)?;
    storage.tidy()
}
