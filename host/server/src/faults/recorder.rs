//! Takes faults from the engine thread and writes them on another one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use infer_core::policy::Fault;
use sha2::{Digest, Sha256};

use super::format::{self, Artifact};
use super::storage::{Storage, short};
use crate::policies::Origins;

/// Faults that may wait to be written; further ones are dropped.
const QUEUE: usize = 16;
/// File names remembered, so that a repeated fault is written once.
const NAMES: usize = 1_024;

/// Bytes of a configuration's digest in a file name.
const CONFIG_DIGITS: usize = 4;

/// Writes the first fault of each kind.
#[derive(Debug)]
pub struct FaultRecorder {
    dir: PathBuf,
    queue: SyncSender<Noted>,
    seen: Seen,
}

/// Names of the files that this host wrote (`true`), or is about to write or to look for. Nothing is read or written
/// while the lock is held, because the engine thread takes it, too.
type Seen = Arc<Mutex<HashMap<String, bool>>>;

/// What the writer is to do about a fault.
enum Noted {
    /// Write it.
    Write(Box<Fault>),
    /// Look whether the file of this name, which this host wrote, is still there: hosts share the directory and tidy
    /// it.
    Look(String),
}

impl FaultRecorder {
    /// Starts the writer. Fails if the directory is not private or can't be created.
    pub fn start(dir: &Path, origins: Arc<Origins>) -> io::Result<Self> {
        let storage = Storage::open(dir)?;
        let (queue, inbox) = sync_channel(QUEUE);
        let seen = Seen::default();
        let writer = Writer { storage, origins, seen: Arc::clone(&seen) };
        std::thread::Builder::new().name("faults".to_owned()).spawn(move || writer.write_all(&inbox))?;
        Ok(Self { dir: dir.to_owned(), queue, seen })
    }

    /// Queues a fault to be written. Returns the path of its file, or of an equal earlier fault's; `None` if too many
    /// wait. The file exists soon after; if it can't be written, the log says so, and the next equal fault tries again.
    /// If an earlier fault's file was removed, this call makes the writer notice, and the next equal fault is written.
    /// Looks at no file: the engine thread must not wait for a disk.
    pub fn note(&self, fault: &Fault) -> Option<PathBuf> {
        let name = file_name(fault)?;
        let path = self.dir.join(&name);
        let written = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
        // Copied while the lock is free: a view may be large.
        let noted = match written {
            Some(false) => return Some(path),
            Some(true) => Noted::Look(name.clone()),
            None => Noted::Write(Box::new(fault.clone())),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue.try_send(noted).ok()?;
        if seen.len() == NAMES && written.is_none() {
            seen.clear();
        }
        seen.insert(name, false);
        Some(path)
    }

    /// Returns the file of a fault that was noted, if it is there or will be soon.
    pub fn path_of(&self, fault: &Fault) -> Option<PathBuf> {
        let name = file_name(fault)?;
        let written = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&name).copied()?;
        let path = self.dir.join(name);
        (!written || path.exists()).then_some(path)
    }
}

/// Returns a name like `scheduler-0123456789ab-01234567-schedule-trap.json`: slot, component, configuration, function,
/// kind of fault. `None` for a native policy.
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
    origins: Arc<Origins>,
    seen: Seen,
}

impl Writer {
    fn write_all(&self, inbox: &Receiver<Noted>) {
        while let Ok(noted) = inbox.recv() {
            let fault = match noted {
                Noted::Write(fault) => fault,
                Noted::Look(name) => {
                    self.note(&name, self.storage.has(&name));
                    continue;
                }
            };
            let Some(name) = file_name(&fault) else { continue };
            let written = self.write(&name, &fault);
            if let Err(error) = &written {
                tracing::warn!(policy = fault.policy.name, "can't write the fault: {error}");
            }
            self.note(&name, written.is_ok());
            if let Err(error) = self.storage.tidy() {
                tracing::warn!("can't tidy the directory of faults: {error}");
            }
        }
    }

    /// Replaces a file that an earlier host wrote under this name.
    fn write(&self, name: &str, fault: &Fault) -> io::Result<()> {
        let origin = self.origins.find(fault.slot, &fault.policy);
        let origin = origin.ok_or_else(|| io::Error::other("its component has been forgotten"))?;
        let artifact = Artifact::of(fault, &origin);
        for member in &origin.members {
            if let Some(bytes) = member.component.bytes() {
                self.storage.keep(&format!("{}.wasm", member.info.digest), bytes)?;
            }
        }
        self.storage.put(name, &serde_json::to_vec_pretty(&artifact)?)
    }

