//! `tenant-cap`: limits what each tenant has in flight. A tenant at its limit waits, and others pass.
//!
//! A rate limit bounds what a tenant uses over a minute, and refuses the rest; a flood within it still takes all slots
//! and memory at once. Here a flood queues behind its own tenant's limit, and only what would fill the host's queue is
//! refused. In flight are sequences that run, or will without another call. Slots that a limit leaves idle can be lent
//! to tenants at theirs; a lent one comes back when its sequence ends, for nothing is preempted. It looks at nothing
//! else, so it belongs in a list: `tenant-cap,memory-aware`.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, SequenceId, Verdict, export_policy,
};
use serde::{Deserialize, Serialize};

/// Shortest and longest advice to a refused client.
const RETRY_MS: (u32, u32) = (1_000, 60_000);

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Sequences that a tenant of weight 1 may have in flight. 0 for three quarters of the host's slots, which no weight
    /// raises.
    pub max_in_flight: u32,
    /// Whether the limit grows with a tenant's weight.
    pub by_weight: bool,
    /// A tenant at its limit may have more while fewer sequences than this are in flight on the host, all tenants
    /// together; 0 lends nothing. A sixteenth of the host's slots is never lent.
    pub lend_below: u32,
    /// A tenant's requests are refused while so many of its sequences wait; 0 for three quarters of the host's queue.
    pub max_held: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_in_flight: 0, by_weight: true, lend_below: 0, max_held: 0 }
    }
}

/// A limit of sequences in flight for each tenant.
pub struct TenantCap {
    config: Config,
    /// The latest request that was asked about. Ids ascend, so any later one is new; the sequences of one that was let in
    /// as a whole come under its id.
    latest: SequenceId,
}

impl Policy for TenantCap {
    type Config = Config;
    const NAME: &'static str = "tenant-cap";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Limits the sequences that each tenant has in flight; a tenant at its limit \
         waits while others pass.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "max_in_flight": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Sequences that a tenant of weight 1 may have in flight; 0 for three quarters of the host's slots, which no weight raises"
            },
            "by_weight": {
                "type": "boolean", "default": true,
                "description": "Whether a tenant of weight 2 may have twice as many"
            },
            "lend_below": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "A tenant at its limit may have more while fewer sequences than this are in flight on the host; 0 lends nothing, and a sixteenth of the host's slots is never lent"
            },
            "max_held": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "A tenant's requests are refused while so many of its sequences wait; 0 for three quarters of the host's queue"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self { config, latest: SequenceId(0) })
    }
}

impl Admission for TenantCap {
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        // The clock tells it, too, of requests from before this policy was swapped in.
        let is_new = request.id > self.latest && load.now <= request.arrived;
        self.latest = self.latest.max(request.id);
        let limit = self.limit(load);
        if load.tenant_in_flight < limit || in_flight(load) < self.lent(load) {
            return Verdict::Admit;
        }
        let held = held(load);
        let most = or_most_of(self.config.max_held, load.max_waiting);
        if !is_new || held < most {
            return Verdict::WaitTenant;
        }
        let of_tenant = load.tenant_in_flight;
        let message = format!(
            "{of_tenant} requests of the tenant are in flight, of at most {limit}, and {held} wait, of at most {most}"
        );
        Verdict::Refuse(Refusal { reason: Reason::Rate, message, retry_after_ms: retry_after_ms(load) })
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        Pressure::of_pool(load)
    }
}

impl TenantCap {
    /// Slots that are lent if they are idle. The last ones would put whoever comes next behind a loan's whole output.
    fn lent(&self, load: &Load) -> u32 {
        let spared = (load.max_running / 16).max(1);
        self.config.lend_below.min(load.max_running.saturating_sub(spared))
    }

    /// The limit of a request's tenant, at least 1.
    fn limit(&self, load: &Load) -> u32 {
        let weight = if self.config.by_weight { u64::from(load.tenant_weight_permille) } else { 1_000 };
        let of_one = or_most_of(self.config.max_in_flight, load.max_running);
        let limit = u64::from(of_one) * weight / 1_000;
        let ceiling = if self.config.max_in_flight == 0 { of_one } else { u32::MAX };
        u32::try_from(limit).unwrap_or(u32::MAX).min(ceiling).max(1)
    }
}

/// What is configured, or by default three quarters of what the host has: at least 1, and less than all of several.
fn or_most_of(configured: u32, all: u32) -> u32 {
    let spared = (all / 4).max(1);
    if configured == 0 { all.saturating_sub(spared).max(1) } else { configured }
}

/// Sequences of all tenants that run, or will without another call.
fn in_flight(load: &Load) -> u32 {
    load.running.saturating_add(load.admitted).saturating_add(load.preempted)
}

/// Sequences of the tenant that wait for an answer.
fn held(load: &Load) -> u32 {
    load.tenant_running.saturating_add(load.tenant_waiting).saturating_sub(load.tenant_in_flight)
}

/// The time that the mean of the waiting requests takes at the pace of the last seconds; the tenant's own aren't known.
fn retry_after_ms(load: &Load) -> u32 {
    let pace = u64::from(load.prefill_tokens_per_second) + u64::from(load.output_tokens_per_second);
    let each = load.waiting_tokens / u64::from(load.waiting.max(1));
    let ms = each.saturating_mul(1_000).checked_div(pace).unwrap_or(0);
    u32::try_from(ms).unwrap_or(u32::MAX).clamp(RETRY_MS.0, RETRY_MS.1)
}

export_policy!(admission: TenantCap);

#[cfg(test)]
mod tests;
