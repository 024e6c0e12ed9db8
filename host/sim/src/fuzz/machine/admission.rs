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
    /// Blocks that they ask for to their longest outputs, and to their next tokens.
    longest: Ahead,
    next: Ahead,
    /// Whether some of these may be found.
    caching: bool,
    block_size: u32,
    total_blocks: u32,
}

/// Blocks that the live requests ask for until each has a certain length.
#[derive(Clone, Default)]
struct Ahead {
    /// What running sequences have yet to grow by.
    grow: u32,
    /// The most that preempted ones need to resume.
    come_back: u32,
    /// The most for each sequence that was never started, in order.
    start: Vec<u32>,
}

impl Machine<'_> {
    /// The books between two calls of the engine.
    pub(super) fn books(&self) -> Books {
        let mut books = Books {
            running: 0,
            preempted: 0,
            queued: self.clients.queued(),
            longest: Ahead::default(),
            next: Ahead::default(),
            caching: self.setup.prefix_caching,
            block_size: self.setup.block_size,
            total_blocks: self.setup.total_blocks,
        };
        for (&id, client) in self.clients.live() {
            let held = self.ledger.table(id).len() as u32;
            let longest = books.longest(client.prompt_len(), &client.request);
            let next = books.blocks_for(client.len() as u32);
            for (ahead, blocks) in [(&mut books.longest, longest), (&mut books.next, next)] {
                match held {
                    0 if client.started => ahead.come_back += blocks,
                    0 => ahead.start.push(blocks),
                    held => ahead.grow += blocks.saturating_sub(held),
                }
            }
            books.running += u32::from(held > 0);
            books.preempted += u32::from(held == 0 && client.started);
        }
        books.longest.start.sort_unstable();
        books.next.start.sort_unstable();
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
        let (mut longest, mut next) = (self.longest.clone(), self.next.clone());
        if later {
            let blocks = |request: &Request| self.longest(request.prompt.len(), request);
            longest.start.extend(requests.iter().map(blocks));
            longest.start.sort_unstable();
            next.start.extend(requests.iter().map(|request| self.blocks_for(request.prompt.len() as u32)));
            next.start.sort_unstable();
        }
        Self { longest, next, ..*self }.check_rest(load);
    }

    fn check_rest(&self, load: &Load) {
        assert_eq!(
            (load.running, load.preempted),
            (self.running, self.preempted),
            "running and preempted sequences"
        );
        let (promised, expected) = (load.promised_blocks, load.expected_blocks);
        let (least, most) = (self.least(&self.longest, load), self.longest.most(load));
        assert!((least..=most).contains(&promised), "{promised} blocks are promised, not {least} to {most}");
        let least = self.least(&self.next, load);
        assert!(
            (least..=promised).contains(&expected),
            "{expected} blocks are expected, not {least} to {promised}"
        );
    }

    fn least(&self, ahead: &Ahead, load: &Load) -> u32 {
        let start: u32 = ahead.start.iter().take(load.admitted as usize).sum();
        if self.caching { ahead.grow } else { ahead.grow + ahead.come_back + start }
    }

    /// The most blocks that a request takes.
    fn longest(&self, prompt_len: usize, request: &Request) -> u32 {
        self.blocks_for(prompt_len as u32 + request.max_new_tokens - 1)
    }

    fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }
}

impl Ahead {
    fn most(&self, load: &Load) -> u32 {
        let start: u32 = self.start.iter().rev().take(load.admitted as usize).sum();
        self.grow + self.come_back + start
    }
}
