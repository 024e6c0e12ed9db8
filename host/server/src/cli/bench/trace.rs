//! `infer bench serve --trace`: a trace file as a load, keys for its tenants, and what is otherwise than it was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use infer_api::trace::{Head, Settings, Tenant};
use infer_sim::trace::{Recorded, recorded_rate};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::Failure;
use crate::bench::{Recording, SlotPolicy, tenant_name};
use crate::cli::sim::{NO_REQUESTS, TraceFile};
use crate::serve::RunningServer;
use crate::tenants::{KeyDigest, fresh};

/// Arguments about a trace.
#[derive(Args)]
pub struct TraceArgs {
    /// Replay a trace instead of workloads: a recording of a host (`infer sim record`), or a file of Azure's LLM
    /// inference traces (CSV), Mooncake's or Alibaba Bailian's (JSON lines) or BurstGPT's (CSV)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["workload", "repeat", "requests", "concurrency", "shared_prefix"]
    )]
    pub trace: Option<PathBuf>,
    /// How many times as fast as recorded
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        requires = "trace",
        conflicts_with = "rate",
        value_parser = factor
    )]
    pub speed: f64,
    /// Replay only the first N requests of the trace
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u64).range(1..))]
    pub first: Option<u64>,
    /// In a recording, a request that was sent right after another one finished waits for that one
    #[arg(long, requires = "trace", conflicts_with = "rate")]
    pub closed_loop: bool,
}

/// A trace to replay, and who its tenants are.
pub struct Traced {
    pub recording: Recording,
    /// The host that was recorded; `None` for a public format.
    head: Option<Head>,
}

impl TraceArgs {
    /// Reads the trace, if there is one. A rate scales its times, in place of `speed`.
    pub fn read(&self, rate: Option<f64>, vocab_size: u32, seed: u64) -> Result<Option<Traced>, Failure> {
        let Some(path) = &self.trace else { return Ok(None) };
        let file = TraceFile::find(path)?;
        TraceFile::check_closed_loop(self.closed_loop, [&file])?;
        let file = file.closed_loop(self.closed_loop);
        let wrong = |error: String| Failure::Failed(format!("{}: {error}", path.display()));
        let reader = file.read().map_err(wrong)?;
        let first = usize::try_from(self.first.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let requests: Result<Vec<Recorded>, _> = reader.take(first).collect();
        let requests = requests.map_err(|error| wrong(error.to_string()))?;
        if requests.is_empty() {
            return Err(wrong(file.lacks(NO_REQUESTS)));
        }
        if let Some(refused) = file.refused() {
            eprintln!("{refused}");
        }
        if let Some(empty) = file.empty() {
            eprintln!("{empty}");
        }
        let speed = match rate {
            None => self.speed,
            Some(rate) => {
                let recorded = recorded_rate(Box::new(requests.iter().cloned().map(Ok)), u64::MAX);
                rate / recorded.map_err(|error| wrong(error.to_string()))?
            }
        };
        let head = file.head().cloned();
        let (name, keys) = (file.name(), BTreeMap::new());
        let recording = Recording { name, requests, speed, rate, vocab_size, seed, keys };
        Ok(Some(Traced { recording, head }))
    }
}

/// What a server asks of requests, and must know of them.
#[derive(Default)]
pub struct Access {
    /// The key of requests that aren't a tenant's of the trace.
    pub api_key: Option<String>,
    /// A tenants file for a server of our own.
    pub tenants: Option<NamedTempFile>,
}

impl Traced {
    /// Gives the tenants these keys, separated by commas, in turn.
    pub fn use_keys(&mut self, keys: Option<&str>) -> Access {
        let keys = keys.iter().flat_map(|keys| keys.split(',')).map(str::trim);
        let keys: Vec<&str> = keys.filter(|key| !key.is_empty()).collect();
        // A single key is everyone's.
        if keys.len() > 1 {
            let all = self.tenants().into_iter().zip(keys.iter().cycle());
            self.recording.keys = all.map(|(tenant, &key)| (tenant, key.to_owned())).collect();
        }
        Access { api_key: keys.first().map(|&key| key.to_owned()), tenants: None }
    }

