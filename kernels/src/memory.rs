//! Memory for weights and KV pools: anonymous maps aligned for huge pages, which they request. Streaming through 4 KiB pages
//! can take twice as long. Small buffers share a map, so that a matrix of half a megabyte gets huge pages too. Pages never
//! written take no memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memmap2::MmapMut;

/// Size and alignment of a huge page on x86-64.
const HUGE: usize = 2 << 20;
/// Bytes of a map that several buffers share.
const MAP: usize = 64 << 20;
/// Every buffer starts at a cache line.
const LINE: usize = 64;

/// The system could not map the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The requested size.
    pub bytes: usize,
    reason: String,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for {} MiB ({})", self.bytes >> 20, self.reason)
    }
}

impl std::error::Error for OutOfMemory {}

/// Numbers for which all-zero bits are a valid value.
///
/// # Safety
/// Every bit pattern is a value of the type, which has no padding.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: every bit pattern is a number.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for half::bf16 {}

/// Numbers as bytes, in the machine's order.
pub(crate) fn bytes<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: the numbers' own memory, without padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// See [`bytes`].
pub(crate) fn bytes_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; the borrow is exclusive, and any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Page size requested from the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages if available.
    #[default]
    Huge,
    /// Small pages, for comparison.
    Small,
}

/// Allocates buffers from shared maps, one after another. A map is unmapped when its last buffer is dropped.
#[derive(Debug, Default)]
pub struct Arena {
    current: Option<Arc<Map>>,
    used: usize,
    pages: Pages,
}

impl Arena {
    /// An arena with pages of this kind.
    pub fn with_pages(pages: Pages) -> Self {
        Self { pages, ..Self::default() }
    }

    /// Allocates a zeroed buffer of `len` numbers.
    ///
    /// # Errors
    /// If the system can't map more memory.
    pub fn numbers<T: Plain>(&mut self, len: usize) -> Result<Numbers<T>, OutOfMemory> {
        let bytes =
            len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize - MAP).ok_or_else(
                || OutOfMemory { bytes: usize::MAX, reason: "beyond the address space".to_owned() },
            )?;
        let map = match &self.current {
            Some(map) if map.len - self.used >= bytes => Arc::clone(map),
            _ => {
                let map = Arc::new(Map::new(bytes.max(MAP).next_multiple_of(HUGE), self.pages)?);
                self.used = 0;
                Arc::clone(self.current.insert(map))
            }
        };
        let start = self.used;
        self.used = (start + bytes).next_multiple_of(LINE).min(map.len);
        // SAFETY: the range lies inside the map.
        let first = unsafe { map.first.add(start) }.cast();
        Ok(Numbers { map, first, len, numbers: PhantomData })
    }
}

/// A buffer that owns its part of a map. Dereferences to a slice.
pub struct Numbers<T> {
    /// Kept for its memory.
    #[allow(dead_code, reason = "dropping it unmaps")]
    map: Arc<Map>,
    first: *mut T,
    len: usize,
    numbers: PhantomData<T>,
}

// SAFETY: an owned buffer of numbers, which are themselves `Send`.
unsafe impl<T: Plain> Send for Numbers<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Numbers<T> {}

impl<T: Plain> Numbers<T> {
    /// Allocates a zeroed buffer with its own map.
    ///
    /// # Errors
    /// If the system can't map more memory.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Arena::default().numbers(len)
    }
}

impl<T: Plain> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` numbers from `first` on are this buffer's part of a map; zero bits are numbers.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T: Plain> DerefMut for Numbers<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and no other buffer has this part.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> fmt::Debug for Numbers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Numbers({})", self.len)
    }
}

/// A map, of which `len` bytes from `first` on are usable.
#[derive(Debug)]
struct Map {
    #[allow(dead_code, reason = "dropping it unmaps")]
    owner: MmapMut,
    first: *mut u8,
    len: usize,
}

// SAFETY: the pointer is into the map that `owner` owns; buffers never overlap.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(len: usize, pages: Pages) -> Result<Self, OutOfMemory> {
        let failed = |error: std::io::Error| OutOfMemory { bytes: len, reason: error.to_string() };
        let mut owner = MmapMut::map_anon(len + HUGE).map_err(failed)?;
        #[cfg(target_os = "linux")]
        // A kernel without huge pages refuses, and small pages work too.
        let _ = owner.advise(match pages {
            Pages::Huge => memmap2::Advice::HugePage,
            Pages::Small => memmap2::Advice::NoHugePage,
        });
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        let skip = owner.as_ptr().align_offset(HUGE);
        // SAFETY: `skip` is below HUGE, and the map has HUGE bytes to spare.
        let first = unsafe { owner.as_mut_ptr().add(skip) };
        Ok(Self { owner, first, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arena_buffers_are_zeroed_disjoint_and_outlive_it() {
        let mut arena = Arena::default();
        let mut all: Vec<Numbers<u32>> =
            [0, 1, 17, 5 << 20, 20 << 20, 3].into_iter().map(|len| arena.numbers(len).unwrap()).collect();
        drop(arena);
        for (i, numbers) in all.iter_mut().enumerate() {
            assert!(numbers.as_ptr().addr().is_multiple_of(LINE));
            assert!(numbers.iter().all(|x| *x == 0), "buffer {i} overlaps another");
            numbers.fill(1 + i as u32);
        }
        for (i, numbers) in all.iter().enumerate() {
            assert!(numbers.iter().all(|x| *x == 1 + i as u32), "buffer {i} was written by another");
        }
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        assert!(Numbers::<f32>::zeroed(usize::MAX / 2).is_err());
        assert!(Numbers::<f32>::zeroed(1 << 58).is_err());
    }
}
