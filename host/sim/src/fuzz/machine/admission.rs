//! Checks the loads that admission was shown: what runs, what waits, and how many blocks they may still ask
//! for. An admission policy that admits what the pool can hold relies on these numbers, and nothing else
//! would reveal that they are wrong.

use infer_core::Request;
use infer_core::policy::Load;

use super::Machine;

/// What the machine knows of the live requests, at an instant.
pub(super) struct Books {
    running: u32,
    preempted: u32,
    queued: u32,
    /// Blocks that running sequences have yet to grow by, and the most that preempted ones need to resume.
    grow: u32,
    come_back: u32,
    /// The most blocks of each sequence that was never started, in order.
    start: Vec<u32>,
    /// Whether some of these may be found.
    caching: bool,
    block_size: u32,
    total_blocks: u32,
}

impl Machine<'_> {
    /// The books between two calls of the engine.
    pub(super) fn books(&self) -> Books {
        let mut books = Books {
            running: 0,
            preempted: 0,
            queued: self.clients.queued(),
            grow: 0,
            come_back: 0,
            start: Vec::new(),
            caching: self.setup.prefix_caching,
            block_size: self.setup.block_size,
            total_blocks: self.setup.total_blocks,
        };
        for (&id, client) in self.clients.live() {
            let blocks = books.longest(client.prompt_len(), &client.request);
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
        std::mem::take(&mut *self.shown.lock().expect("no thread panics while it holds the lock"))
    }

    /// Drops the loads that are not checked.
    pub(super) fn forget_shown(&self) {
        self.shown.lock().expect("no thread panics while it holds the lock").clear();
    }
}

impl Books {
    /// A load that was shown while nothing changed.
    pub fn check(&self, load: &Load) {
        assert_eq!(load.waiting, self.queued, "waiting requests");
        assert_eq!(load.memory.total_blocks, self.total_blocks, "the pool");
        self.check_rest(load);
    }

    /// A load that was shown while the sequences of one request were added: the first call shows a larger
    /// pool and all of them but one in the queue, then perhaps the same on an idle host; each later one shows
    /// the real pool and the sequences that are in the queue by then.
    pub fn check_group(&self, load: &Load, requests: &[Request]) {
        let count = requests.len() as u32;
        let later = load.memory.total_blocks == self.total_blocks;
        let idle = (load.waiting, load.running, load.preempted, load.promised_blocks) == (count - 1, 0, 0, 0);
        if idle && !later {
            return;
        }
        if later {
            assert!(
                (self.queued..=self.queued + count).contains(&load.waiting),
                "waiting requests: {load:?}"
            );
        } else {
            assert_eq!(load.waiting, self.queued + count - 1, "waiting requests beside the last of a group");
            assert!(load.memory.total_blocks > self.total_blocks, "{:?}", load.memory);
        }
        let mut start = self.start.clone();
        if later {
            start.extend(requests.iter().map(|request| self.longest(request.prompt.len(), request)));
            start.sort_unstable();
        }
        Self { start, ..*self }.check_rest(load);
    }

    fn check_rest(&self, load: &Load) {
        assert_eq!(
            (load.running, load.preempted),
            (self.running, self.preempted),
            "running and preempted sequences"
        );
        let admitted = load.admitted as usize;
        let most: u32 = self.start.iter().rev().take(admitted).sum();
        let least: u32 = self.start.iter().take(admitted).sum();
        let least = if self.caching { self.grow } else { self.grow + self.come_back + least };
        let most = self.grow + self.come_back + most;
        let promised = load.promised_blocks;
        assert!((least..=most).contains(&promised), "{promised} blocks are promised, not {least} to {most}");
    }

    /// The most blocks that a request takes.
    fn longest(&self, prompt_len: usize, request: &Request) -> u32 {
        (prompt_len as u32 + request.max_new_tokens - 1).div_ceil(self.block_size)
    }
}
