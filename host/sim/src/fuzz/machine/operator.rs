//! Operators' commands, and what operators are shown.

use infer_core::snapshot::{Counters, TenantSnapshot};
use infer_core::testing::SplitMix;
use infer_core::{Engine, FailureCause, Micros, TenantId, TenantTerms};

use super::{Machine, make};
use crate::fuzz::case::{Mode, Script, Slot};

/// How long a canary of a case is watched.
const WINDOW: Micros = Micros(500_000);

impl Machine<'_> {
    pub(super) fn clear_queue(&mut self) {
        // Preempted ones wait too; only the engine knows which these are.
        for id in self.clients.live().keys().copied().collect::<Vec<_>>() {
            if self.ledger.table(id).is_empty() {
                self.clients.get_mut(id).expect("it is alive").doomed = Some(FailureCause::Cleared);
            }
        }
        let before = self.clients.live().len();
        let now = self.tell();
        let cleared = self.engine.clear_queue("the operator cleared the queue", now);
        self.drain();
        assert_eq!(before - self.clients.live().len(), cleared, "requests that were cleared");
        assert!(
            self.clients.live().values().all(|client| client.doomed.is_none()),
            "one that waits was spared"
        );
    }

    pub(super) fn grant(&mut self, mut dice: SplitMix) {
        let tenants = 0..dice.below(5) as u32;
        let terms: Vec<_> = tenants
            .map(|tenant| {
                let weight_permille = dice.below(4_000) as u32;
                let (rate_per_minute, burst) = (dice.next_u64() as u32, dice.next_u64() as u32);
                (TenantId(tenant), TenantTerms { weight_permille, rate_per_minute, burst })
            })
            .collect();
        self.engine.set_tenants(&terms);
    }

    /// What may only happen while no batch is in flight.
    pub(super) fn between(&mut self, change: impl FnOnce(&mut Engine, Micros)) {
        self.end_all(1_000);
        let now = self.tell();
        change(&mut self.engine, now);
        self.drain();
    }

    pub(super) fn swap(&mut self, script: &Script, mode: Mode) {
        self.end_all(1_000);
        let primed = mode == Mode::Primed && script.slot == Slot::PrefixCache;
        let cached = primed.then(|| self.engine.begin_priming());
        if primed && script.seed.is_multiple_of(2) {
            // Priming takes some time.
            self.step(500);
            self.end_all(1_000);
        }
        let policy = make(script, self.outsiders, cached.as_ref(), &self.shown);
        self.clients.reached.lists += u64::from(script.is_list());
        let now = self.tell();
        match mode {
            Mode::Now | Mode::Primed => drop(self.engine.swap(policy, now)),
            Mode::Shadow => drop(self.engine.shadow(policy, now)),
            Mode::Canary => drop(self.engine.canary(policy, WINDOW, now)),
        }
        self.drain();
    }

    /// What an operator is shown is so.
    pub(super) fn report(&mut self) {
        let now = self.tell();
        let books = self.books();
        let snapshot = self.engine.snapshot(now);
        for load in self.take_shown() {
            books.check(&load);
            assert_eq!(load.admitted, snapshot.queue.waiting, "admitted requests");
        }
        self.drain();
        let memory = snapshot.memory;
        assert_eq!(memory, self.engine.memory());
        assert_eq!(memory.free + memory.cached + memory.used, memory.total, "{memory:?}");
        let queue = snapshot.queue;
        let alive = (queue.waiting + queue.held + queue.running + queue.preempted) as usize;
        assert_eq!(alive, self.clients.live().len(), "{queue:?}");
        assert_eq!(queue.waiting + queue.held, self.clients.queued(), "{queue:?}");
        let count = |of: fn(&TenantSnapshot) -> u32| snapshot.tenants.iter().map(of).sum::<u32>();
        let counts = [count(|t| t.running), count(|t| t.waiting), count(|t| t.held)];
        let waiting = queue.waiting + queue.held + queue.preempted;
        assert_eq!(counts, [queue.running, waiting, queue.held], "tenants: running, waiting, held");
        assert_eq!(snapshot.requests.len(), alive);
        for shown in &snapshot.requests {
            let client = self.clients.get(shown.id).expect("a shown request is alive");
            assert_eq!(shown.prompt_tokens as usize, client.prompt_len(), "prompt of {:?}", shown.id);
            assert_eq!(shown.generated_tokens as usize, client.got, "tokens of {:?}", shown.id);
            assert_eq!((shown.tenant, shown.priority), (client.request.tenant, client.request.priority));
        }
        self.count(&snapshot.counters);
    }

    /// The engine's counters are the machine's.
    fn count(&mut self, counters: &Counters) {
        let reached = &mut self.clients.reached;
        assert_eq!(counters.refused, reached.refused, "refused requests");
        assert_eq!(counters.finished, reached.finished, "finished requests");
        assert_eq!(counters.failed, reached.failed, "failed requests");
        assert_eq!(counters.generated_tokens, reached.tokens, "tokens");
        assert_eq!(counters.preemptions, reached.preempted, "preemptions");
        reached.cut_rows = counters.cut_rows;
        reached.evicted_blocks = counters.evicted_blocks;
        (reached.guessed, reached.guessed_right) = (counters.drafted_tokens, counters.accepted_tokens);
    }
}
