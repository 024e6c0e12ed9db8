//! The policies of the measured host, before and after it is measured: of a server in this process by its engine, of
//! another one by its admin plane, if that can be asked without being told where it is.

use std::collections::BTreeMap;
use std::time::Duration;

use infer_api::admin::place::is_this_machine;
use infer_api::admin::{PolicySlot, State};
use reqwest::{Method, Url};
use serde_json::Value;

use super::{Failure, report};
use crate::bench::{self, SlotPolicy, Target};
use crate::cli::admin::{Host, parse, usual_address};
use crate::config::Environment;
use crate::serve::RunningServer;

/// How long a measurement waits to learn of policies.
const PATIENCE: Duration = Duration::from_secs(5);
/// Times of a host are in whole milliseconds, counted from two moments.
const ROUNDING_MS: u64 = 2;

/// Where the policies are known from.
pub(super) enum Source<'a> {
    /// A server in this process.
    Own(&'a RunningServer),
    /// The admin plane of another one.
    Remote(Host),
    /// Nowhere.
    Unknown,
}

/// The live policies at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Live {
    /// The run of the host.
    run: String,
    slots: BTreeMap<String, Slot>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    policy: SlotPolicy,
    /// Milliseconds from the host's start.
    since_ms: u64,
}

impl Source<'_> {
    /// The server at a URL: its policies are known if `INFER_ADMIN`, or the usual address, is its admin plane, and a
    /// token for that is here.
    pub async fn at(target: &Target) -> Result<Self, Failure> {
        // Whoever names an admin plane wants to know why it can't be asked; the usual one may be anybody's, or nobody's.
        let is_named = Environment::of_process().get("INFER_ADMIN")?.is_some();
        let asked = tokio::time::timeout(PATIENCE, admin_of(target)).await;
        let why = match asked.unwrap_or_else(|_| Err("it doesn't answer".to_owned())) {
            Ok(host) => return Ok(Self::Remote(host)),
            Err(why) => why,
        };
        if is_named {
            eprintln!("INFER_ADMIN: {why}; the report names no policies");
        }
        Ok(Self::Unknown)
    }

    /// The live policies; empty if they are unknown.
    pub async fn live(&self) -> Result<Live, Failure> {
        match self {
            Self::Own(server) => {
                let policies = report::live_policies(server).await?.into_iter();
                let slots = policies.map(|(kind, policy)| (kind, Slot { policy, since_ms: 0 }));
                Ok(Live { run: String::new(), slots: slots.collect() })
            }
            Self::Remote(host) => {
                let state = tokio::time::timeout(PATIENCE, state(host)).await;
                Ok(Live::of(
                    &state.map_err(|_| Failure::Failed("the admin plane doesn't answer".to_owned()))??,
                ))
            }
            Self::Unknown => Ok(Live::default()),
        }
    }

    /// The policies at the end, if there were others since `before`; says on stderr that there were. What can't be
    /// learnt any more spoils no measurement.
    pub async fn changed(&self, before: &Live) -> BTreeMap<String, SlotPolicy> {
        match self.live().await {
            Ok(after) if before.is_changed(&after) => {
                eprintln!(
                    "the host's policies changed while it was measured; the report names the last ones, too"
                );
                after.policies()
            }
            Ok(_) => BTreeMap::new(),
            Err(Failure::Failed(why) | Failure::Usage(why)) => {
                eprintln!("whether the host's policies changed while it was measured is unknown: {why}");
                BTreeMap::new()
            }
        }
    }
}

impl Live {
    fn of(state: &State) -> Self {
        let slot = |slot: &PolicySlot| {
            let since_ms = state.uptime_ms.saturating_sub(slot.since_ms);
            (slot.kind.clone(), Slot { policy: policy(slot), since_ms })
        };
        Self { run: state.host.run.clone(), slots: state.policies.iter().map(slot).collect() }
    }

    /// By slot.
    pub fn policies(&self) -> BTreeMap<String, SlotPolicy> {
        self.slots.iter().map(|(kind, slot)| (kind.clone(), slot.policy.clone())).collect()
    }

    /// Whether any policy became live between these moments, be it the same as before.
    fn is_changed(&self, after: &Self) -> bool {
        let is_same = |before: &Slot, after: &Slot| {
            before.policy == after.policy && before.since_ms.abs_diff(after.since_ms) <= ROUNDING_MS
        };
        let stayed =
            |(kind, slot): (&String, &Slot)| after.slots.get(kind).is_some_and(|now| is_same(slot, now));
        self.run != after.run || !self.slots.iter().all(stayed)
    }
}

