//! Settings to configuration: parses each value once, and checks the values against each other.
//!
//! `from_settings` is long because it is a flat list, one entry per field of `Config`. Deliberately absent: the syntax
//! of sizes, durations and addresses (`parse`), and what needs the model (`startup::sizing`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use infer_core::policy::PolicyKind;
use infer_model::{DType, KvCacheKind, Quantize};

use super::local::{data_address, tls};
use super::parse::{model_name, non_empty, path};
use super::policy_config::read_policy_configs;
use super::settings::read;
use super::{
    AdapterChoice, Bounds, Config, ConfigError, DialectChoice, GenerationConfig, MaxSeqLen, MetricsPlane,
    Origin, PolicyChoice, PolicyLimits, PoolingChoice, Settings, parse,
};
use crate::http::AllowedOrigins;
use crate::kv_events::Endpoints;
use crate::startup::device::DeviceChoice;

impl Default for Config {
    fn default() -> Self {
        Self::from_settings(&Settings::default()).expect("the defaults are valid")
    }
}

impl Config {
    /// Parses and checks settings.
    pub fn from_settings(all: &Settings) -> Result<Self, ConfigError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (host, port) = data_address(all)?;
        let (admin_host, admin_port) = read(all, "admin", ("127.0.0.1".to_owned(), 8001), parse::address)?;
        let policy_config = read(all, "policy-config", None, |t| Ok(Some(PathBuf::from(t))))?;
        let policy_configs =
            read(all, "policy-config", BTreeMap::new(), |t| read_policy_configs(Path::new(t)))?;
        let policy =
            |kind: PolicyKind, key: &'static str, default: &str| -> Result<PolicyChoice, ConfigError> {
                let name = read(all, key, default.to_owned(), non_empty)?;
                let config =
                    policy_configs.get(kind.name()).map_or_else(|| "{}".to_owned(), ToString::to_string);
                Ok(PolicyChoice { name, config })
            };
        let config = Self {
            model: read(all, "model", "demo".to_owned(), non_empty)?,
            served_model_names: read(all, "served-model-name", Vec::new(), |t| {
                t.split(',').map(model_name).collect()
            })?,
            lora: read(all, "lora", Vec::new(), adapters)?,
            max_adapters: read(all, "max-adapters", 0, |t| parse::number(t, 0, 1_024))?,
            max_adapter_memory_bytes: read(all, "max-adapter-memory", 1 << 30, parse::bytes)?,
            host,
            port,
            admin_host,
            admin_port,
            admin_token: None,
            operators: read(all, "operators", None, path)?,
            device: read(all, "device", DeviceChoice::Auto, DeviceChoice::parse)?,
            gpu_memory_utilization: read(all, "gpu-memory-utilization", 0.9, parse::share)?,
            deterministic: read(all, "deterministic", false, parse::switch)?,
            dtype: read(all, "dtype", None, dtype)?,
            quantize: read(all, "quantize", Quantize::Auto, |t| {
                let (auto, off) = (("auto", Quantize::Auto), ("off", Quantize::Off));
                parse::choice(t, &[auto, off, ("q8", Quantize::Q8), ("q4", Quantize::Q4)])
            })?,
            generation_config: read(all, "generation-config", GenerationConfig::Auto, |t| {
                parse::choice(t, &[("auto", GenerationConfig::Auto), ("none", GenerationConfig::None)])
            })?,
            pooling: read(all, "pooling", PoolingChoice::Auto, |t| {
                parse::choice(t, &[("auto", PoolingChoice::Auto), ("last", PoolingChoice::Last)])
            })?,
            chat_template: read(all, "chat-template", None, path)?,
            max_seq_len: read(all, "max-seq-len", MaxSeqLen::Usual, |t| match t {
                "auto" => Ok(MaxSeqLen::Auto),
                _ => parse::number(t, 2, 1 << 24).map(MaxSeqLen::Tokens),
            })?,
            max_batch_size: read(all, "max-batch-size", 32, |t| parse::number(t, 1, 4_096))?,
            max_batch_tokens: read(all, "max-batch-tokens", None, |t| match t {
                "auto" => Ok(None),
                _ => parse::number(t, 1, 1 << 20).map(Some),
            })?,
            prefill_chunk: read(all, "prefill-chunk", 512, |t| parse::number(t, 1, 1 << 20))?,
            max_prefill_requests: read(all, "max-prefill-requests", 8, |t| parse::number(t, 1, 4_096))?,
            max_prefill_memory_bytes: read(all, "max-prefill-memory", 4 << 30, parse::bytes)?,
            max_waiting_requests: read(all, "max-waiting-requests", 1_000, |t| parse::number(t, 1, 100_000))?,
            kv_cache: read(all, "kv-cache", KvCacheKind::Paged, |t| {
                parse::choice(t, &[("paged", KvCacheKind::Paged), ("contiguous", KvCacheKind::Contiguous)])
            })?,
            block_size: read(all, "block-size", 16, |t| parse::number(t, 1, 1_024))?,
            kv_memory_bytes: read(all, "kv-memory", None, auto_bytes)?,
            prompt_cache_entries: read(all, "prompt-cache-entries", 100, |t| parse::number(t, 0, 100_000))?,
            prompt_cache_ttl: read(all, "prompt-cache-ttl", Duration::from_secs(300), parse::seconds)?,
            prefix_caching: read(all, "prefix-caching", true, parse::switch)?,
            kv_offloading_bytes: read(all, "kv-offloading-size", None, |t| match t.trim() {
                "0" => Ok(None),
                _ => parse::bytes(t).map(Some),
            })?,
            kv_offloading_dir: read(all, "kv-offloading-dir", None, |t| match t.trim() {
                // The flag that takes the place of a file's.
                "" => Ok(None),
                _ => path(t),
            })?,
            cache_file: read(all, "cache-file", None, path)?,
            cache_file_bytes: read(all, "cache-file-size", 8 << 30, parse::bytes)?,
            scheduler: policy(PolicyKind::Scheduler, "scheduler", "continuous")?,
            admission: policy(PolicyKind::Admission, "admission", "memory-aware")?,
            admission_chosen: all.get("admission").is_some(),
            prefix_cache: policy(PolicyKind::PrefixCache, "prefix-cache", "lru")?,
            speculate: read(all, "speculate", 0, |t| parse::number(t, 0, 32))?,
            plan_ahead: read(all, "plan-ahead", false, parse::switch)?,
            policy_limits: policy_limits(all)?,
            policy_state: read(all, "policy-state", None, path)?,
            fault_dir: read(all, "fault-dir", None, path)?,
            show_text: read(all, "show-text", false, parse::switch)?,
            threads: read(all, "threads", cores, |t| parse::number(t, 1, 1_024))?,
            seed: read(all, "seed", None, |t| parse::number(t, 0, u64::MAX).map(Some))?,
            policy_config,
            tls: tls(all)?,
            kv_events: kv_events(all)?,
            kv_events_topic: read(all, "kv-events-topic", None, |t| non_empty(t).map(Some))?,
            otlp: read(all, "otlp", None, otlp)?,
            api_keys: read(all, "api-keys", None, path)?,
            api_key: None,
            allowed_origins: read(all, "allowed-origins", None, |t| AllowedOrigins::parse(t).map(Some))?,
            metrics: read(all, "metrics", MetricsPlane::Public, |t| {
                let (public, tenants) =
                    (("public", MetricsPlane::Public), ("tenants", MetricsPlane::Tenants));
                parse::choice(t, &[public, tenants, ("admin", MetricsPlane::Admin)])
            })?,
            max_body_bytes: read(all, "max-body-bytes", 8 << 20, |t| {
                let bytes = parse::bytes(t)?;
                if (1_024..=1 << 30).contains(&bytes) {
                    Ok(bytes as usize)
                } else {
                    Err(format!("`{t}` is not from 1KiB to 1GiB"))
                }
            })?,
            max_body_memory_bytes: read(all, "max-body-memory", 256 << 20, |t| {
                usize::try_from(parse::bytes(t)?).map_err(|e| format!("`{t}`: {e}"))
            })?,
            sse_dialect: read(all, "sse-dialect", DialectChoice::Auto, |t| {
                let choices = [
                    ("auto", DialectChoice::Auto),
                    ("named", DialectChoice::Named),
                    ("openai", DialectChoice::OpenAi),
                ];
                parse::choice(t, &choices)
            })?,
            bounds: bounds(all)?,
        };
        config.check(all)?;
        Ok(config)
    }

    /// Checks settings against each other.
    fn check(&self, all: &Settings) -> Result<(), ConfigError> {
        self.check_ports(all)?;
        self.check_names(&self.served_model_names, &all.origin("lora"))?;
        if self.max_adapters > 0 && (self.max_adapters as usize) < self.lora.len() {
            return Err(ConfigError(format!(
                "{}: {} are fewer than the {} of --lora; give at least as many",
                all.origin("max-adapters"),
                self.max_adapters,
                self.lora.len()
            )));
        }
        if self.max_body_memory_bytes < self.max_body_bytes {
            return Err(ConfigError(format!(
                "{}: {} bytes can't hold one body of {} bytes (--max-body-bytes)",
                all.origin("max-body-memory"),
                self.max_body_memory_bytes,
                self.max_body_bytes
            )));
        }
        if self.kv_offloading_dir.is_some() && all.get("kv-offloading-size").is_none() {
            return Err(ConfigError(format!(
                "{}: give the size of the file there, too: --kv-offloading-size",
                all.origin("kv-offloading-dir")
            )));
        }
        if let Some(tokens) = self.max_batch_tokens
            && tokens < self.max_batch_size
        {
            return Err(ConfigError(format!(
                "{}: {} tokens per step are too few for {} sequences; give at least {}, or a smaller --max-batch-size",
                all.origin("max-batch-tokens"),
                tokens,
                self.max_batch_size,
                self.max_batch_size
            )));
        }
        Ok(())
    }

    /// Checks that no adapter has a name of the model itself. `origin` is where adapters were given.
    pub fn check_names(&self, own: &[String], origin: &Origin) -> Result<(), ConfigError> {
        match self.lora.iter().find(|adapter| own.contains(&adapter.name)) {
            None => Ok(()),
            Some(AdapterChoice { name, .. }) => Err(ConfigError(format!(
                "{origin}: `{name}` is a name of the model itself; give the adapter another"
            ))),
        }
    }

    /// Checks that no two sockets want the same port. `infer config check` can't find it by binding: an address in use may
    /// be the checked host's own.
    fn check_ports(&self, all: &Settings) -> Result<(), ConfigError> {
        let listeners = self.listeners();
        for (index, late) in listeners.iter().enumerate() {
            let in_the_way = |early: &&Listener<'_>| {
                early.port != 0 && early.port == late.port && overlap(early.host, late.host)
            };
            if let Some(early) = listeners.iter().take(index).find(in_the_way) {
                return Err(ConfigError(format!(
                    "{}: {} listens at port {} of {} (--{}); {} needs a port of its own",
                    all.origin(late.key),
                    early.name,
                    early.port,
                    early.host,
                    early.key,
                    late.name
                )));
            }
        }
        Ok(())
    }

    fn listeners(&self) -> Vec<Listener<'_>> {
        let mut listeners = vec![
            Listener { key: "port", name: "the data plane", host: &self.host, port: self.port },
            Listener { key: "admin", name: "the admin plane", host: &self.admin_host, port: self.admin_port },
        ];
        if let Some(Endpoints { events, replay }) = &self.kv_events {
            let (host, port) = (events.host(), events.port());
            listeners.push(Listener { key: "kv-events", name: "the publisher of KV events", host, port });
            listeners.extend(replay.iter().map(|replay| Listener {
                key: "kv-events-replay",
                name: "the replay of KV events",
                host: replay.host(),
                port: replay.port(),
            }));
        }
        listeners
    }
}

