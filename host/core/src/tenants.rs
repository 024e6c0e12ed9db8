//! The tenants' rows of the view: those with work or history, and what each was served.

use std::collections::BTreeMap;

use crate::ids::TenantId;
use crate::policy::TenantColumns;
use crate::watchdog::Mark;

/// What the host grants a tenant. Policies act on it; the engine only shows it to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantTerms {
    /// Share beside other tenants, in thousandths; at least 1.
    pub weight_permille: u32,
    /// Tokens a minute, prompt and output; 0 for no limit.
    pub rate_per_minute: u32,
    /// Tokens that may be taken at once; 0 for a minute's worth.
    pub burst: u32,
}

impl Default for TenantTerms {
    fn default() -> Self {
        Self { weight_permille: 1_000, rate_per_minute: 0, burst: 0 }
    }
}

/// What an engine knows of a tenant, apart from what it is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantHistory {
    /// Prompt tokens computed for it.
    pub prompt_tokens: u64,
    /// Tokens generated for it.
    pub output_tokens: u64,
    /// What its requests generated lately, on average, in 1/256 tokens; 0 until one has ended.
    pub mean_output: u32,
}

/// Fractions of a token that means are kept in.
const OUTPUT_UNIT: u32 = 256;
/// A mean covers about this many of the last requests.
const OUTPUT_MEMORY: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    rows: BTreeMap<TenantId, u32>,
    /// Tenants with configured terms.
    configured: BTreeMap<TenantId, TenantTerms>,
    /// By row.
    terms: Vec<TenantTerms>,
    /// When something of this tenant last started or stopped running.
    served: Vec<Mark>,
    /// What each tenant's requests generated lately, in 1/256 tokens; 0 until one has ended.
    outputs: Vec<u32>,
    /// Likewise of all tenants together.
    any_output: u32,
    /// What the columns began with, by row: prompt and output tokens served before this engine.
    begun_with: Vec<(u64, u64)>,
    /// Tenants of an earlier engine that have no row yet.
    absent: BTreeMap<TenantId, TenantHistory>,
}

impl Tenants {
    /// Begins with what an earlier engine knew. A tenant has no row until it has work.
    pub fn remember(&mut self, all: &[(TenantId, TenantHistory)], any_output: u32) {
        self.absent = all.iter().copied().collect();
        self.any_output = any_output;
    }

    /// What is known of every tenant.
    pub fn histories(&self, columns: &TenantColumns) -> Vec<(TenantId, TenantHistory)> {
        let here = self.rows.iter().map(|(&tenant, &row)| {
            let at = row as usize;
            let history = TenantHistory {
                prompt_tokens: columns.prompt_tokens_served[at],
                output_tokens: columns.output_tokens_served[at],
                mean_output: self.outputs[at],
            };
            (tenant, history)
        });
        here.chain(self.absent.iter().map(|(&tenant, &history)| (tenant, history))).collect()
    }

    /// What all tenants' requests generated lately, as [`TenantHistory::mean_output`].
    pub fn any_output(&self) -> u32 {
        self.any_output
    }

    /// Prompt and output tokens that this engine served a row's tenant.
    pub fn served_here(&self, columns: &TenantColumns, row: usize) -> (u64, u64) {
        let (prompt, output) = self.begun_with[row];
        (columns.prompt_tokens_served[row] - prompt, columns.output_tokens_served[row] - output)
    }

    /// How many tokens a request of this tenant will probably generate; the largest number until
    /// anything is known.
    pub fn expected_output(&self, row: u32) -> u32 {
        let own = self.outputs[row as usize];
        match if own > 0 { own } else { self.any_output } {
            0 => u32::MAX,
            mean => mean.div_ceil(OUTPUT_UNIT),
        }
    }

    /// A request of this tenant ended after this many tokens.
    pub fn learn_output(&mut self, row: u32, tokens: u32) {
        for mean in [&mut self.outputs[row as usize], &mut self.any_output] {
            let seen = tokens.saturating_mul(OUTPUT_UNIT);
            *mean = match *mean {
                0 => seen,
                mean => mean - mean / OUTPUT_MEMORY + seen / OUTPUT_MEMORY,
            };
        }
    }

