//! The second level of the prefix cache (`--kv-offloading-size`): where the bytes of evicted blocks are, in the machine's
//! memory or in a file.
//!
//! Either grows as it is used. The file has no name, so it ends with the host, however that ends. It is read and written
//! rather than mapped: a full disk is then an error, which ends the second level, and not a signal, which would end the
//! host. Deliberately absent: which block is where (the engine), and when it is copied (`infer_core::offload`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use infer_core::offload::{OffloadStore, Offloading};
use infer_core::{EngineConfig, Executor, OffloadSlot};

use crate::config::{Config, ConfigError};
use crate::serve::StartError;
use crate::startup::load::shares_blocks;
use crate::startup::sizing;

/// What may come back in one step while others wait for it. A GPU takes some 10 ms for a step of prompts, and as long for
/// copies of this size.
const STEP_BYTES: u64 = 64 << 20;

/// Refuses a directory that can't have the file.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(dir) = config.kv_offloading_dir.as_ref().filter(|_| is_wanted(config)) else { return Ok(()) };
    file_in(dir).map(drop)
}

fn is_wanted(config: &Config) -> bool {
    config.kv_offloading_bytes.is_some() && shares_blocks(config)
}

/// Gives an executor its second level, and the engine the slots, if that is configured. The KV pool will take `pool_bytes`
/// of the memory that is free now.
///
/// # Errors
/// If there is no place for it, or if this executor's blocks can't be copied.
pub fn add(
    config: &Config,
    engine: &mut EngineConfig,
    executor: Box<dyn Executor + Send>,
    pool_bytes: u64,
) -> Result<Box<dyn Executor + Send>, StartError> {
    let Some(bytes) = config.kv_offloading_bytes.filter(|_| is_wanted(config)) else { return Ok(executor) };
    let block_bytes = executor.block_bytes() as u64;
    let Some(slots) = bytes.checked_div(block_bytes) else {
        let message = "--kv-offloading-size: blocks of this device can't be copied";
        return Err(ConfigError(message.to_owned()).into());
    };
    if slots == 0 {
        let message =
            format!("--kv-offloading-size: {bytes} bytes can't hold a block, which has {block_bytes}");
        return Err(ConfigError(message).into());
    }
    let Some(slots) = u32::try_from(slots).ok().filter(|&slots| slots < u32::MAX / 2) else {
        let message = format!("--kv-offloading-size: {slots} blocks are more than the engine can number");
        return Err(ConfigError(message).into());
    };
    let store = Store::new(config.kv_offloading_dir.as_deref(), slots, block_bytes, pool_bytes)?;
    engine.offload_slots = slots;
    engine.offload_step_blocks = step_blocks(block_bytes);
    tracing::info!(
        blocks = slots,
        bytes = u64::from(slots) * block_bytes,
        tokens = u64::from(slots) * u64::from(config.block_size),
        dir = config.kv_offloading_dir.as_ref().map(|dir| tracing::field::display(dir.display())),
        "the prefix cache has a second level"
    );
    Ok(Box::new(Offloading::new(executor, store)))
}

/// How many blocks of this size may come back in one step while others wait for it.
pub fn step_blocks(block_bytes: u64) -> u32 {
    u32::try_from(STEP_BYTES / block_bytes.max(1)).unwrap_or(u32::MAX).max(1)
}

#[derive(Debug)]
enum Store {
    /// A slot's memory is allocated on first use.
    Memory(Vec<Vec<u8>>),
    File(File),
    /// It failed.
    Ended,
}

/// What copies of a batch in flight get that was made before.
const ENDED: &str = "the second level failed before";

impl Store {
    fn new(dir: Option<&Path>, slots: u32, block_bytes: u64, pool_bytes: u64) -> Result<Self, StartError> {
        let bytes = u64::from(slots) * block_bytes;
        let lacks = |what: &str, free: u64| {
            let (wanted, free) = (bytes.div_ceil(1 << 20), free >> 20);
            let message = format!(
                "--kv-offloading-size: {wanted} MiB are more than the {free} MiB that {what} has left"
            );
            Err(StartError::Machine(message))
        };
        let Some(dir) = dir else {
            let free = sizing::free_memory().saturating_sub(pool_bytes);
            if bytes > free {
                return lacks("the machine, beside the KV pool,", free);
            }
            return Ok(Self::Memory(vec![Vec::new(); slots as usize]));
        };
        let file = file_in(dir)?;
        if let Ok(disk) = rustix::fs::fstatvfs(&file) {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            if bytes > free {
                return lacks(&dir.display().to_string(), free);
            }
        }
        Ok(Self::File(file))
    }
}

