//! Recounts blocks from the tables: which sequences hold them, and whether free, cached and used ones make up
//! the pool.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use infer_core::{Batch, BlockId, Engine, SequenceId};

use super::clients::{Clients, Scope};

/// The current tables, and what follows from them.
#[derive(Default)]
pub(super) struct Ledger {
    tables: BTreeMap<SequenceId, Vec<BlockId>>,
    references: Vec<u32>,
    holders: Vec<Option<(SequenceId, Scope)>>,
    /// Scopes of requests that may end while a batch is in flight and still hold blocks.
    scopes: BTreeMap<SequenceId, Scope>,
}

impl Ledger {
    pub fn table(&self, id: SequenceId) -> &[BlockId] {
        self.tables.get(&id).map_or(&[], |table| table)
    }

    pub fn references(&self, block: BlockId) -> u32 {
        self.references[block.0 as usize]
    }

    /// Blocks with holders.
    pub fn used(&self) -> usize {
        self.references.iter().filter(|&&count| count > 0).count()
    }

    /// Blocks that could be allocated before these sequences started, or fewer: others may have grown since.
    pub fn room_without(&self, starts: &[SequenceId]) -> usize {
        let others = self.tables.iter().filter(|(id, _)| !starts.contains(id));
        let held: BTreeSet<BlockId> = others.flat_map(|(_, table)| table).copied().collect();
        self.references.len() - held.len()
    }

    /// Whether a sequence has ended and still holds blocks.
    pub fn outlives(&self, clients: &Clients) -> bool {
        self.tables.keys().any(|&id| clients.get(id).is_none())
    }

    /// Reads the tables. `out`: the batches in flight, in which ended sequences may still have rows and so
    /// blocks.
    pub fn update(&mut self, engine: &Engine, clients: &Clients, out: &VecDeque<Batch>) {
        let memory = engine.memory();
        let total = memory.total as usize;
        self.tables.clear();
        self.references.clear();
        self.references.resize(total, 0);
        self.holders.clear();
        self.holders.resize(total, None);
        for (id, table) in engine.tables() {
            let scope = match clients.get(id) {
                Some(client) => client.scope(),
                None => {
                    let due = out.iter().any(|batch| has_row(batch, id));
                    assert!(due, "{id:?} has ended and still holds {} blocks", table.len());
                    *self.scopes.get(&id).expect("it was alive when the batch was made")
                }
            };
            for &block in table {
                let place = block.0 as usize;
                assert!(place < total, "{id:?} holds {block:?} of {total}");
                self.references[place] += 1;
                match self.holders[place] {
                    None => self.holders[place] = Some((id, scope)),
                    Some((other, theirs)) => {
                        assert!(other != id, "{id:?} holds {block:?} twice");
                        assert_eq!(theirs, scope, "{id:?} and {other:?} share {block:?}");
                    }
                }
            }
            self.tables.insert(id, table.to_vec());
        }
        let mut counts = [0; 3];
        for block in engine.blocks() {
            let references = self.references[block.id.0 as usize];
            assert_eq!(block.references, references, "tables that hold {:?}", block.id);
            counts[if references > 0 { 0 } else { 1 + usize::from(!block.indexed) }] += 1;
            if let (Some((_, (tenant, _))), true) = (self.holders[block.id.0 as usize], block.indexed) {
                assert_eq!(block.tenant, tenant, "the tenant of {:?}", block.id);
            }
        }
        assert_eq!(counts, [memory.used, memory.cached, memory.free], "used, cached and free blocks");
        if out.is_empty() {
            self.scopes.clear();
        }
    }

    /// A batch is in flight: sequences that end now keep their blocks until it returns.
    pub fn remember(&mut self, clients: &Clients) {
        self.scopes.extend(clients.live().iter().map(|(&id, client)| (id, client.scope())));
    }
}

/// Whether a batch computes something for a request.
pub(super) fn has_row(batch: &Batch, id: SequenceId) -> bool {
    batch.rows.iter().any(|row| row.sequence == id)
}