    /// What a row's tenant is granted.
    pub fn terms(&self, row: u32) -> TenantTerms {
        self.terms[row as usize]
    }

    /// Replaces the configured terms; unnamed tenants get the default.
    pub fn configure(&mut self, columns: &mut TenantColumns, all: &[(TenantId, TenantTerms)]) {
        self.configured = all.iter().copied().collect();
        for (&tenant, &row) in &self.rows {
            let terms = self.configured.get(&tenant).copied().unwrap_or_default();
            columns.weight_permille[row as usize] = terms.weight_permille.max(1);
            self.terms[row as usize] = terms;
        }
    }

    /// When something of a row's tenant last started or stopped running.
    pub fn served(&self, row: u32) -> Mark {
        self.served[row as usize]
    }

    /// Something of a row's tenant starts or stops running.
    pub fn note_served(&mut self, row: u32, now: Mark) {
        self.served[row as usize] = now;
    }

    /// Returns a tenant's row, and adds it if there is none.
    pub fn row(&mut self, columns: &mut TenantColumns, tenant: TenantId) -> u32 {
        *self.rows.entry(tenant).or_insert_with(|| {
            let TenantHistory { prompt_tokens, output_tokens, mean_output } =
                self.absent.remove(&tenant).unwrap_or_default();
            let terms = self.configured.get(&tenant).copied().unwrap_or_default();
            columns.id.push(tenant.0);
            columns.weight_permille.push(terms.weight_permille.max(1));
            self.terms.push(terms);
            columns.running.push(0);
            columns.waiting.push(0);
            columns.prompt_tokens_served.push(prompt_tokens);
            columns.output_tokens_served.push(output_tokens);
            self.begun_with.push((prompt_tokens, output_tokens));
            self.served.push(Mark::default());
            self.outputs.push(mean_output);
            columns.id.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_reach_existing_and_new_rows() {
        let (mut tenants, mut columns) = (Tenants::default(), TenantColumns::default());
        let terms = |weight_permille| TenantTerms { weight_permille, rate_per_minute: 60, burst: 10 };
        let early = tenants.row(&mut columns, TenantId(3));
        tenants.configure(&mut columns, &[(TenantId(3), terms(2_500)), (TenantId(4), terms(0))]);
        let late = tenants.row(&mut columns, TenantId(4));
        assert_eq!((columns.weight_permille[early as usize], tenants.terms(early)), (2_500, terms(2_500)));
        assert_eq!(columns.weight_permille[late as usize], 1, "a weight of 0 would starve");
        tenants.configure(&mut columns, &[]);
        assert_eq!(tenants.terms(early), TenantTerms::default());
        assert_eq!(columns.weight_permille, [1_000, 1_000]);
    }

    #[test]
    fn counts_go_on_where_an_earlier_engine_left_them_once_a_tenant_is_back() {
        let history = TenantHistory { prompt_tokens: 100, output_tokens: 50, mean_output: 7 * OUTPUT_UNIT };
        let before = [(TenantId(2), history), (TenantId(9), history)];
        let (mut tenants, mut columns) = (Tenants::default(), TenantColumns::default());
        tenants.remember(&before, 3 * OUTPUT_UNIT);
        assert_eq!((columns.id.len(), tenants.histories(&columns)), (0, before.to_vec()));
        let (back, new) = (tenants.row(&mut columns, TenantId(9)), tenants.row(&mut columns, TenantId(4)));
        assert_eq!((columns.prompt_tokens_served[0], columns.output_tokens_served[0]), (100, 50));
        assert_eq!((tenants.expected_output(back), tenants.expected_output(new)), (7, 3));
        columns.output_tokens_served[0] += 5;
        assert_eq!((tenants.served_here(&columns, 0), tenants.served_here(&columns, 1)), ((0, 5), (0, 0)));
        let now = TenantHistory { output_tokens: 55, ..history };
        let all = [(TenantId(4), TenantHistory::default()), (TenantId(9), now), (TenantId(2), history)];
        assert_eq!(tenants.histories(&columns), all);
    }
}
