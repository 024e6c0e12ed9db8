//! Asynchronous copies of one thread. They take effect when their group is waited for, the latest moment at which a device
//! may perform them, so that a read before shows what was there.

use crate::memory::{Memory, Refused};
use crate::race::{Moment, Who};

#[derive(Clone, Copy)]
struct Copy {
    /// Target and source.
    at: [u64; 2],
    /// Written, and of these read from the source.
    bytes: [u64; 2],
    group: u32,
    since: Moment,
    instruction: u32,
}

#[derive(Default)]
pub(crate) struct Copies {
    /// In flight, oldest first.
    flying: Vec<Copy>,
    /// Committed groups so far, which is the number of the group that is open.
    groups: u32,
}

impl Copies {
    pub(crate) fn clear(&mut self) {
        self.flying.clear();
        self.groups = 0;
    }

    pub(crate) fn are_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    pub(crate) fn start(
        &mut self,
        memory: &mut Memory<'_>,
        at: [u64; 2],
        bytes: [u64; 2],
        who: &Who,
        waited: bool,
    ) -> Result<(), Refused> {
        memory.start_copy(at, bytes, who, waited)?;
        let (since, instruction) = (who.now, who.instruction);
        self.flying.push(Copy { at, bytes, group: self.groups, since, instruction });
        Ok(())
    }

    pub(crate) fn commit(&mut self) {
        self.groups += 1;
    }

    /// Performs the copies of all groups but the latest `left` and the open one.
    pub(crate) fn wait(&mut self, memory: &mut Memory<'_>, left: u32, who: &Who) -> Result<(), Refused> {
        let groups = self.groups;
        let done = self.flying.partition_point(|copy| copy.group + left < groups);
        for copy in self.flying.drain(..done) {
            // Conflicts name the copy, not the wait.
            let who = Who { instruction: copy.instruction, ..*who };
            memory.finish_copy(copy.at, copy.bytes, &who, copy.since)?;
        }
        Ok(())
    }
}