/// The policy of a slot. The configuration of a list is that of its members, in their order.
fn policy(slot: &PolicySlot) -> SlotPolicy {
    let config = match &slot.config {
        Value::Null => String::new(),
        Value::Array(members) => {
            let configs: Vec<&Value> = members.iter().map(|member| &member["config"]).collect();
            serde_json::json!(configs).to_string()
        }
        config => config.to_string(),
    };
    SlotPolicy { name: slot.name.clone(), version: slot.version.clone(), sha256: slot.sha256.clone(), config }
}

async fn state(host: &Host) -> Result<State, Failure> {
    parse(host.ask(Method::GET, "/admin/state", None).await?)
}

/// The admin plane of the server, or why it isn't known.
async fn admin_of(target: &Target) -> Result<Host, String> {
    let said = |failure: Failure| match failure {
        Failure::Failed(why) | Failure::Usage(why) => why,
    };
    let host = Host::at("INFER_ADMIN", &usual_address().map_err(said)?, None).map_err(said)?;
    let state = state(&host).await.map_err(said)?;
    if belongs(&state, &target.url, bench::started(target).await) {
        return Ok(host);
    }
    Err(format!("{} is the admin plane of another host than {}", host.base(), target.url))
}

/// Whether the admin plane of this state is that of the server at a URL, which says when it was started. Proxies may give
/// either another address; but on this machine no two have one port.
fn belongs(state: &State, url: &str, started: Option<u64>) -> bool {
    let place = |url: &str| {
        let url = Url::parse(url).ok()?;
        let port = url.port_or_known_default()?;
        is_this_machine(url.host_str()?).then_some(port)
    };
    let elsewhere = match (place(url), place(&state.host.data_plane)) {
        (Some(port), Some(own)) => port != own,
        _ => false,
    };
    !elsewhere && started.is_some_and(|started| started == state.host.started_unix_s)
}

#[cfg(test)]
mod tests {
    use infer_api::admin::HostInfo;

    use super::*;

    fn at(data_plane: &str, uptime_ms: u64, slots: &[(&str, &str, u64)]) -> State {
        let slot = |&(kind, name, since_ms): &(&str, &str, u64)| PolicySlot {
            kind: kind.to_owned(),
            name: name.to_owned(),
            since_ms,
            ..PolicySlot::default()
        };
        let host = HostInfo {
            data_plane: data_plane.to_owned(),
            started_unix_s: 1_700_000_000,
            ..HostInfo::default()
        };
        State { host, uptime_ms, policies: slots.iter().map(slot).collect(), ..State::default() }
    }

    #[test]
    fn admin_plane_belongs_to_the_host_that_started_with_it() {
        let state = at("http://127.0.0.1:8000", 9, &[]);
        let started = Some(1_700_000_000);
        for (url, started, is_its) in [
            ("http://localhost:8000", started, true),
            ("http://localhost:8002/v1", started, false),
            ("http://localhost:8000", Some(1_700_000_001), false),
            ("http://localhost:8000", None, false),
            // Behind a proxy.
            ("https://inference.example.org", started, true),
        ] {
            assert_eq!(belongs(&state, url, started), is_its, "{url} {started:?}");
        }
    }

    #[test]
    fn policy_that_came_back_has_changed() {
        let live = |uptime_ms, slots: &[_]| Live::of(&at("", uptime_ms, slots));
        let before = live(1_000, &[("scheduler", "fair", 600), ("admission", "slo", 1_000)]);
        let later = |scheduler, since_ms| {
            live(5_000, &[("scheduler", scheduler, since_ms), ("admission", "slo", 5_000)])
        };
        assert!(!before.is_changed(&later("fair", 4_601)));
        assert!(before.is_changed(&later("fair", 1_200)), "another one was there meanwhile");
        assert!(before.is_changed(&later("srpt", 4_600)));
        let restarted = Live { run: "another".to_owned(), ..before.clone() };
        assert!(before.is_changed(&restarted));
    }

    #[test]
    fn configurations_are_those_of_reports() {
        let of = |config: Value| policy(&PolicySlot { config, ..PolicySlot::default() }).config;
        assert_eq!(of(Value::Null), "");
        assert_eq!(of(serde_json::json!({"x": 1})), r#"{"x":1}"#);
        let list = serde_json::json!([{"name": "slo", "config": {}}, {"name": "fair", "config": {"x": 1}}]);
        assert_eq!(of(list), r#"[{},{"x":1}]"#);
    }
}
