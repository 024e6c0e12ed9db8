//! `token-bucket`: a rate and a burst of tokens for each tenant, and an honest `Retry-After`.
//!
//! The token bucket of traffic policing (RFC 2697 describes its meter): a tenant's bucket fills at its rate
//! up to its burst, and pays for what the tenant uses. A prompt is charged when its request is admitted: all
//! of it, cached or not, and once for each choice. Output is charged as it is generated, from the host's
//! count of the tenant's output tokens. Both charges are exact, and each token is charged once, however often
//! a request is asked about or preempted.
//!
//! How long an output will be isn't known in advance. So the bucket reserves the output that the requests in
//! flight are expected to generate, and admits a request only if its prompt and its expected output fit
//! beside that. Reservations are estimates. They start from what the host expects, at most `max_tokens`: what
//! the client says, or else the mean of the tenant's recent outputs; until a first request has ended, lengths
//! that no client says are unknown, and little is reserved. What is expected of one request changes no other's
//! reservation, because a policy can't tell a mean from a client's word. No event tells a policy which request
//! ended, only how many of the tenant's are in flight: each one that ended is taken to have reserved as much as
//! the mean of them, and output to be that of the ones that end first. Requests that an earlier member of a
//! chain defers count as in flight, which delays the release.
//!
//! Output beyond its reservation takes the level below zero, and the tenant is refused until the rate has
//! made up for it. Over any time a tenant therefore uses at most its burst, its rate times that time, and
//! what the requests generate that were in flight when the time began or after the last admission within it.
//! `Retry-After` is the time after which a request fits if those in flight have ended by then and generated
//! no more than was reserved for them.
//!
//! A request is refused for good only if its prompt and one token of output exceed the burst. One that is
//! expected to exceed the burst is admitted when the bucket is full. A prompt isn't refunded if its request
//! never runs: in a chain, put this policy behind one that refuses (`slo`). Before or behind one that defers
//! (`memory-aware`) it charges once.

use std::collections::BTreeMap;

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, TenantId, Verdict, export_policy,
};
use serde::{Deserialize, Serialize};

mod bucket;
mod charged;
mod state;

use bucket::{Bucket, Limit, Need, TOKEN, units};
use charged::Charged;

/// Buckets kept. Beyond this the least recently used one is dropped, and its tenant restarts with a full one.
const MAX_TENANTS: usize = 4_096;
/// Output tokens reserved for a request, at most, while no lengths are known: an ordinary answer. The host
/// then expects all that a request may generate, without `max_tokens` the whole context.
const UNKNOWN_OUTPUT: u32 = 512;

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens a minute for tenants without a limit of their own; 0 for no limit.
    pub tokens_per_minute: u32,
    /// Tokens that such a tenant may use at once; 0 for a minute's worth.
    pub burst: u32,
}

/// Admission by tokens a minute.
pub struct TokenBucket {
    config: Config,
    buckets: BTreeMap<TenantId, Bucket>,
    /// Requests whose prompt is charged. Those that then wait for something else are asked about again.
    charged: Charged,
    /// Whether a request has ended, from which the host learns how long outputs are.
    knows_lengths: bool,
}

impl Policy for TokenBucket {
    type Config = Config;
    const NAME: &'static str = "token-bucket";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Limits the tokens a minute that each tenant uses, prompt and output, and \
         tells refused clients when to retry.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "tokens_per_minute": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Tokens a minute, prompt and output, for tenants without a limit of their own; 0 for no limit"
            },
            "burst": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "Tokens that such a tenant may use at once; 0 for a minute's worth"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if config.tokens_per_minute == 0 && config.burst > 0 {
            return Err("`burst` needs `tokens_per_minute`, the rate at which it refills".to_owned());
        }
        Ok(Self { config, buckets: BTreeMap::new(), charged: Charged::default(), knows_lengths: false })
    }

    fn export_state(&mut self) -> Vec<u8> {
        state::write(&self.buckets, &self.charged, self.knows_lengths)
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        (self.buckets, self.charged, self.knows_lengths) = state::read(state)?;
        Ok(())
    }
}

