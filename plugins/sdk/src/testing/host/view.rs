//! What a scheduler sees of the host in miniature.

use super::Host;
use super::sequence::Sequence;
use crate::{Memory, Micros, Row, Step, Tenant, TenantId};

impl Host {
    /// What a scheduler sees now.
    pub fn view(&self) -> Step {
        Step {
            now: self.now,
            number: self.number + 1,
            last_step: self.last_step,
            last_prefill_tokens: self.last_prefill_tokens,
            last_decodes: self.last_decodes,
            idle_since: if self.running.is_empty() { self.idle_since } else { Micros::NEVER },
            starvation_bound: self.starvation_bound,
            limits: self.limits,
            memory: Memory {
                block_size: self.pool.block_size,
                total_blocks: self.pool.total,
                free_blocks: self.pool.free,
                cached_blocks: self.pool.cached(),
            },
            running: self.running.iter().map(Sequence::row).collect(),
            waiting: self.waiting.iter().map(|sequence| self.waiting_row(sequence)).collect(),
            tenants: self.served.iter().map(|(tenant, served)| self.tenant_row(*tenant, *served)).collect(),
        }
    }

    fn tenant_row(&self, tenant: u32, (prompt_tokens, output_tokens): (u64, u64)) -> Tenant {
        let count = |of: &[Sequence]| of.iter().filter(|s| s.spec.tenant == tenant).count() as u32;
        Tenant {
            id: TenantId(tenant),
            weight_permille: self.weights_permille.get(&tenant).copied().unwrap_or(1_000),
            running: count(&self.running),
            waiting: count(&self.waiting),
            prompt_tokens_served: prompt_tokens,
            output_tokens_served: output_tokens,
        }
    }

    /// A waiting sequence, with what it would find in the cache now.
    pub(super) fn waiting_row(&self, waiting: &Sequence) -> Row {
        let block_size = self.pool.block_size;
        let mut row = waiting.row();
        let Some((prefix, _)) = waiting.spec.shared else { return row };
        let shareable = waiting.shareable(block_size);
        let (found, idle) = self.pool.find(prefix, shareable);
        let pending = self
            .running
            .iter()
            .filter(|s| s.spec.shared.is_some_and(|(other, _)| other == prefix) && s.generated == 0)
            .map(|s| s.shareable(block_size).min(shareable))
            .max()
            .unwrap_or(0);
        row.computed_tokens = found * block_size;
        row.idle_blocks = idle;
        row.pending_tokens = if pending > found { pending * block_size } else { 0 };
        row
    }
}
