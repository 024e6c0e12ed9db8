//! One tenant's bucket: an exact meter of what the tenant used, and an estimate of what it is about to use.

use infer_policy_sdk::{Load, Micros};

/// Units in a token. At a rate of one token a minute, a bucket fills by one unit a microsecond, so no rate is
/// rounded.
pub(crate) const TOKEN: i64 = 60_000_000;

/// A tenant's limit, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub per_minute: u32,
    /// The most that a bucket holds; at least 1.
    pub burst: u32,
}

/// What a request needs in order to be admitted, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub prompt: u32,
    /// What it is expected to generate.
    pub output: u32,
}

impl Need {
    pub fn tokens(self) -> u64 {
        u64::from(self.prompt) + u64::from(self.output)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// In units of [`TOKEN`]; below zero after output that nothing was reserved for.
    pub level: i64,
    /// When `level` was brought up to date.
    pub at: Micros,
    /// The tenant's output tokens that are charged, as the host counts them.
    pub output_charged: u64,
    /// Sequences in flight, running or waiting.
    pub in_flight: u32,
    /// Output tokens that were reserved for them when they were admitted.
    pub granted: u64,
    /// What is left of these: what they are still expected to generate.
    pub reserved: u64,
}

impl Bucket {
    /// A full bucket. What the tenant generated before isn't charged.
    pub fn full(limit: Limit, load: &Load) -> Self {
        Self {
            level: units(u64::from(limit.burst)),
            at: load.now,
            output_charged: load.tenant_output_tokens_served,
            in_flight: 0,
            granted: 0,
            reserved: 0,
        }
    }

    /// Brings the bucket up to date: charges the output generated since the last call, and releases what was
    /// reserved for requests that ended without generating it. Which ones ended is unknown, so each counts as
    /// the mean.
    pub fn settle(&mut self, limit: Limit, load: &Load, in_flight: u32) {
        let output = load.tenant_output_tokens_served.saturating_sub(self.output_charged);
        let filled = load.now.since(self.at).0.saturating_mul(u64::from(limit.per_minute));
        // Output that was generated evenly meets an overflowing bucket only at the end.
        self.level = self
            .level
            .saturating_sub(units(output))
            .saturating_add(i64::try_from(filled).unwrap_or(i64::MAX))
            .min(units(u64::from(limit.burst)));
        self.at = self.at.max(load.now);
        self.output_charged = load.tenant_output_tokens_served;
        if in_flight < self.in_flight {
            let left = u128::from(self.granted) * u128::from(in_flight);
            self.granted = left.div_ceil(u128::from(self.in_flight)) as u64;
        }
        self.in_flight = in_flight;
        self.reserved = self.reserved.saturating_sub(output).min(self.granted);
    }

    /// Units that a new request can have.
    pub fn available(&self) -> i64 {
        self.level.saturating_sub(units(self.reserved))
    }

    /// Admits a request: charges its prompt and reserves its output.
    pub fn admit(&mut self, need: Need) {
        self.level = self.level.saturating_sub(units(u64::from(need.prompt)));
        self.in_flight = self.in_flight.saturating_add(1);
        self.granted = self.granted.saturating_add(u64::from(need.output));
        self.reserved = self.reserved.saturating_add(u64::from(need.output));
    }
}

/// Units of so many tokens.
pub(crate) fn units(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(TOKEN)
}