impl Admission for TokenBucket {
    fn admit(&mut self, request: &Request, load: &Load) -> Verdict {
        let Some(limit) = self.limit(load) else {
            // If a limit is set later, the output generated until then isn't charged.
            self.buckets.remove(&request.tenant);
            return Verdict::Admit;
        };
        let is_charged = self.charged.contains(request.id);
        let others = others_in_flight(request, load, is_charged);
        let bucket = bucket(&mut self.buckets, request.tenant, limit, load);
        let in_flight =
            others.map_or(bucket.in_flight, |others| others.saturating_add(u32::from(is_charged)));
        self.knows_lengths |= in_flight < bucket.in_flight;
        bucket.settle(limit, load, in_flight);
        if is_charged {
            return Verdict::Admit;
        }
        let room = limit.burst.saturating_sub(request.prompt_tokens);
        if room == 0 {
            return refuse(too_long(request.prompt_tokens, limit), 0);
        }
        // It is the mean then, or what the client says, not the request's own bound.
        let is_known = self.knows_lengths || request.expected_tokens < request.max_new_tokens;
        let most = if is_known { room } else { room.min(UNKNOWN_OUTPUT) };
        let need = Need { prompt: request.prompt_tokens, output: request.expected_tokens.clamp(1, most) };
        let missing = units(need.tokens()).saturating_sub(bucket.available());
        if missing > 0 {
            let micros = missing.unsigned_abs().div_ceil(u64::from(limit.per_minute));
            let retry_after_ms = u32::try_from(micros.div_ceil(1_000)).unwrap_or(u32::MAX);
            let available = (bucket.available() / TOKEN).max(0) as u64;
            return refuse(too_soon(need, available, limit, retry_after_ms), retry_after_ms);
        }
        bucket.admit(need);
        self.charged.insert(request.id);
        Verdict::Admit
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        Pressure::of_pool(load)
    }
}

impl TokenBucket {
    /// The host's limit for the tenant, else the configured one; `None` if there is neither.
    fn limit(&self, load: &Load) -> Option<Limit> {
        let (per_minute, burst) = match load.tenant_rate_per_minute {
            0 => (self.config.tokens_per_minute, self.config.burst),
            rate => (rate, load.tenant_burst),
        };
        let burst = if burst == 0 { per_minute } else { burst };
        (per_minute > 0).then_some(Limit { per_minute, burst })
    }
}

/// The tenant's bucket, as of its last request.
fn bucket<'a>(
    buckets: &'a mut BTreeMap<TenantId, Bucket>,
    tenant: TenantId,
    limit: Limit,
    load: &Load,
) -> &'a mut Bucket {
    if !buckets.contains_key(&tenant) && buckets.len() >= MAX_TENANTS {
        let idlest = buckets.iter().min_by_key(|(_, bucket)| bucket.at).map(|(tenant, _)| *tenant);
        idlest.and_then(|tenant| buckets.remove(&tenant));
    }
    buckets.entry(tenant).or_insert_with(|| Bucket::full(limit, load))
}

/// Sequences of the request's tenant in flight, the request itself not counted. The host counts it after its
/// first call, which is the one that charges or, if an earlier member deferred it, comes before this policy's
/// first.
///
/// `None` if the load doesn't tell: if a member of a chain defers a request of several sequences as a whole,
/// the host asks again and shows nothing but that request.
fn others_in_flight(request: &Request, load: &Load, is_charged: bool) -> Option<u32> {
    let in_flight = load.tenant_running.saturating_add(load.tenant_waiting);
    let may_be_hidden = load.running == 0 && load.admitted == 0 && load.waiting > 0;
    if in_flight == 0 && may_be_hidden {
        return None;
    }
    let is_counted = is_charged || load.now > request.arrived;
    Some(in_flight.saturating_sub(u32::from(is_counted)))
}

fn refuse(message: String, retry_after_ms: u32) -> Verdict {
    Verdict::Refuse(Refusal { reason: Reason::Rate, message, retry_after_ms })
}

fn too_long(prompt: u32, limit: Limit) -> String {
    format!(
        "the request has {prompt} prompt tokens and needs at least one of output, but the limit is {} tokens at \
         once: shorten the prompt",
        limit.burst
    )
}

fn too_soon(need: Need, available: u64, limit: Limit, retry_after_ms: u32) -> String {
    let Need { prompt, output } = need;
    let fits = match available.saturating_sub(u64::from(prompt)) {
        0 => String::new(),
        fits => format!(" or ask for at most {fits} output tokens"),
    };
    format!(
        "the limit is {} tokens a minute: the request needs about {} ({prompt} prompt, {output} output) and \
         {available} are available; retry in {} s{fits}",
        limit.per_minute,
        need.tokens(),
        retry_after_ms.div_ceil(1_000)
    )
}

export_policy!(admission: TokenBucket);

#[cfg(test)]
mod tests;
