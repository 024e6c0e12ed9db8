//! Every access of a kernel: it must be aligned and lie within parameters, shared memory or one allocation. This is the only
//! file that touches memory.

use std::ops::Range;

use crate::program::{Combine, PARAM_BASE, SHARED_BASE, Shape, Space};
use crate::race::{Conflict, Kind, Moment, Races, Who};
use crate::{Global, Party, Write};

/// Why an access is refused.
#[derive(Debug)]
pub(crate) enum Refused {
    Said(String),
    Race(u64, Kind, Conflict),
}

impl From<String> for Refused {
    fn from(said: String) -> Self {
        Self::Said(said)
    }
}

/// The memory that a block sees.
pub(crate) struct Memory<'a> {
    global: &'a mut dyn Global,
    /// Allocations that were accessed last.
    known: [Range<u64>; 4],
    next: usize,
    pub(crate) shared: &'a mut [u8],
    params: &'a [u8],
    races: Option<&'a mut Races>,
    published: Option<Published>,
    /// Index of the block that runs.
    pub(crate) block: u32,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(
        global: &'a mut dyn Global,
        shared: &'a mut [u8],
        params: &'a [u8],
        races: Option<&'a mut Races>,
    ) -> Self {
        Self {
            global,
            known: [0..0, 0..0, 0..0, 0..0],
            next: 0,
            shared,
            params,
            races,
            published: None,
            block: 0,
        }
    }

    /// Checks from now on that what tensor cores read was published to them. A new block has written nothing.
    pub(crate) fn check_published(&mut self) {
        self.published = Some(Published::new(self.shared.len()));
    }

    /// What this thread wrote to shared memory is there for the tensor cores, as soon as they are behind it.
    pub(crate) fn publish(&mut self, thread: u32) {
        if let Some(published) = &mut self.published {
            published.fences[thread as usize] += 1;
        }
    }

    /// The tensor cores read 16 bytes of shared memory, at some moment from `since` to now.
    pub(crate) fn read_by_tensor_cores(&mut self, at: u64, who: &Who, since: Moment) -> Result<(), Refused> {
        let at = within("the block's shared memory", SHARED_BASE, self.shared.len(), at, PART)?;
        self.order(at, PART, Kind::Read, who, since)?;
        match self.published.as_ref().and_then(|published| published.lacks(at)) {
            None => Ok(()),
            Some(thread) => Err(format!(
                "the tensor cores read {PART} bytes at {:#x} of shared memory that thread {thread} wrote with no \
                 `fence.proxy.async` since",
                SHARED_BASE + at as u64
            )
            .into()),
        }
    }

    /// Two bytes of shared memory, which was checked.
    pub(crate) fn shared_half(&self, at: u64) -> u16 {
        let at = (at - SHARED_BASE) as usize;
        u16::from_le_bytes([self.shared[at], self.shared[at + 1]])
    }

    /// Reads values. `waited`: whether the thread has waited for earlier kernels.
    pub(crate) fn load(
        &mut self,
        space: Space,
        at: u64,
        shape: Shape,
        who: &Who,
        waited: bool,
    ) -> Result<[u64; 4], Refused> {
        let bytes = shape.total();
        let from: *const u8 = match space {
            Space::Param => {
                let at = within("the parameters", PARAM_BASE, self.params.len(), at, bytes)?;
                &raw const self.params[at]
            }
            Space::Shared => {
                let at = within("the block's shared memory", SHARED_BASE, self.shared.len(), at, bytes)?;
                self.order(at, bytes, Kind::Read, who, who.now)?;
                &raw const self.shared[at]
            }
            Space::Global => {
                self.check(at, bytes)?;
                self.global.read(at, bytes, &self.party(who), waited)?;
                at as *const u8
            }
        };
        let mut values = [0; 4];
        for (index, value) in values.iter_mut().take(usize::from(shape.count)).enumerate() {
            // SAFETY: all bytes are in the parameters, in shared memory or in an allocation, as just checked.
            *value = unsafe { read(from.add(index * usize::from(shape.bytes)), shape.bytes) };
        }
        Ok(values)
    }

    pub(crate) fn store(
        &mut self,
        space: Space,
        at: u64,
        shape: Shape,
        values: [u64; 4],
        who: &Who,
    ) -> Result<(), Refused> {
        let bytes = usize::from(shape.bytes);
        let to = match space {
            Space::Global => {
                self.check(at, shape.total())?;
                let to = at as *mut u8;
                let is_there = |(index, value): (usize, &u64)| {
                    // SAFETY: all bytes are in an allocation, as just checked.
                    let old = unsafe { read(to.add(index * bytes), shape.bytes) };
                    old == value & (u64::MAX >> (64 - 8 * bytes))
                };
                let same = values.iter().take(usize::from(shape.count)).enumerate().all(is_there);
                let how = if same { Write::Same } else { Write::Change };
                self.global.write(at, shape.total(), &self.party(who), how)?;
                to
            }
            _ => self.target(space, at, shape.total(), (Kind::Write, Write::Change), who)?,
        };
        for (index, value) in values.iter().take(usize::from(shape.count)).enumerate() {
            // SAFETY: all bytes are in shared memory or in an allocation, as just checked.
            unsafe { write(to.add(index * usize::from(shape.bytes)), shape.bytes, *value) };
        }
        Ok(())
    }

    /// Combines a value with the one in memory, which is returned.
    pub(crate) fn atomic(
        &mut self,
        space: Space,
        at: u64,
        shape: Shape,
        (combine, how): (Combine, Write),
        value: u64,
        who: &Who,
    ) -> Result<u64, Refused> {
        let to = self.target(space, at, shape.total(), (Kind::Atomic, how), who)?;
        // SAFETY: all bytes are in shared memory or in an allocation, as just checked.
        unsafe {
            let old = read(to, shape.bytes);
            write(to, shape.bytes, combine(old, value));
            Ok(old)
        }
    }

    fn target(
        &mut self,
        space: Space,
        at: u64,
        bytes: u64,
        (kind, how): (Kind, Write),
        who: &Who,
    ) -> Result<*mut u8, Refused> {
        if space == Space::Shared {
            let at = within("the block's shared memory", SHARED_BASE, self.shared.len(), at, bytes)?;
            self.order(at, bytes, kind, who, who.now)?;
            return Ok(&raw mut self.shared[at]);
        }
        self.check(at, bytes)?;
        self.global.write(at, bytes, &self.party(who), how)?;
        Ok(at as *mut u8)
    }

    /// Checks a copy that starts: `read` of its bytes are read from global memory. A thread that still accesses the target
    /// conflicts with it from now on.
    pub(crate) fn start_copy(
        &mut self,
        [to, from]: [u64; 2],
        [bytes, read]: [u64; 2],
        who: &Who,
        waited: bool,
    ) -> Result<(), Refused> {
        if read > bytes {
            return Err(format!("a copy of {bytes} bytes that reads {read}").into());
        }
        let at = within("the block's shared memory", SHARED_BASE, self.shared.len(), to, bytes)?;
        self.order(at, bytes, Kind::Write, who, who.now)?;
        if !from.is_multiple_of(bytes) {
            return Err(format!("{bytes} bytes at {from:#x} are not aligned").into());
        }
        if read > 0 {
            contained(self, from, read)?;
            self.global.read(from, read, &self.party(who), waited)?;
        }
        Ok(())
    }

    /// Performs a copy that was checked when it started, at `since`.
    pub(crate) fn finish_copy(
        &mut self,
        [to, from]: [u64; 2],
        [bytes, read]: [u64; 2],
        who: &Who,
        since: Moment,
    ) -> Result<(), Refused> {
        let at = (to - SHARED_BASE) as usize;
        self.order(at, bytes, Kind::Write, who, since)?;
        let (to, read) = (&mut self.shared[at..at + bytes as usize], read as usize);
        to[read..].fill(0);
        if read > 0 {
            // SAFETY: in an allocation, as checked when the copy started; none is freed during a launch.
            to[..read].copy_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, read) });
        }
        Ok(())
    }

    fn party(&self, who: &Who) -> Party {
        let Moment { block: block_barriers, warp: warp_barriers } = who.now;
        Party { block: self.block, thread: who.thread, block_barriers, warp_barriers }
    }

    fn order(&mut self, at: usize, bytes: u64, kind: Kind, who: &Who, since: Moment) -> Result<(), Refused> {
        if kind != Kind::Read
            && let Some(published) = &mut self.published
        {
            published.write(at, bytes, who.thread);
        }
        let Some(races) = &mut self.races else { return Ok(()) };
        let found = races.access(at as u64, bytes, kind, who, since);
        found.map_err(|conflict| Refused::Race(SHARED_BASE + at as u64, kind, conflict))
    }

    fn check(&mut self, at: u64, bytes: u64) -> Result<(), String> {
        if !at.is_multiple_of(bytes) {
            return Err(format!("{bytes} bytes at {at:#x} are not aligned"));
        }
        contained(self, at, bytes)
    }
}

