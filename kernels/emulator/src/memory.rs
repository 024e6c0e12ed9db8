//! Allocations with guards: writes outside them are detected after the launch, and reads outside them give NaN.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use infer_kernels::cuda::CudaError;
use infer_ptx::{Party, Write};

const GUARD: usize = 4_096;
/// Repeated, this is NaN as bf16, f16 and f32.
const POISON: u8 = 0xff;

/// Who wrote a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Of the launch; 0 if no kernel wrote it.
    pub(crate) step: u32,
    pub(crate) who: Party,
    pub(crate) how: Write,
}

pub(crate) struct Memories {
    /// Sizes by address.
    live: BTreeMap<u64, usize>,
    /// Allocations that represent pinned memory of the host.
    pinned: BTreeSet<u64>,
    /// Of allocations that interpreted kernels wrote, by address: who wrote each byte last.
    writers: BTreeMap<u64, Vec<Writer>>,
    pub(crate) used: usize,
    pub(crate) limit: usize,
}

impl Default for Memories {
    fn default() -> Self {
        let (live, pinned, writers) = Default::default();
        Self { live, pinned, writers, used: 0, limit: 8 << 30 }
    }
}

impl Memories {
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        if self.used + bytes > self.limit {
            return Err(CudaError::out_of_memory(format!("{bytes} bytes of emulated memory")));
        }
        // SAFETY: the layout has a size; all of it is written.
        let start = unsafe {
            let start = alloc(layout(bytes));
            assert!(!start.is_null(), "the host is out of memory");
            std::ptr::write_bytes(start, POISON, bytes + 2 * GUARD);
            start
        };
        let at = start as u64 + GUARD as u64;
        self.live.insert(at, bytes);
        self.used += bytes;
        Ok(at)
    }

    pub(crate) fn allocate_pinned(&mut self, bytes: usize) -> Result<u64, CudaError> {
        let at = self.allocate(bytes)?;
        self.pinned.insert(at);
        Ok(at)
    }

    /// Whether this lies in pinned memory.
    pub(crate) fn is_pinned(&self, at: u64) -> bool {
        let start = self.pinned.range(..=at).next_back();
        start.is_some_and(|start| at < start + self.live[start] as u64)
    }

    pub(crate) fn free(&mut self, at: u64) {
        self.pinned.remove(&at);
        self.writers.remove(&at);
        let bytes = self.live.remove(&at).expect("memory is freed once");
        self.used -= bytes;
        // SAFETY: allocated above with this layout.
        unsafe { dealloc((at - GUARD as u64) as *mut u8, layout(bytes)) };
    }

    /// The allocation that contains this address.
    pub(crate) fn allocation(&self, at: u64) -> Option<Range<u64>> {
        let (start, bytes) = self.live.range(..=at).next_back()?;
        let range = *start..start + *bytes as u64;
        range.contains(&at).then_some(range)
    }

    /// Who wrote these bytes, which are in one allocation; nothing if no kernel wrote to it.
    pub(crate) fn writers(&self, at: u64, bytes: u64) -> &[Writer] {
        let Some((start, writers)) = self.writers.range(..=at).next_back() else { return &[] };
        let first = (at - start) as usize;
        writers.get(first..first + bytes as usize).unwrap_or_default()
    }

    /// The same, to be changed.
    pub(crate) fn writers_mut(&mut self, at: u64, bytes: u64) -> &mut [Writer] {
        let range = self.allocation(at).expect("only bytes of allocations are written");
        let room = (range.end - range.start) as usize;
        let writers = self.writers.entry(range.start).or_insert_with(|| vec![Writer::default(); room]);
        &mut writers[(at - range.start) as usize..][..bytes as usize]
    }

    /// Checks that these bytes lie in one allocation.
    pub(crate) fn check(&self, at: u64, bytes: usize) -> Result<(), CudaError> {
        let inside = self.allocation(at).is_some_and(|range| at + bytes as u64 <= range.end);
        if inside || bytes == 0 {
            Ok(())
        } else {
            Err(CudaError::failed(format!("{bytes} bytes at {at:#x} are in no allocation")))
        }
    }

    /// Checks that no guard was overwritten.
    pub(crate) fn check_guards(&self, kernel: &str) -> Result<(), CudaError> {
        for (at, bytes) in &self.live {
            // SAFETY: the guards are part of the allocation, which is initialized.
            let guards = unsafe {
                [at - GUARD as u64, at + *bytes as u64].map(|guard| &*(guard as *const [u8; GUARD]))
            };
            if guards.iter().any(|guard| **guard != [POISON; GUARD]) {
                return Err(CudaError::failed(format!(
                    "{kernel} wrote outside an allocation of {bytes} bytes"
                )));
            }
        }
        Ok(())
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + 2 * GUARD, 256).expect("a size that exists")
}
