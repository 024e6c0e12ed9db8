//! What admission is shown of the host is so: who runs, who waits, and how many blocks they may still ask for. Whoever
//! lets in what the pool can hold to its end lives by these numbers, and nothing else would tell that they are wrong.

use infer_core::policy::Load;

use super::Machine;

/// What the machine knows of those alive, at an instant.
pub(super) struct Books {
    running: u32,
    preempted: u32,
    queued: u32,
    /// Blocks that running ones have yet to grow by, and the most that preempted ones come back for.
    grow: u32,
    come_back: u32,
    /// The most blocks of each one that was never started, in order.
    start: Vec<u32>,
    /// Whether some of these may be found.
    caching: bool,
}

impl Machine<'_> {
    /// The books as they stand between two calls of the engine.
    pub(super) fn books(&self) -> Books {
        let mut books = Books {
            running: 0,
            preempted: 0,
            queued: self.clients.queued(),
            grow: 0,
            come_back: 0,
            start: Vec::new(),
            caching: self.setup.prefix_caching,
        };
        for (&id, client) in self.clients.live() {
            let longest = client.prompt_len() as u32 + client.request.max_new_tokens - 1;
            let blocks = longest.div_ceil(self.setup.block_size);
            match self.ledger.table(id).len() as u32 {
                0 if client.started => {
                    books.preempted += 1;
                    books.come_back += blocks;
                }
                0 => books.start.push(blocks),
                held => {
                    books.running += 1;
                    books.grow += blocks.saturating_sub(held);
                }
            }
        }
        books.start.sort_unstable();
        books
    }

    /// What admission was shown since the last check.
    pub(super) fn take_shown(&self) -> Vec<Load> {
        std::mem::take(&mut *self.shown.lock().expect("nobody panics with it"))
    }

    /// Nobody holds it against the books.
    pub(super) fn forget_shown(&self) {
        self.shown.lock().expect("nobody panics with it").clear();
    }
}

impl Books {
    /// A load that was shown while nothing changed.
    pub fn check(&self, load: &Load) {
        let shown = (load.running, load.preempted, load.waiting);
        assert_eq!(shown, (self.running, self.preempted, self.queued), "who runs, was preempted, waits");
        let admitted = load.admitted as usize;
        let most: u32 = self.start.iter().rev().take(admitted).sum();
        let least: u32 = self.start.iter().take(admitted).sum();
        let least = if self.caching { self.grow } else { self.grow + self.come_back + least };
        let most = self.grow + self.come_back + most;
        let promised = load.promised_blocks;
        assert!((least..=most).contains(&promised), "{promised} blocks are promised, not {least} to {most}");
    }
}