/// A socket that listens at a port.
struct Listener<'a> {
    /// The setting with its port.
    key: &'static str,
    name: &'static str,
    host: &'a str,
    port: u16,
}

/// Whether listeners at one port of both hosts are in each other's way: they have an address in common.
fn overlap(a: &str, b: &str) -> bool {
    // Linux has the addresses of IPv4 among those of IPv6, unless it is told otherwise.
    let includes = |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let (of_a, of_b) = (addresses(a), addresses(b));
    let mut pairs = of_a.iter().flat_map(|&a| of_b.iter().map(move |&b| (a, b)));
    a.eq_ignore_ascii_case(b) || pairs.any(|(a, b)| a == b || includes(a, b) || includes(b, a))
}

/// The addresses of a host as far as they are known without a resolver; none for names other than `localhost`, which may
/// be either of two.
fn addresses(host: &str) -> Vec<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    host.parse().map(|address: IpAddr| address.to_canonical()).into_iter().collect()
}

/// `NAME=ADAPTER`, or several of these, separated by commas, or none.
fn adapters(text: &str) -> Result<Vec<AdapterChoice>, String> {
    let mut all: Vec<AdapterChoice> = Vec::new();
    // An empty list of a file, or the flag that takes the place of one.
    if text.trim().is_empty() {
        return Ok(all);
    }
    for part in text.split(',') {
        let halves = part.split_once('=');
        let halves = halves.filter(|(name, _)| !name.trim().is_empty());
        let halves = halves.and_then(|(name, place)| Some((name, non_empty(place).ok()?)));
        let Some((name, place)) = halves else {
            return Err(format!(
                "`{}` is not NAME=ADAPTER, for example `sql=./adapters/sql`; commas separate several, also in a list, so \
                 that no path can have one",
                part.trim()
            ));
        };
        let name = model_name(name)?;
        if all.iter().any(|adapter| adapter.name == name) {
            return Err(format!("two adapters have the name `{name}`; give each its own"));
        }
        all.push(AdapterChoice { name, place });
    }
    Ok(all)
}

