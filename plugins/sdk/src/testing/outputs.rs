//! What a host learns about the lengths of outputs, as the engine does: means of about the last sixteen requests
//! of each tenant, and of all tenants together for those that have no history. `tests/tests/engine/outputs.rs`
//! compares the two.

use std::collections::BTreeMap;

/// Fractions of a token that means are kept in.
const UNIT: u32 = 256;
/// A mean covers about this many of the last requests.
const MEMORY: u32 = 16;

/// Means in 1/256 tokens; 0 until a request has ended.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    tenants: BTreeMap<u32, u32>,
    any: u32,
}

impl Outputs {
    /// The expected output of a tenant's request; the largest number until anything is known.
    pub fn expected(&self, tenant: u32) -> u32 {
        let own = self.tenants.get(&tenant).copied().unwrap_or(0);
        match if own > 0 { own } else { self.any } {
            0 => u32::MAX,
            mean => mean.div_ceil(UNIT),
        }
    }

    /// A request of this tenant ended after this many tokens.
    pub fn learn(&mut self, tenant: u32, tokens: u32) {
        for mean in [self.tenants.entry(tenant).or_default(), &mut self.any] {
            let seen = tokens.saturating_mul(UNIT);
            *mean = match *mean {
                0 => seen,
                mean => mean - mean / MEMORY + seen / MEMORY,
            };
        }
    }
}
