//! Admits everything. The engine itself refuses what can never fit and what exceeds the queue.

use std::sync::Arc;

use crate::policy::{
    AdmissionPolicy, AdmissionRequest, Load, Policy, PolicyFault, PolicyInfo, Pressure, Verdict,
};

/// The built-in admission policy.
pub struct AcceptWhatFits {
    info: Arc<PolicyInfo>,
}

impl Default for AcceptWhatFits {
    fn default() -> Self {
        Self {
            info: super::info(
                "builtin-accept",
                "Admits every request. Replaces an admission policy that fails.",
            ),
        }
    }
}

impl Policy for AcceptWhatFits {
    fn info(&self) -> Arc<PolicyInfo> {
        self.info.clone()
    }
}

impl AdmissionPolicy for AcceptWhatFits {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        Ok(Verdict::Admit)
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        let memory = load.memory;
        let available = memory.free_blocks + memory.cached_blocks;
        let used = u64::from(memory.total_blocks - available);
        Ok(Pressure {
            level_permille: (used * 1000 / u64::from(memory.total_blocks.max(1))) as u32,
            backpressure: load.waiting >= load.max_waiting,
            reserved_blocks: 0,
            available_blocks: available,
            max_sequence_tokens: available.saturating_mul(memory.block_size),
        })
    }
}