    /// Gives each tenant a key of its own, unless there is one tenant, without terms of its own.
    pub fn make_keys(&mut self) -> Result<Access, Failure> {
        let tenants = self.tenants();
        if tenants.len() == 1 && self.terms().is_empty() {
            return Ok(Access::default());
        }
        let mut file = NamedTempFile::new().map_err(Failure::failed)?;
        for tenant in tenants {
            let key = fresh().map_err(Failure::failed)?;
            let text = format!("[tenants.{}]\nkeys = [\"{}\"]\n", tenant_name(tenant), KeyDigest::of(&key));
            let terms =
                self.terms().iter().find(|terms| terms.tenant == tenant).map(table).unwrap_or_default();
            file.write_all((text + &terms).as_bytes()).map_err(Failure::failed)?;
            self.recording.keys.insert(tenant, key);
        }
        Ok(Access { api_key: self.recording.keys.values().next().cloned(), tenants: Some(file) })
    }

    /// Tenants that had other than the default terms when it was recorded.
    fn terms(&self) -> &[Tenant] {
        self.head.as_ref().map_or(&[], |head| &head.tenants)
    }

    /// Says on stderr what the server of the replay does otherwise than the recorded one. Of a remote one nothing is known.
    pub fn warn_of_differences(&self, server: &RunningServer, policies: &BTreeMap<String, SlotPolicy>) {
        let Some(served) = server.served() else { return };
        let (model, device, settings) = (&served.model_names[0], &served.device, served.settings);
        let differences = self.differences(&Here { model, device, settings, policies });
        if !differences.is_empty() {
            eprintln!(
                "{}: the recorded host had other settings, many of which flags set: {}",
                self.recording.name,
                differences.join("; ")
            );
        }
    }

    /// What is otherwise on the host of a replay than on the one that was recorded, each with the recorded value first.
    fn differences(&self, here: &Here<'_>) -> Vec<String> {
        let Some(head) = &self.head else { return Vec::new() };
        let mut pairs = vec![
            ("model".to_owned(), head.model.clone(), here.model.to_owned()),
            ("device".to_owned(), head.device.clone(), here.device.to_owned()),
        ];
        let (then, now) = (fields(&head.engine), fields(&here.settings));
        pairs.extend(then.into_iter().zip(now).map(|((name, then), (_, now))| (name, then, now)));
        for policy in &head.policies {
            let names: Vec<&str> = policy.members.iter().map(|member| member.name.as_str()).collect();
            let now = here.policies.get(&policy.kind).map(|live| live.name.clone()).unwrap_or_default();
            pairs.push((policy.kind.clone(), names.join("+"), now));
        }
        pairs.retain(|(_, then, now)| then != now);
        pairs.into_iter().map(|(name, then, now)| format!("{name} {then}, here {now}")).collect()
    }

    fn tenants(&self) -> BTreeSet<u32> {
        self.recording.requests.iter().map(|request| request.tenant).collect()
    }
}

/// The host of a replay.
struct Here<'a> {
    model: &'a str,
    device: &'a str,
    settings: Settings,
    /// By slot.
    policies: &'a BTreeMap<String, SlotPolicy>,
}

/// The settings by the names of their flags, where they have any.
fn fields(settings: &Settings) -> Vec<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(settings) else { return Vec::new() };
    fields.into_iter().map(|(name, value)| (name.replace('_', "-"), value.to_string())).collect()
}

/// A tenant's terms as lines of a tenants file.
fn table(terms: &Tenant) -> String {
    let mut text = format!("weight = {}\n", f64::from(terms.weight_permille) / 1e3);
    for (name, value) in [("tokens-per-minute", terms.rate_per_minute), ("burst", terms.burst)] {
        if value > 0 {
            text += &format!("{name} = {value}\n");
        }
    }
    text
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.001..=10_000.0).contains(factor));
    factor.ok_or_else(|| "expected a number from 0.001 to 10000".to_owned())
}

