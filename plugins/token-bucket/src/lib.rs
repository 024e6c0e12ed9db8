//! `token-bucket`: a rate and a burst of tokens for each tenant, and an honest `Retry-After`.
//!
//! The token bucket of traffic policing (RFC 2697 describes its meter): a tenant's bucket fills at its
//! rate up to its burst, and a request takes its prompt and its longest output out of it when it is let
//! in. Levels are whole numbers of a unit in which every rate is whole, so that nothing is lost by rounding
//! however often a bucket is looked at.
//!
//! A request larger than the burst is refused for good instead of passing into debt: the burst then bounds
//! what a tenant can put on the host at once, and the message tells the client what would pass. What a
//! request was charged and didn't generate isn't refunded, for no event tells a policy how one ended.
//! Memory is no matter of this policy. Behind a member that looks after it a request pays when it may come
//! in, and before one it pays at the door; both charge it once. Before one that refuses (`slo`) it has paid
//! for what it doesn't get, and a client that tries again drains its bucket: put this policy behind that one.

use std::collections::BTreeMap;

use infer_policy_sdk::{
    Admission, Load, Micros, Policy, Pressure, Reason, Refusal, Request, TenantId, Verdict, export_policy,
};
use serde::{Deserialize, Serialize};

mod charged;
mod state;

use charged::Charged;

/// Buckets kept. Past this the one used longest ago is forgotten, and its tenant begins with a full one.
const MAX_TENANTS: usize = 4_096;
/// Units in a token. A rate of one token a minute is one unit a microsecond.
const TOKEN: u64 = 60_000_000;

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens a minute, of a tenant for which the host has no limit of its own; 0 for no limit.
    pub tokens_per_minute: u32,
    /// Tokens that such a tenant may take at once; 0 for a minute's worth.
    pub burst: u32,
}

/// Admission by tokens a minute.
pub struct TokenBucket {
    config: Config,
    buckets: BTreeMap<TenantId, Bucket>,
    /// Requests that have paid. One that then waits for something else is asked about again.
    charged: Charged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    level: u64,
    /// When the level was right.
    at: Micros,
}

/// A tenant's limit, in tokens.
#[derive(Clone, Copy)]
struct Limit {
    per_minute: u32,
    burst: u32,
}

impl Policy for TokenBucket {
    type Config = Config;
    const NAME: &'static str = "token-bucket";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Gives each tenant a rate and a burst of tokens, prompt and longest \
         output, and tells whom it refuses when to come back.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "tokens_per_minute": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Tokens a minute for tenants that the host sets no limit; 0 for no limit"
            },
            "burst": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Tokens that such a tenant may take at once; 0 for a minute's worth"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.tokens_per_minute == 0 && config.burst > 0 {
            return Err("`burst` needs `tokens_per_minute`, at which it fills again".to_owned());
        }
        Ok(Self { config, buckets: BTreeMap::new(), charged: Charged::default() })
    }

    fn export_state(&mut self) -> Vec<u8> {
        state::write(&self.buckets, &self.charged)
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        (self.buckets, self.charged) = state::read(state)?;
        Ok(())
    }
}

impl Admission for TokenBucket {
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        let Some(limit) = self.limit(load) else { return Verdict::Admit };
        if self.charged.contains(request.id) {
            return Verdict::Admit;
        }
        let tokens = request.prompt_tokens.saturating_add(request.max_new_tokens);
        if tokens > limit.burst {
            let message = format!(
                "the request counts {tokens} tokens, prompt and longest output; at most {} may be taken at once",
                limit.burst
            );
            return refuse(message, 0);
        }
        let bucket = self.bucket(request.tenant, limit, load.now);
        let cost = u64::from(tokens) * TOKEN;
        if bucket.level >= cost {
            bucket.level -= cost;
            self.charged.insert(request.id);
            return Verdict::Admit;
        }
        let (has, missing) = (bucket.level / TOKEN, cost - bucket.level);
        let micros = missing.div_ceil(u64::from(limit.per_minute));
        let retry_after_ms = u32::try_from(micros.div_ceil(1_000)).unwrap_or(u32::MAX);
        let message = format!(
            "the request counts {tokens} tokens, {has} are left of the {} a minute",
            limit.per_minute
        );
        refuse(message, retry_after_ms)
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        Pressure::of_pool(load)
    }
}

impl TokenBucket {
    /// The host's limit for the tenant, else the configured one; `None` where there is none.
    fn limit(&self, load: &Load) -> Option<Limit> {
        let (per_minute, burst) = match load.tenant_rate_per_minute {
            0 => (self.config.tokens_per_minute, self.config.burst),
            rate => (rate, load.tenant_burst),
        };
        let burst = if burst == 0 { per_minute } else { burst };
        (per_minute > 0).then_some(Limit { per_minute, burst })
    }

    /// The tenant's bucket as it is now.
    fn bucket(&mut self, tenant: TenantId, limit: Limit, now: Micros) -> &mut Bucket {
        let full = u64::from(limit.burst) * TOKEN;
        if !self.buckets.contains_key(&tenant) && self.buckets.len() >= MAX_TENANTS {
            let idlest = self.buckets.iter().min_by_key(|(_, bucket)| bucket.at).map(|(tenant, _)| *tenant);
            idlest.and_then(|tenant| self.buckets.remove(&tenant));
        }
        let bucket = self.buckets.entry(tenant).or_insert(Bucket { level: full, at: now });
        let filled = now.since(bucket.at).0.saturating_mul(u64::from(limit.per_minute));
        bucket.level = bucket.level.saturating_add(filled).min(full);
        bucket.at = bucket.at.max(now);
        bucket
    }
}

fn refuse(message: String, retry_after_ms: u32) -> Verdict {
    Verdict::Refuse(Refusal { reason: Reason::Rate, message, retry_after_ms })
}

export_policy!(admission: TokenBucket);

#[cfg(test)]
mod tests;