    fn note(&self, name: &str, written: bool) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !written {
            seen.remove(name);
        } else if let Some(mark) = seen.get_mut(name) {
            *mark = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use infer_core::Micros;
    use infer_core::policy::{FaultKind, FaultView, PolicyFault, PolicyInfo, PolicyKind};
    use serde_json::{Value, json};

    use super::*;
    use crate::policies::{Component, Member, Origin};

    fn fault(origins: &Origins, config: Value, at: u64) -> Fault {
        let info = Arc::new(PolicyInfo {
            name: "p".into(),
            digest: "d".repeat(64),
            config: config.to_string(),
            ..PolicyInfo::default()
        });
        let component = Component::Given(Arc::from(&b"component"[..]));
        let members = vec![Member { info: Arc::clone(&info), config, component }];
        origins.remember(PolicyKind::Scheduler, Origin { info: Arc::clone(&info), members });
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
            culprits: Vec::new(),
        }
    }

    /// Returns the file's content once it is of this step.
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

    /// Waits until the writer is done with everything that was noted.
    fn settle(recorder: &FaultRecorder) {
        let until = Instant::now() + Duration::from_secs(60);
        while recorder.seen.lock().unwrap().values().any(|written| !written) {
            assert!(Instant::now() < until, "the writer marks what it wrote");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn each_configuration_and_each_host_has_its_own_fault_file() {
        let dir = tempfile::tempdir().unwrap();
        let faults = dir.path().join("faults");
        let origins = Arc::new(Origins::default());
        let (bad, good) = (fault(&origins, json!({"x": 1}), 1), fault(&origins, json!({}), 2));
        {
            let recorder = FaultRecorder::start(&faults, Arc::clone(&origins)).unwrap();
            let [bad, good] = [&bad, &good].map(|fault| recorder.note(fault).unwrap());
            assert_ne!(bad, good);
            assert_eq!(read(&bad, 1)["policy"]["members"][0]["config"], json!({"x": 1}));
            assert_eq!(read(&good, 2)["policy"]["members"][0]["config"], json!({}));
        }
        let again = FaultRecorder::start(&faults, Arc::clone(&origins)).unwrap();
        assert_eq!(again.path_of(&bad), None, "this host has not seen it");
        let later = Fault { step: 9, ..bad };
        read(&again.note(&later).unwrap(), 9);
    }

    #[test]
    fn fault_whose_file_was_removed_is_not_shown_and_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let origins = Arc::new(Origins::default());
        let fault = fault(&origins, json!({}), 1);
        let recorder = FaultRecorder::start(&dir.path().join("faults"), origins).unwrap();
        let path = recorder.note(&fault).unwrap();
        settle(&recorder);
        assert_eq!(recorder.path_of(&fault), Some(path.clone()));
        let repeated = Fault { step: 5, ..fault.clone() };
        assert_eq!(recorder.note(&repeated), Some(path.clone()));
        settle(&recorder);
        let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(kept["step"], 1, "the first fault stays");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(recorder.path_of(&fault), None);
        let again = Fault { step: 2, ..fault };
        // The writer notices at the first and writes the second.
        for _ in 0..2 {
            assert_eq!(recorder.note(&again), Some(path.clone()));
            settle(&recorder);
        }
        read(&path, 2);
    }

    #[test]
    fn fault_is_noted_without_a_look_at_its_file() {
        let dir = tempfile::tempdir().unwrap();
        // Nobody writes.
        let (queue, inbox) = sync_channel(1);
        let recorder = FaultRecorder { dir: dir.path().to_owned(), queue, seen: Seen::default() };
        let fault = fault(&Origins::default(), json!({}), 1);
        let path = recorder.note(&fault).unwrap();
        assert!(matches!(inbox.try_recv().unwrap(), Noted::Write(_)));
        for is_there in [false, true] {
            if is_there {
                std::fs::write(&path, "{}").unwrap();
            }
            recorder.seen.lock().unwrap().values_mut().for_each(|written| *written = true);
            for _ in 0..2 {
                assert_eq!(recorder.note(&fault), Some(path.clone()));
            }
            let looked_for = matches!(inbox.try_recv().unwrap(), Noted::Look(name) if path.ends_with(&name));
            assert!(looked_for, "the writer looks for the file");
            assert!(inbox.try_recv().is_err(), "once");
        }
        recorder.seen.lock().unwrap().values_mut().for_each(|written| *written = true);
        let other = Fault { slot: PolicyKind::Admission, ..fault.clone() };
        assert!(recorder.note(&other).is_some(), "it fills the queue");
        assert_eq!(recorder.note(&fault), None, "nobody will look for the file");
    }

    #[test]
    fn fault_that_could_not_be_written_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let origins = Arc::new(Origins::default());
        let known = fault(&origins, json!({}), 3);
        let stranger = Fault {
            policy: Arc::new(PolicyInfo { name: "q".into(), ..(*known.policy).clone() }),
            ..known.clone()
        };
        let recorder = FaultRecorder::start(&dir.path().join("faults"), Arc::clone(&origins)).unwrap();
        recorder.note(&stranger).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while recorder.path_of(&stranger).is_some() {
            assert!(Instant::now() < until, "it is shown though it does not exist");
            std::thread::sleep(Duration::from_millis(1));
        }
        // They share the name of a file.
        read(&recorder.note(&known).unwrap(), 3);
    }
}
