//! What consoles and metrics read.

use std::cmp::Reverse;

use super::Engine;
use crate::guard::Compared;
use crate::ids::{BlockId, Micros, SequenceId, TenantId};
use crate::policy::{AdmissionPolicy, Answer, FaultView, PolicyKind, Pressure};
use crate::request::SequenceState;
use crate::sequence::SeqIx;
use crate::snapshot::{
    BlockSnapshot, MemoryCounts, OffloadCounts, QueueCounts, RequestSnapshot, SlotSnapshot, Snapshot,
    TenantSnapshot,
};

impl Engine {
    /// Everything consoles and metrics read.
    pub fn snapshot(&mut self, now: Micros) -> Snapshot {
        let now = self.tick(now);
        let pressure = self.measure(now);
        let memory = self.memory();
        let queue = QueueCounts {
            waiting: self.rows.unstarted() as u32,
            held: self.held.len() as u32,
            running: self.rows.running.ix.len() as u32,
            preempted: self.rows.preempted as u32,
        };
        let mut held: Vec<SeqIx> = self.held.values().collect();
        held.sort_by_key(|&ix| (Reverse(self.slab[ix].request.priority), self.slab[ix].id));
        let places = self.rows.running.ix.iter().chain(&self.rows.waiting.ix).chain(&held);
        Snapshot {
            now,
            step: self.view.number - 1,
            memory,
            offload: self.offload(),
            queue,
            pressure,
            counters: self.counters.clone(),
            policies: PolicyKind::ALL.map(|kind| self.slot(kind)),
            tenants: self.tenant_snapshots(),
            requests: places.map(|&ix| self.request(ix)).collect(),
        }
    }

    /// One policy slot, as `snapshot` shows it.
    pub fn slot(&self, kind: PolicyKind) -> SlotSnapshot {
        self.policies.snapshot(kind)
    }

    /// The pool in blocks.
    pub fn memory(&self) -> MemoryCounts {
        let memory = self.kv.blocks.memory();
        MemoryCounts {
            block_size: memory.block_size,
            total: memory.total_blocks,
            free: memory.free_blocks,
            cached: memory.cached_blocks,
            used: memory.total_blocks - memory.free_blocks - memory.cached_blocks,
        }
    }

    /// The second level of the prefix cache in blocks.
    pub fn offload(&self) -> OffloadCounts {
        let (total, used) = self.kv.offload_slots();
        OffloadCounts { total, used }
    }

    /// The blocks of each sequence, in the order of their positions. Includes sequences that have ended while
    /// a batch in flight may still write to their blocks.
    pub fn tables(&self) -> impl Iterator<Item = (SequenceId, &[BlockId])> {
        let holders = self.slab.iter().filter(|(_, sequence)| !sequence.table.is_empty());
        holders.map(|(_, sequence)| (sequence.id, &sequence.table[..]))
    }

    fn tenant_snapshots(&self) -> Vec<TenantSnapshot> {
        let columns = &self.view.tenants;
        let row = |at: usize| {
            let (prompt_tokens, generated_tokens) = self.tenants.served_here(columns, at);
            TenantSnapshot {
                tenant: TenantId(columns.id[at]),
                weight_permille: columns.weight_permille[at],
                running: columns.running[at],
                waiting: columns.waiting[at],
                held: self.held.of_tenant(at),
                prompt_tokens,
                generated_tokens,
            }
        };
        (0..columns.id.len()).map(row).collect()
    }

    fn measure(&mut self, now: Micros) -> Pressure {
        let load = self.total_load(now);
        self.note_state(PolicyKind::Admission, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let decisions = &mut self.decisions;
        let view = || FaultView::Measure(load);
        let question = |p: &mut (dyn AdmissionPolicy + 'static)| {
            let pressure = p.measure(&load)?;
            decisions.note(PolicyKind::Admission, p.info(), view, || Answer::Pressure(pressure));
            Ok(pressure)
        };
        let pressure = self.policies.admission.ask(&mut cx, question, view);
        let told = |p: &mut (dyn AdmissionPolicy + 'static)| p.measure(&load).map(|_| Compared::Told);
        self.policies.admission.ask_shadow(&mut cx, told, || FaultView::Measure(load));
        pressure
    }

    pub(super) fn request(&self, ix: SeqIx) -> RequestSnapshot {
        let sequence = &self.slab[ix];
        let waits = sequence.is_waiting() || sequence.state == SequenceState::Held;
        RequestSnapshot {
            id: sequence.id,
            tenant: sequence.request.tenant,
            session: sequence.request.session,
            priority: sequence.request.priority,
            state: sequence.state,
            prompt_tokens: sequence.prompt_len,
            cached_tokens: if waits { self.kv.cached_tokens(sequence) } else { sequence.usage.cached_tokens },
            computed_tokens: sequence.computed,
            generated_tokens: sequence.generated,
            max_new_tokens: sequence.request.max_new_tokens,
            blocks: sequence.table.len() as u32,
            preemptions: sequence.usage.preemptions,
            arrived: sequence.usage.arrived,
            started: sequence.usage.started,
            first_token: sequence.usage.first_token,
        }
    }

    /// Every block of the pool.
    pub fn blocks(&self) -> Vec<BlockSnapshot> {
        let mut owners: Vec<Option<SequenceId>> = vec![None; self.config.total_blocks as usize];
        for (_, sequence) in self.slab.iter() {
            for block in &sequence.table {
                owners[block.0 as usize].get_or_insert(sequence.id);
            }
        }
        let snapshot = |(id, block): (BlockId, &crate::kv::Block)| BlockSnapshot {
            id,
            references: block.refs,
            indexed: block.in_tree(),
            depth: block.depth,
            tenant: block.scope.tenant,
            owner: owners[id.0 as usize],
            last_used: block.last_used,
        };
        self.kv.blocks.iter().map(snapshot).collect()
    }
}