#[cfg(test)]
mod tests {
    use infer_api::trace::{Member, Policy};
    use infer_core::policy::PolicyInfo;

    use super::*;
    use crate::tenants;

    fn traced(of: &[u32], terms: Vec<Tenant>) -> Traced {
        let requests = of.iter().map(|&tenant| Recorded { tenant, ..Recorded::default() }).collect();
        let (name, keys) = (String::new(), BTreeMap::new());
        let head = Some(Head { tenants: terms, ..Head::default() });
        let (speed, rate, vocab_size, seed) = (1.0, None, 9, 0);
        Traced { recording: Recording { name, requests, speed, rate, vocab_size, seed, keys }, head }
    }

    #[test]
    fn tenants_of_a_trace_get_keys_and_their_terms() {
        let heavy = Tenant { tenant: 7, weight_permille: 2_500, rate_per_minute: 600, burst: 0 };
        let mut two = traced(&[7, 3, 7], vec![heavy]);
        let Ok(Access { api_key, tenants: Some(file) }) = two.make_keys() else { panic!("no tenants file") };
        assert_eq!(api_key.as_ref(), two.recording.keys.get(&3));
        let grants = tenants::read(file.path()).expect("a valid file");
        let found: Vec<_> =
            grants.iter().map(|g| (&g.name[..], g.terms.weight_permille, g.terms.rate_per_minute)).collect();
        assert_eq!(found, [("tenant-3", 1_000, 0), ("tenant-7", 2_500, 600)]);
        for (grant, tenant) in grants.iter().zip([3, 7]) {
            assert_eq!(grant.keys, [KeyDigest::of(&two.recording.keys[&tenant])]);
        }
        let mut one = traced(&[7, 7], Vec::new());
        assert!(matches!(one.make_keys(), Ok(Access { api_key: None, tenants: None })));
        assert!(one.recording.keys.is_empty());
    }

    #[test]
    fn what_is_otherwise_than_recorded_is_named() {
        let settings = Settings { max_batch_size: 8, max_seq_len: 512, ..Settings::default() };
        let member = |name: &str| Member { name: name.to_owned(), ..Member::default() };
        let policy = |kind: &str, names: &[&str]| Policy {
            kind: kind.to_owned(),
            members: names.iter().map(|name| member(name)).collect(),
        };
        let head = Head {
            model: "demo".to_owned(),
            device: "cpu".to_owned(),
            engine: settings,
            policies: vec![policy("scheduler", &["fair"]), policy("admission", &["slo", "memory-aware"])],
            ..Head::default()
        };
        let traced = Traced { head: Some(head), ..traced(&[0], Vec::new()) };
        let live = |scheduler: &str| {
            let slots = [("scheduler", scheduler), ("admission", "slo+memory-aware")];
            let slot =
                |name: &str| SlotPolicy::from(&PolicyInfo { name: name.to_owned(), ..PolicyInfo::default() });
            BTreeMap::from(slots.map(|(kind, name)| (kind.to_owned(), slot(name))))
        };
        let same = Here { model: "demo", device: "cpu", settings, policies: &live("fair") };
        assert_eq!(traced.differences(&same), [""; 0]);
        let settings = Settings { max_batch_size: 32, plan_ahead: true, ..settings };
        let other = Here { model: "demo", device: "a GPU", settings, policies: &live("srpt") };
        let mut found = traced.differences(&other);
        found.sort_unstable();
        let expected = [
            "device cpu, here a GPU",
            "max-batch-size 8, here 32",
            "plan-ahead false, here true",
            "scheduler fair, here srpt",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn given_keys_are_used_in_turn() {
        let keys = |of: &[u32], keys: &str| {
            let mut traced = traced(of, Vec::new());
            assert_eq!(traced.use_keys(Some(keys)).api_key.as_deref(), Some("a"));
            traced
                .recording
                .keys
                .into_iter()
                .map(|(tenant, key)| format!("{tenant}{key}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(&[5, 1, 9, 1], "a, b,"), ["1a", "5b", "9a"]);
        assert!(keys(&[5, 1], "a").is_empty(), "the target's key is enough");
    }
}
