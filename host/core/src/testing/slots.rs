//! A second level of the prefix cache in plain memory, which can fail.

use crate::ids::OffloadSlot;
use crate::offload::OffloadStore;

/// Slots that a test can look at.
#[derive(Clone, Debug, Default)]
pub struct TestSlots {
    /// What was stored, by slot.
    pub slots: Vec<Option<Vec<u8>>>,
    /// Whether every further copy fails.
    pub broken: bool,
}

impl TestSlots {
    /// Empty slots.
    pub fn new(slots: u32) -> Self {
        Self { slots: vec![None; slots as usize], broken: false }
    }
}

impl OffloadStore for TestSlots {
    fn store(&mut self, slot: OffloadSlot, bytes: &[u8]) -> Result<(), String> {
        if self.broken {
            return Err("the disk is full".to_owned());
        }
        self.slots[slot.0 as usize] = Some(bytes.to_vec());
        Ok(())
    }

    fn fetch(&mut self, slot: OffloadSlot, bytes: &mut [u8]) -> Result<(), String> {
        if self.broken {
            return Err("the disk can't be read".to_owned());
        }
        let stored = self.slots[slot.0 as usize].as_ref().expect("what is fetched was stored");
        bytes.copy_from_slice(stored);
        Ok(())
    }

    fn end(&mut self) {
        self.slots.clear();
        self.broken = true;
    }
}
