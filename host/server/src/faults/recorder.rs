//! Takes faults from the engine thread and has them written by another one.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::Fault;
use sha2::{Digest, Sha256};

use super::format::{self, Artifact};
use super::library::Library;
use super::storage::{Storage, short};

/// Faults that may wait for the disk.
const QUEUE: usize = 16;
/// Names remembered, so that the same fault a thousand times is written once.
const NAMES: usize = 1_024;

/// Digits of a configuration's digest in a file's name.
const CONFIG_DIGITS: usize = 4;

/// Keeps the first fault of each kind.
#[derive(Debug)]
pub struct FaultRecorder {
    dir: PathBuf,
    queue: SyncSender<Box<Fault>>,
    seen: Seen,
}

/// Names of the files that are there, or will be soon.
type Seen = Arc<Mutex<HashSet<String>>>;

impl FaultRecorder {
    /// Starts the writer. Fails where the directory is not private or can't be made.
    pub fn start(dir: &Path, library: Arc<Library>) -> io::Result<Self> {
        let storage = Storage::open(dir)?;
        let (queue, inbox) = sync_channel(QUEUE);
        let seen = Seen::default();
        let writer = Writer { storage, library, seen: Arc::clone(&seen) };
        std::thread::Builder::new().name("faults".to_owned()).spawn(move || writer.write_all(&inbox))?;
        Ok(Self { dir: dir.to_owned(), queue, seen })
    }

    /// A policy failed. Returns the file that tells of it, or of an earlier fault just like it; it is
    /// there soon after, unless it can't be written, which the log says: the next fault like it is tried again.
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

/// `scheduler-0123456789ab-01234567-schedule-trap.json`: component and configuration, question, kind of fault. Nothing
/// for a native policy.
fn file_name(fault: &Fault) -> Option<String> {
    let digests: Vec<&str> = fault.policy.digest.split('+').filter(|d| !d.is_empty()).map(short).collect();
    (!digests.is_empty()).then(|| {
        let config = Sha256::digest(&fault.policy.config);
        let config: String = config[..CONFIG_DIGITS].iter().map(|byte| format!("{byte:02x}")).collect();
        let (slot, digests, kind) = (fault.slot.name(), digests.join("+"), fault.fault.kind.name());
        format!("{slot}-{digests}-{config}-{}-{kind}.json", format::question_name(&fault.view))
    })
}

struct Writer {
    storage: Storage,
    library: Arc<Library>,
    seen: Seen,
}

impl Writer {
    fn write_all(&self, inbox: &Receiver<Box<Fault>>) {
        while let Ok(fault) = inbox.recv() {
            let Some(name) = file_name(&fault) else { continue };
            if let Err(error) = self.write(&name, &fault) {
                tracing::warn!(policy = fault.policy.name, "the fault could not be written down: {error}");
                self.forget(&[name]);
            }
            match self.storage.tidy() {
                Ok(gone) => self.forget(&gone),
                Err(error) => tracing::warn!("the directory of faults can't be tidied: {error}"),
            }
        }
    }

    /// What an earlier host wrote under this name is older than what is told now.
    fn write(&self, name: &str, fault: &Fault) -> io::Result<()> {
        let loaded = self.library.find(fault.slot, &fault.policy);
        let loaded =
            loaded.ok_or_else(|| io::Error::other("it is not known any more what it was made of"))?;
        let artifact = Artifact::of(fault, &loaded);
        for member in &loaded.members {
            if let Some(bytes) = member.component.bytes() {
                self.storage.keep(&format!("{}.wasm", member.info.digest), bytes)?;
            }
        }
        self.storage.put(name, &serde_json::to_vec_pretty(&artifact)?)
    }

    fn forget(&self, names: &[String]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|name| !names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use infer_core::Micros;
    use infer_core::policy::{FaultKind, FaultView, PolicyFault, PolicyInfo, PolicyKind};
    use serde_json::{Value, json};

    use super::super::library::{Component, Loaded, Member};
    use super::*;

    fn fault(library: &Library, config: Value, at: u64) -> Fault {
        let info = Arc::new(PolicyInfo {
            name: "p".into(),
            digest: "d".repeat(64),
            config: config.to_string(),
            ..PolicyInfo::default()
        });
        let component = Component::Given(Arc::from(&b"component"[..]));
        let members = vec![Member { info: Arc::clone(&info), config, component }];
        library.remember(PolicyKind::Scheduler, Loaded { info: Arc::clone(&info), members });
        Fault {
            slot: PolicyKind::Scheduler,
            policy: info,
            fault: PolicyFault::new(FaultKind::Trap, "trap"),
            step: at,
            at: Micros(at),
            view: FaultView::Lifecycle,
            state: Vec::new(),
            shadow: false,
            removed: false,
        }
    }

    /// Once it is of this step.
    fn read(path: &Path, step: u64) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let text = std::fs::read(path).unwrap_or_default();
            match serde_json::from_slice::<Value>(&text) {
                Ok(fault) if fault["step"] == step => return fault,
                _ => assert!(Instant::now() < until, "{} is not written", path.display()),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_fault_is_told_with_its_own_file_and_not_with_that_of_another_configuration_or_host() {
        let dir = tempfile::tempdir().unwrap();
        let faults = dir.path().join("faults");
        let library = Arc::new(Library::default());
        let (bad, good) = (fault(&library, json!({"x": 1}), 1), fault(&library, json!({}), 2));
        {
            let recorder = FaultRecorder::start(&faults, Arc::clone(&library)).unwrap();
            let [bad, good] = [&bad, &good].map(|fault| recorder.note(fault).unwrap());
            assert_ne!(bad, good);
            assert_eq!(read(&bad, 1)["policy"]["members"][0]["config"], json!({"x": 1}));
            assert_eq!(read(&good, 2)["policy"]["members"][0]["config"], json!({}));
        }
        let again = FaultRecorder::start(&faults, Arc::clone(&library)).unwrap();
        assert_eq!(again.path_of(&bad), None, "this host has not seen it");
        let later = Fault { step: 9, ..bad };
        read(&again.note(&later).unwrap(), 9);
    }

    #[test]
    fn a_fault_that_could_not_be_written_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let library = Arc::new(Library::default());
        let known = fault(&library, json!({}), 3);
        let stranger = Fault {
            policy: Arc::new(PolicyInfo { name: "q".into(), ..(*known.policy).clone() }),
            ..known.clone()
        };
        let recorder = FaultRecorder::start(&dir.path().join("faults"), Arc::clone(&library)).unwrap();
        recorder.note(&stranger).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while recorder.path_of(&stranger).is_some() {
            assert!(Instant::now() < until, "it is told though it is not there");
            std::thread::sleep(Duration::from_millis(1));
        }
        // They share the name of a file.
        read(&recorder.note(&known).unwrap(), 3);
    }
}
