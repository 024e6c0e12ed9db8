//! The bytes of a checkpoint's file: mapped, or inside the binary. Mapped pages that were read can be given
//! back, so that a checkpoint is never in memory twice.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::error::ModelError;

/// A file's bytes.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Mapped(Mmap),
    Borrowed(&'a [u8]),
}

impl Bytes<'_> {
    /// Maps a file.
    #[allow(unsafe_code, reason = "a memory map; see SAFETY")]
    pub(crate) fn map(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::io(path, &error))?;
        // SAFETY: the map is read while a model is loaded, and never written. Someone who truncates the file in
        // that time ends this process with a bus error, but no other memory is touched.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| ModelError::io(path, &error))?;
        // Without the advice everything is read all the same, only later.
        let _ = map.advise(Advice::Sequential);
        Ok(Self::Mapped(map))
    }

    /// Has the system read a range from the disk, and does not wait for it.
    pub(crate) fn expect(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // As `map`: advice.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Brings a range into memory in one go: a fault for each page costs as much as the copying.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // Systems that don't know the advice read page by page.
            let _ = map.advise_range(Advice::PopulateRead, range.start, range.len());
        }
    }

    /// Takes pages that were read out of this process's memory; they stay in the page cache.
    #[allow(unsafe_code, reason = "advice about a memory map; see SAFETY")]
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // SAFETY: the map is of a file and never written, so a page that is dropped here comes back from
            // the file with the same bytes.
            let _ =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Borrowed(bytes) => bytes,
        }
    }
}
