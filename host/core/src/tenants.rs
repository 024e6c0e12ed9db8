//! The tenants' rows of the view: who has work or history, and what each was served.

use std::collections::BTreeMap;

use crate::ids::TenantId;
use crate::policy::TenantColumns;
use crate::watchdog::Mark;

/// Weight of a tenant for which nothing else was configured.
const DEFAULT_WEIGHT_PERMILLE: u32 = 1_000;

/// Fractions of a token that means are kept in.
const OUTPUT_UNIT: u32 = 256;
/// A mean follows about the last so many requests.
const OUTPUT_MEMORY: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    rows: BTreeMap<TenantId, u32>,
    /// When another tenant's later request was first started before one of this tenant's, and none of
    /// this tenant's since.
    passed: Vec<Option<Mark>>,
    /// What each tenant's requests generated lately, in 1/256 tokens; 0 until one has ended.
    outputs: Vec<u32>,
    /// Likewise of all tenants together.
    any_output: u32,
}

impl Tenants {
    /// How many tokens a request of this tenant will probably generate; the largest number until
    /// anything is known.
    pub fn expected_output(&self, row: u32) -> u32 {
        let own = self.outputs[row as usize];
        match if own > 0 { own } else { self.any_output } {
            0 => u32::MAX,
            mean => mean.div_ceil(OUTPUT_UNIT),
        }
    }

    /// A request of this tenant ended after so many tokens.
    pub fn learn_output(&mut self, row: u32, tokens: u32) {
        for mean in [&mut self.outputs[row as usize], &mut self.any_output] {
            let seen = tokens.saturating_mul(OUTPUT_UNIT);
            *mean = match *mean {
                0 => seen,
                mean => mean - mean / OUTPUT_MEMORY + seen / OUTPUT_MEMORY,
            };
        }
    }

    /// See `Tenants::passed`.
    pub fn passed(&mut self, row: u32) -> &mut Option<Mark> {
        &mut self.passed[row as usize]
    }

    /// Forgets who was passed.
    pub fn forgive(&mut self) {
        self.passed.fill(None);
    }

    /// The row of a tenant, made where there is none.
    pub fn row(&mut self, columns: &mut TenantColumns, tenant: TenantId) -> u32 {
        *self.rows.entry(tenant).or_insert_with(|| {
            columns.id.push(tenant.0);
            columns.weight_permille.push(DEFAULT_WEIGHT_PERMILLE);
            columns.running.push(0);
            columns.waiting.push(0);
            columns.prompt_tokens_served.push(0);
            columns.output_tokens_served.push(0);
            self.passed.push(None);
            self.outputs.push(0);
            columns.id.len() as u32 - 1
        })
    }
}