fn dtype(text: &str) -> Result<Option<DType>, String> {
    let types = [("f32", DType::F32), ("bf16", DType::Bf16), ("f16", DType::F16)];
    let mut choices = vec![("auto", None)];
    choices.extend(types.map(|(name, dtype)| (name, Some(dtype))));
    parse::choice(text, &choices)
}

fn auto_bytes(text: &str) -> Result<Option<u64>, String> {
    if text.trim().eq_ignore_ascii_case("auto") { Ok(None) } else { parse::bytes(text).map(Some) }
}

fn bounds(all: &Settings) -> Result<Bounds, ConfigError> {
    let default = Bounds::default();
    let time = |key, default| read(all, key, default, parse::time_limit);
    Ok(Bounds {
        header_timeout: time("header-timeout", default.header_timeout)?,
        body_timeout: time("body-timeout", default.body_timeout)?,
        idle_timeout: time("idle-timeout", default.idle_timeout)?,
        write_timeout: time("write-timeout", default.write_timeout)?,
        request_timeout: time("request-timeout", default.request_timeout)?,
        step_timeout: time("step-timeout", default.step_timeout)?,
        drain_timeout: time("drain-timeout", default.drain_timeout)?,
        max_connections: read(all, "max-connections", default.max_connections, |t| {
            parse::number(t, 1, 1_000_000)
        })?,
        ..default
    })
}