/// A file without a name, for this process alone.
fn file_in(dir: &Path) -> Result<File, ConfigError> {
    let wrong = |error: std::io::Error| {
        ConfigError(format!("--kv-offloading-dir: can't create a file in {}: {error}", dir.display()))
    };
    tempfile::tempfile_in(dir).map_err(wrong)
}

fn place(slot: OffloadSlot, bytes: &[u8]) -> u64 {
    u64::from(slot.0) * bytes.len() as u64
}

impl OffloadStore for Store {
    fn store(&mut self, slot: OffloadSlot, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::Memory(slots) => {
                let kept = &mut slots[slot.0 as usize];
                kept.clear();
                kept.try_reserve_exact(bytes.len())
                    .map_err(|error| format!("--kv-offloading-size: {error}"))?;
                kept.extend_from_slice(bytes);
                Ok(())
            }
            Self::File(file) => file
                .write_all_at(bytes, place(slot, bytes))
                .map_err(|error| format!("--kv-offloading-dir: can't write: {error}")),
            Self::Ended => Err(ENDED.to_owned()),
        }
    }

    fn fetch(&mut self, slot: OffloadSlot, bytes: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Memory(slots) => {
                bytes.copy_from_slice(&slots[slot.0 as usize]);
                Ok(())
            }
            Self::File(file) => file
                .read_exact_at(bytes, place(slot, bytes))
                .map_err(|error| format!("--kv-offloading-dir: can't read: {error}")),
            Self::Ended => Err(ENDED.to_owned()),
        }
    }

    /// Frees the memory, or the file, which others may need: it may be what fills the disk.
    fn end(&mut self) {
        *self = Self::Ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_stores_give_back_what_they_took() {
        let dir = tempfile::tempdir().unwrap();
        for dir in [None, Some(dir.path())] {
            let mut store = Store::new(dir, 3, 4, 0).unwrap();
            for (slot, bytes) in [(2, [1, 2, 3, 4]), (0, [5, 6, 7, 8]), (2, [9, 9, 9, 9])] {
                store.store(OffloadSlot(slot), &bytes).unwrap();
            }
            for (slot, bytes) in [(0, [5, 6, 7, 8]), (2, [9, 9, 9, 9])] {
                let mut fetched = [0; 4];
                store.fetch(OffloadSlot(slot), &mut fetched).unwrap();
                assert_eq!(fetched, bytes, "{dir:?}");
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn a_file_that_lost_its_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::new(Some(dir.path()), 3, 4, 0).unwrap();
        let error = store.fetch(OffloadSlot(1), &mut [0; 4]).unwrap_err();
        assert!(error.contains("--kv-offloading-dir"), "{error}");
    }

    #[test]
    fn a_store_that_ends_gives_its_place_back() {
        let dir = tempfile::tempdir().unwrap();
        for dir in [None, Some(dir.path())] {
            let mut store = Store::new(dir, 3, 4, 0).unwrap();
            store.store(OffloadSlot(0), &[1, 2, 3, 4]).unwrap();
            store.end();
            assert!(matches!(store, Store::Ended), "nothing of it is left");
            assert_eq!(store.fetch(OffloadSlot(0), &mut [0; 4]).unwrap_err(), ENDED);
            assert_eq!(store.store(OffloadSlot(0), &[1, 2, 3, 4]).unwrap_err(), ENDED);
        }
    }

    #[test]
    fn memory_is_shared_with_a_pool_that_has_not_taken_its_part_yet() {
        let error = Store::new(None, 1, 1, u64::MAX).unwrap_err();
        assert!(error.to_string().contains("beside the KV pool"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        assert!(Store::new(Some(dir.path()), 1, 1, u64::MAX).is_ok(), "a file takes none of it");
    }

    #[test]
    fn too_much_is_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        for place in [None, Some(dir.path())] {
            let error = Store::new(place, u32::MAX / 4, 1 << 30, 0).unwrap_err();
            assert!(matches!(error, StartError::Machine(_)), "{error}");
            assert!(error.to_string().starts_with("--kv-offloading-size: "), "{error}");
        }
        let missing = dir.path().join("missing");
        let error = Store::new(Some(&missing), 1, 1, 0).unwrap_err();
        assert!(matches!(&error, StartError::Config(_)), "{error}");
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