/// Bytes that tensor cores read at once.
const PART: u64 = 16;

/// Which threads wrote parts of shared memory, and whether they executed `fence.proxy.async` since.
struct Published {
    /// Of each part the thread that wrote it last, and that one's fences before.
    writers: Vec<Option<(u32, u32)>>,
    /// Of each thread.
    fences: Vec<u32>,
}

impl Published {
    fn new(shared_bytes: usize) -> Self {
        Self { writers: vec![None; shared_bytes.div_ceil(PART as usize)], fences: vec![0; 1_024] }
    }

    fn write(&mut self, at: usize, bytes: u64, thread: u32) {
        let fences = self.fences[thread as usize];
        let parts = at / PART as usize..(at + bytes as usize).div_ceil(PART as usize);
        self.writers[parts].fill(Some((thread, fences)));
    }

    /// The thread that wrote a part and published nothing since.
    fn lacks(&self, at: usize) -> Option<u32> {
        let (thread, fences) = self.writers[at / PART as usize]?;
        (self.fences[thread as usize] == fences).then_some(thread)
    }
}

/// Checks that bytes are in one allocation.
fn contained(memory: &mut Memory<'_>, at: u64, bytes: u64) -> Result<(), String> {
    let inside = |range: &Range<u64>| range.contains(&at) && bytes <= range.end - at;
    if memory.known.iter().any(inside) {
        return Ok(());
    }
    match memory.global.allocation(at) {
        Some(range) if inside(&range) => {
            memory.known[memory.next] = range;
            memory.next = (memory.next + 1) % memory.known.len();
            Ok(())
        }
        _ => Err(format!("{bytes} bytes at {at:#x} are in no allocation")),
    }
}

/// Offset of aligned bytes within a space of this length.
fn within(space: &str, base: u64, length: usize, at: u64, bytes: u64) -> Result<usize, String> {
    if !at.is_multiple_of(bytes) {
        return Err(format!("{bytes} bytes at {at:#x} are not aligned"));
    }
    match at.checked_sub(base) {
        Some(offset) if offset < length as u64 && bytes <= length as u64 - offset => Ok(offset as usize),
        _ => Err(format!("{bytes} bytes at {at:#x} are not in {space}, {length} bytes from {base:#x} on")),
    }
}

/// # Safety
/// So many bytes may be read.
unsafe fn read(from: *const u8, bytes: u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            1 => u64::from(from.read()),
            2 => u64::from(from.cast::<u16>().read_unaligned()),
            4 => u64::from(from.cast::<u32>().read_unaligned()),
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}

/// # Safety
/// So many bytes may be written.
unsafe fn write(to: *mut u8, bytes: u8, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            1 => to.write(value as u8),
            2 => to.cast::<u16>().write_unaligned(value as u16),
            4 => to.cast::<u32>().write_unaligned(value as u32),
            _ => to.cast::<u64>().write_unaligned(value),
        }
    }
}
