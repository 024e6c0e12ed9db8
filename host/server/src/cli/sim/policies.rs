//! Policies by name, by file, or by the digest in a recording.

use std::path::PathBuf;

use infer_api::trace;
use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_wasm::{LoaderConfig, PolicyLoader};

use super::Failure;
use crate::policies::{self, is_component_path};

/// Fuel per call: far more than any reasonable call needs, and machine-independent.
const FUEL: u64 = 500_000_000;

/// A loader whose policies are limited by fuel, so that outcomes don't depend on the machine.
pub fn loader() -> Result<PolicyLoader, Failure> {
    PolicyLoader::new(LoaderConfig {
        cache_dir: policies::compiled_dir(),
        fuel: Some(FUEL),
        ..LoaderConfig::default()
    })
    .map_err(Failure::failed)
}

/// Contents of a slot: a policy, or a list of admission policies.
#[derive(Clone)]
pub struct Choice {
    /// The slot.
    pub kind: PolicyKind,
    /// Name in reports.
    pub label: String,
    members: Vec<Member>,
}

#[derive(Clone)]
struct Member {
    /// `None` is the built-in.
    component: Option<Vec<u8>>,
    config: String,
}

/// Parses `NAME` or `FILE.wasm`, optionally followed by `={"key": ..}`.
pub fn choice(kind: PolicyKind, text: &str) -> Result<Choice, Failure> {
    let (name, config) = match text.split_once('=') {
        Some((name, config)) => (name, config),
        None => (text, "{}"),
    };
    if let Err(error) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(config) {
        let message = format!("--{kind} {name}: the configuration is not a JSON object: {error}");
        return Err(Failure::Usage(message));
    }
    let component = if is_component_path(name) {
        let bytes = std::fs::read(name);
        Some(bytes.map_err(|error| Failure::Usage(format!("--{kind}: can't read {name}: {error}")))?)
    } else if name == "builtin" {
        None
    } else {
        let bundled = infer_bundle::find(kind.name(), name).ok_or_else(|| {
            let names = infer_bundle::POLICIES.iter().filter(|p| p.kind == kind.name()).map(|p| p.name);
            let known = names.chain(["builtin"]).collect::<Vec<_>>().join(", ");
            Failure::Usage(format!("--{kind}: unknown policy `{name}`; use one of {known}, or a .wasm file"))
        })?;
        Some(bundled.component.to_vec())
    };
    let label = if config == "{}" { name.to_owned() } else { format!("{name}{config}") };
    Ok(Choice { kind, label, members: vec![Member { component, config: config.to_owned() }] })
}

/// Parses several choices.
pub fn choices(kind: PolicyKind, given: &[String]) -> Result<Vec<Choice>, Failure> {
    given.iter().map(|text| choice(kind, text)).collect()
}

impl Choice {
    /// Loads a fresh instance.
    pub fn load(&self, loader: &PolicyLoader) -> Result<AnyPolicy, String> {
        let one = |member: &Member| match &member.component {
            None => Ok(policies::builtin(self.kind)),
            Some(component) => {
                loader.load(self.kind, component, &member.config).map_err(|error| error.to_string())
            }
        };
        let mut loaded = self.members.iter().map(one).collect::<Result<Vec<_>, String>>()?;
        if loaded.len() == 1 {
            return Ok(loaded.remove(0));
        }
        policies::join(loaded).map_err(|error| error.to_string())
    }
}

/// Loads fresh instances for the three slots.
pub fn slots(loader: &PolicyLoader, choices: [&Choice; 3]) -> Result<Policies, String> {
    let mut slots = Policies::builtin();
    for choice in choices {
        match choice.load(loader)? {
            AnyPolicy::Scheduler(policy) => slots.scheduler = policy,
            AnyPolicy::Admission(policy) => slots.admission = policy,
            AnyPolicy::PrefixCache(policy) => slots.prefix_cache = policy,
        }
    }
    Ok(slots)
}

/// Components by digest: the bundled ones and the given files.
pub struct Components {
    given: Vec<(String, Vec<u8>)>,
}

impl Components {
    /// Reads the given files.
    pub fn new(loader: &PolicyLoader, files: &[PathBuf]) -> Result<Self, Failure> {
        let read = |file: &PathBuf| {
            let wrong = |error: String| Failure::Usage(format!("--component {}: {error}", file.display()));
            let bytes = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
            let (_, info) = loader.describe(&bytes).map_err(|error| wrong(error.to_string()))?;
            Ok((info.digest, bytes))
        };
        Ok(Self { given: files.iter().map(read).collect::<Result<_, Failure>>()? })
    }

    /// The policy that a recording names.
    pub fn find(&self, policy: &trace::Policy) -> Result<Choice, String> {
        let kind = PolicyKind::ALL.into_iter().find(|kind| kind.name() == policy.kind);
        let kind = kind.ok_or_else(|| format!("there is no policy slot `{}`", policy.kind))?;
        let member = |member: &trace::Member| {
            let component = match member.sha256.as_str() {
                "" => None,
                digest => Some(self.component(digest).ok_or_else(|| {
                    let name = &member.name;
                    format!("{kind} `{name}` with SHA-256 {digest} is not bundled; give its file")
                })?),
            };
            Ok(Member { component, config: member.config.to_string() })
        };
        let members = policy.members.iter().map(member).collect::<Result<Vec<_>, String>>()?;
        if members.is_empty() {
            return Err(format!("the recording names no {kind} policy"));
        }
        let names: Vec<&str> = policy.members.iter().map(|member| member.name.as_str()).collect();
        Ok(Choice { kind, label: names.join("+"), members })
    }

    fn component(&self, digest: &str) -> Option<Vec<u8>> {
        let given = self.given.iter().find(|(known, _)| known == digest).map(|(_, bytes)| bytes.clone());
        let bundled = || infer_bundle::POLICIES.iter().find(|policy| policy.sha256 == digest);
        given.or_else(|| Some(bundled()?.component.to_vec()))
    }
}
