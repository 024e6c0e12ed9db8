//! The tenants' rows of the view: who has work or history, and what each was served.

use std::collections::BTreeMap;

use crate::ids::TenantId;
use crate::policy::TenantColumns;
use crate::watchdog::Mark;

/// Weight of a tenant for which nothing else was configured.
const DEFAULT_WEIGHT_PERMILLE: u32 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    rows: BTreeMap<TenantId, u32>,
    /// When another tenant's later request was first started before one of this tenant's, and none of
    /// this tenant's since.
    passed: Vec<Option<Mark>>,
}

impl Tenants {
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
            columns.id.len() as u32 - 1
        })
    }
}
