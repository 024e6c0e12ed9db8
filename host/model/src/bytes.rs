//! The bytes of a checkpoint's file: mapped, copied, or embedded in the binary. Mapped pages can be released after reading, so that a
//! checkpoint is never in memory twice.

use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::error::ModelError;

/// A file's bytes.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Mapped(Mmap),
    Copied(Vec<u8>),
    Borrowed(&'a [u8]),
}

impl Bytes<'_> {
    /// Maps a file.
    #[allow(unsafe_code, reason = "a memory map; see SAFETY")]
    pub(crate) fn map(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::io(path, &error))?;
        // SAFETY: the map is only read, while a model is loaded. Truncating the file meanwhile kills this process with a bus
        // error, but touches no other memory.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| ModelError::io(path, &error))?;
        // Without the advice reading still works, only slower.
        let _ = map.advise(Advice::Sequential);
        Ok(Self::Mapped(map))
    }

    /// Copies a file of up to so many bytes.
    pub(crate) fn copy(path: &Path, most: u64) -> Result<Self, ModelError> {
        let read = read_within(path, most).map_err(|error| ModelError::io(path, &error))?;
        read.map(Self::Copied).map_err(|_| {
            let message =
                format!("{} has more than {most} bytes, the most that are read of it", path.display());
            ModelError::weights(message)
        })
    }

    /// Where in the file these bytes are, if they are a part of it.
    pub(crate) fn range_of(&self, part: &[u8]) -> Option<Range<usize>> {
        let start = part.as_ptr().addr().checked_sub(self.as_ptr().addr())?;
        let end = start.checked_add(part.len())?;
        (end <= self.len()).then_some(start..end)
    }

    /// Asks the system to read a range from disk, without waiting.
    pub(crate) fn expect(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // Only advice, as in `map`.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Maps a range's pages at once: a fault for each page would cost as much as the copying.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // Systems without this advice fault page by page.
            #[cfg(target_os = "linux")]
            let _ = map.advise_range(Advice::PopulateRead, range.start, range.len());
            #[cfg(not(target_os = "linux"))]
            let _ = (map, range);
        }
    }

    /// Unmaps pages that were read; they stay in the page cache.
    #[allow(unsafe_code, reason = "advice about a memory map; see SAFETY")]
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // SAFETY: the map is of a file and never written, so a dropped page is read again from the file with the same
            // bytes.
            let _ =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
    }
}

/// Reads a file of at most so many bytes, or tells the size of a larger one, of which nothing is kept.
pub(crate) fn read_within(path: &Path, most: u64) -> io::Result<Result<Vec<u8>, u64>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > most {
        return Ok(Err(size));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size as usize)?;
    // One more, in case somebody is writing it.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let read = bytes.len() as u64;
    Ok(if read > most { Err(read) } else { Ok(bytes) })
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Copied(bytes) => bytes,
            Self::Borrowed(bytes) => bytes,
        }
    }
}
