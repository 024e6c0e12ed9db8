//! Accesses to shared memory that nothing orders. Two accesses to a byte by different threads, at least one of them a write
//! and not both atomic, need a barrier between: of the block, or of the warp if both threads are in it. Shuffles and matrix
//! products make lanes meet, but order no memory (PTX ISA: only `bar.warp.sync` does among `*.sync` of a warp).
//!
//! Between two block barriers it suffices to know of each kind of access which warps made one, and if just one warp did,
//! which lanes since its last barrier: nothing older can conflict with what follows.

/// The barriers that a thread has passed. Counted on over blocks and launches, so nothing has to be cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) block: u32,
    pub(crate) warp: u32,
}

/// Who accesses, where and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) thread: u32,
    pub(crate) instruction: u32,
    pub(crate) now: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    Atomic,
}

/// An earlier access that conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) kind: Kind,
    pub(crate) thread: u32,
    pub(crate) instruction: u32,
}

/// Accesses of one kind since the last block barrier.
#[derive(Clone, Copy, Default)]
struct Accesses {
    at: Moment,
    warps: u32,
    /// Of the only warp, since its barrier.
    lanes: u32,
    /// The latest.
    thread: u32,
    instruction: u32,
}

impl Accesses {
    /// Whether another thread is among them at this moment or later.
    fn include_another(&self, thread: u32, since: Moment) -> bool {
        if self.at.block < since.block {
            return false;
        }
        let (warp, lane) = (1 << (thread / 32), 1_u32 << (thread % 32));
        let ordered = self.at.block == since.block && self.at.warp < since.warp;
        self.warps & !warp != 0 || (self.warps == warp && !ordered && self.lanes & !lane != 0)
    }

    fn add(&mut self, who: &Who) {
        let (warp, lane) = (1 << (who.thread / 32), 1 << (who.thread % 32));
        if self.at.block != who.now.block {
            (self.warps, self.lanes) = (warp, lane);
        } else if self.warps != warp {
            self.warps |= warp;
        } else if self.at.warp == who.now.warp {
            self.lanes |= lane;
        } else {
            self.lanes = lane;
        }
        (self.at, self.thread, self.instruction) = (who.now, who.thread, who.instruction);
    }
}

/// Of each cell of shared memory, who accessed it.
#[derive(Default)]
pub(crate) struct Races {
    cells: Vec<[Accesses; 3]>,
    /// Bytes of a cell: as small as the smallest access.
    grain: u64,
}

impl Races {
    pub(crate) fn prepare(&mut self, shared_bytes: usize, grain: u64) {
        if grain != self.grain {
            self.cells.clear();
        }
        self.grain = grain;
        let cells = shared_bytes.div_ceil(grain as usize);
        if self.cells.len() < cells {
            self.cells.resize(cells, Default::default());
        }
    }

    /// Adds an access to bytes at an offset, unless one of another thread conflicts with it at `since` or later.
    pub(crate) fn access(
        &mut self,
        at: u64,
        bytes: u64,
        kind: Kind,
        who: &Who,
        since: Moment,
    ) -> Result<(), Conflict> {
        let cells = (at / self.grain) as usize..(at + bytes).div_ceil(self.grain) as usize;
        let against: &[Kind] = match kind {
            Kind::Read => &[Kind::Write, Kind::Atomic],
            Kind::Write => &[Kind::Write, Kind::Read, Kind::Atomic],
            Kind::Atomic => &[Kind::Write, Kind::Read],
        };
        for cell in &mut self.cells[cells] {
            for other in against {
                let accesses = &cell[*other as usize];
                if accesses.include_another(who.thread, since) {
                    let Accesses { thread, instruction, .. } = *accesses;
                    return Err(Conflict { kind: *other, thread, instruction });
                }
            }
            cell[kind as usize].add(who);
        }
        Ok(())
    }
}