fn policy_limits(all: &Settings) -> Result<PolicyLimits, ConfigError> {
    let default = PolicyLimits::default();
    let time = |key, default, range: std::ops::RangeInclusive<Duration>| {
        read(all, key, default, |text| {
            let time = parse::seconds(text)?;
            let (least, most) = (range.start(), range.end());
            if range.contains(&time) {
                Ok(time)
            } else {
                Err(format!("`{text}` is not from {least:?} to {most:?}"))
            }
        })
    };
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(3_600));
    Ok(PolicyLimits {
        deadline: time("policy-deadline", default.deadline, short..=Duration::from_secs(1))?,
        memory_bytes: read(all, "policy-memory", default.memory_bytes, |text| {
            let bytes = parse::bytes(text)?;
            let range = 1 << 20..=1 << 30;
            if range.contains(&bytes) {
                Ok(bytes as usize)
            } else {
                Err(format!("`{text}` is not from 1MiB to 1GiB"))
            }
        })?,
        strikes: read(all, "policy-strikes", default.strikes, |t| parse::number(t, 1, 1_000))?,
        strike_window: time("policy-strike-window", default.strike_window, Duration::from_secs(1)..=long)?,
        starvation_bound: time("starvation-bound", default.starvation_bound, short..=long)?,
    })
}

fn kv_events(all: &Settings) -> Result<Option<Endpoints>, ConfigError> {
    let endpoint = |key| {
        read(all, key, None, |text| {
            if !cfg!(feature = "kv-events") {
                return Err(
                    "this build can't publish KV events; build it with `--features kv-events`".to_owned()
                );
            }
            text.parse().map(Some)
        })
    };
    match (endpoint("kv-events")?, endpoint("kv-events-replay")?) {
        (Some(events), replay) => Ok(Some(Endpoints { events, replay })),
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(ConfigError(format!("{}: needs --kv-events as well", all.origin("kv-events-replay"))))
        }
    }
}

fn otlp(text: &str) -> Result<Option<String>, String> {
    if !cfg!(feature = "otel") {
        return Err("this build can't send traces; build it with `--features otel`".to_owned());
    }
    if !text.starts_with("http://") {
        return Err(format!(
            "`{text}` is not http://HOST:PORT; traces are sent without TLS, to a collector on the same network"
        ));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}
