//! Policies by name, by file, or by the digest in a recording.

use std::path::{Path, PathBuf};

use infer_api::{trace, unique};
use infer_conformance::FUEL_PER_CALL;
use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, Chain, PolicyKind};
use infer_wasm::{LoaderConfig, PolicyLoader};
use serde_json::{Map, Value};

use super::Failure;
use super::needs::Need;
use crate::policies::{self, PolicyError, is_component_path, list_members};

/// A loader whose policies are limited by fuel, so that outcomes don't depend on the machine; by as much of it as
/// `infer policy check` allows, so that a policy that fails there does not shine here.
pub fn loader() -> Result<PolicyLoader, Failure> {
    PolicyLoader::new(LoaderConfig {
        cache_dir: policies::compiled_dir(),
        fuel: Some(FUEL_PER_CALL),
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
    /// What named it, for errors.
    origin: String,
    members: Vec<Member>,
}

#[derive(Clone)]
struct Member {
    name: String,
    /// `None` is the built-in.
    component: Option<Vec<u8>>,
    config: String,
}

/// Parses `NAME` or `FILE.wasm`, optionally followed by `={"key": ..}`. For admission also several, separated by
/// commas, with each one's configuration under its name; a file may have commas in its name.
pub fn choice(kind: PolicyKind, text: &str) -> Result<Choice, Failure> {
    let (name, config) = match text.find("={") {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, "{}"),
    };
    let origin = format!("--{kind} {name}");
    let wrong = |why: String| Failure::Usage(format!("{origin}: {why}"));
    let Value::Object(fields) =
        unique::parse(config.as_bytes()).map_err(|error| wrong(not_an_object(config, &error)))?
    else {
        unreachable!("it begins with a brace")
    };
    let is_file = is_component_path(name) && Path::new(name).is_file();
    let is_list = kind == PolicyKind::Admission && name.contains(',') && !is_file;
    let (name, members) = if is_list {
        let given = list_members(name, &Value::Object(fields)).map_err(wrong)?;
        Chain::check_length(given.len()).map_err(|fault| wrong(fault.message))?;
        let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
        let member = |(name, config): &(&str, Value)| member(kind, name, config.to_string());
        (names.join("+"), given.iter().map(member).collect::<Result<_, Failure>>()?)
    } else {
        (name.to_owned(), vec![member(kind, name, Value::Object(fields).to_string())?])
    };
    let label = if config == "{}" { name } else { format!("{name}{config}") };
    Ok(Choice { kind, label, origin, members })
}

fn not_an_object(config: &str, error: &serde_json::Error) -> String {
    let mut values = serde_json::Deserializer::from_str(config).into_iter::<Map<String, Value>>();
    let ends = matches!(values.next(), Some(Ok(_))).then(|| values.byte_offset());
    match ends.map(|at| config[at..].trim_start()) {
        Some(rest) if rest.starts_with(',') => {
            "a list has one configuration, behind its last member, with each one's under its name: \
             'a,b={\"a\": {..}, \"b\": {..}}'"
                .to_owned()
        }
        _ => format!("the configuration is not a JSON object: {error}"),
    }
}

/// A policy that the host brings, or a file's.
fn member(kind: PolicyKind, name: &str, config: String) -> Result<Member, Failure> {
    if is_component_path(name) {
        let bytes = std::fs::read(name)
            .map_err(|error| Failure::Usage(format!("--{kind}: can't read {name}: {error}")))?;
        return Ok(Member { name: name.to_owned(), component: Some(bytes), config });
    }
    let found = policies::find(kind, name).map_err(|error| match Path::new(name).is_dir() {
        true => Failure::Usage(format!(
            "--{kind}: {name} is a directory; if it is a policy crate, build it (infer policy build {name}), and give the \
             .wasm file that this writes"
        )),
        false => Failure::Usage(format!("--{kind}: {error}, and .wasm files")),
    })?;
    let component = found.bytes().map(<[u8]>::to_vec);
    if component.is_none() && config != "{}" {
        return Err(Failure::Usage(format!("--{kind} {name}: {}", PolicyError::NoConfig)));
    }
    Ok(Member { name: name.to_owned(), component, config })
}

/// Parses several choices.
pub fn choices(kind: PolicyKind, given: &[String]) -> Result<Vec<Choice>, Failure> {
    given.iter().map(|text| choice(kind, text)).collect()
}

impl Choice {
    /// What its bundled policies go by that traffic may lack, each with the policy's kind and name.
    pub fn needs(&self) -> impl Iterator<Item = (Need, String)> {
        self.members.iter().filter_map(move |member| {
            let kind = self.kind;
            let is_its_component =
                |bundled: &&infer_bundle::Bundled| member.component.as_deref() == Some(bundled.component);
            let name = infer_bundle::POLICIES.iter().find(is_its_component)?.name;
            Some((Need::of(kind, name, &member.config)?, format!("{kind} {name}")))
        })
    }

    /// Loads a fresh instance.
    pub fn load(&self, loader: &PolicyLoader) -> Result<AnyPolicy, String> {
        let one = |member: &Member| match &member.component {
            None => Ok(policies::builtin(self.kind)),
            Some(component) => {
                loader.load(self.kind, component, &member.config).map_err(|error| match &self.members[..] {
                    [_] => error.to_string(),
                    _ => format!("{}: {error}", member.name),
                })
            }
        };
        let mut loaded = self.members.iter().map(one).collect::<Result<Vec<_>, String>>()?;
        if loaded.len() == 1 {
            return Ok(loaded.remove(0));
        }
        policies::join(loaded).map_err(|error| error.to_string())
    }
}

/// Loads fresh instances for the three slots. An error says what named the policy.
pub fn slots(loader: &PolicyLoader, choices: [&Choice; 3]) -> Result<Policies, String> {
    let mut slots = Policies::builtin();
    for choice in choices {
        match choice.load(loader).map_err(|error| format!("{}: {error}", choice.origin))? {
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
                    format!("{}; give its file with --component FILE.wasm", is_not_bundled(policy, member))
                })?),
            };
            Ok(Member { name: member.name.clone(), component, config: member.config.to_string() })
        };
        let members = policy.members.iter().map(member).collect::<Result<Vec<_>, String>>()?;
        if members.is_empty() {
            return Err(format!("the recording names no {kind} policy"));
        }
        let names: Vec<&str> = policy.members.iter().map(|member| member.name.as_str()).collect();
        let label = names.join("+");
        Ok(Choice { kind, origin: format!("{kind} {label} of the recording"), label, members })
    }

    /// What `find` lacks for a policy.
    pub fn lack(&self, policy: &trace::Policy) -> Option<String> {
        let has = |digest: &str| digest.is_empty() || self.component(digest).is_some();
        let missing = policy.members.iter().find(|member| !has(&member.sha256))?;
        Some(is_not_bundled(policy, missing))
    }

    fn component(&self, digest: &str) -> Option<Vec<u8>> {
        let given = self.given.iter().find(|(known, _)| known == digest).map(|(_, bytes)| bytes.clone());
        let bundled = || infer_bundle::POLICIES.iter().find(|policy| policy.sha256 == digest);
        given.or_else(|| Some(bundled()?.component.to_vec()))
    }
}

fn is_not_bundled(policy: &trace::Policy, member: &trace::Member) -> String {
    let trace::Member { name, sha256, .. } = member;
    format!("{} `{name}` with SHA-256 {sha256} is not bundled", policy.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A choice's label and its members' configurations, or the error.
    fn parsed(kind: PolicyKind, text: &str) -> Result<(String, Vec<String>), String> {
        match choice(kind, text) {
            Ok(Choice { label, members, .. }) => {
                Ok((label, members.into_iter().map(|member| member.config).collect()))
            }
            Err(Failure::Usage(why) | Failure::Failed(why)) => Err(why),
        }
    }

    #[test]
    fn commas_separate_admission_policies_with_configurations_under_their_names() {
        let list = parsed(PolicyKind::Admission, "slo, token-bucket");
        assert_eq!(list, Ok(("slo+token-bucket".to_owned(), vec!["{}".to_owned(), "{}".to_owned()])));
        let configured =
            parsed(PolicyKind::Admission, r#"slo,memory-aware={"memory-aware": {"reserve": 0.2}}"#);
        assert_eq!(configured.map(|(_, configs)| configs[1].clone()), Ok(r#"{"reserve":0.2}"#.to_owned()));
        let named = parsed(PolicyKind::Scheduler, "builtin-fcfs");
        assert_eq!(named, Ok(("builtin-fcfs".to_owned(), vec!["{}".to_owned()])), "as it calls itself");
        for (kind, text, says) in [
            (
                PolicyKind::Admission,
                r#"slo,memory-aware={"reserve": 0.2}"#,
                "has `reserve`, which is not one of slo",
            ),
            (
                PolicyKind::Admission,
                r#"slo={"retries": 2},memory-aware"#,
                "a list has one configuration, behind its last member",
            ),
            (
                PolicyKind::Scheduler,
                r#"srpt={"patience_ms": 1, "patience_ms": 2}"#,
                "--scheduler srpt: the configuration is not a JSON object: the key `patience_ms` occurs twice",
            ),
            (
                PolicyKind::Admission,
                r#"slo,memory-aware={"memory-aware": {"reserve": 0.2, "reserve": 0.3}}"#,
                "the key `reserve` occurs twice",
            ),
            (
                PolicyKind::Scheduler,
                r#"srpt={"patience_ms": 1}}"#,
                "is not a JSON object: trailing characters",
            ),
            (PolicyKind::Admission, "slo,builtin,unknown", "no admission policy `unknown`; available are"),
            (PolicyKind::Admission, "slo,slo,slo,slo,slo,slo,slo,slo,slo,slo", "a chain has"),
            (PolicyKind::Scheduler, "fair,srpt", "no scheduler policy `fair,srpt`; available are"),
            (
                PolicyKind::Scheduler,
                r#"builtin={"quantum": 5}"#,
                "the built-in policy takes no configuration",
            ),
            (PolicyKind::Admission, r#"slo,builtin={"builtin": {"a": 1}}"#, "takes no configuration"),
        ] {
            let why = parsed(kind, text).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn name_of_a_file_is_not_split_at_commas() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slo,mine.wasm");
        let path = path.to_str().unwrap();
        assert!(parsed(PolicyKind::Admission, path).is_err_and(|why| why.contains("slo")), "no such file");
        std::fs::write(path, "").unwrap();
        assert_eq!(parsed(PolicyKind::Admission, path), Ok((path.to_owned(), vec!["{}".to_owned()])));
    }

    #[test]
    fn only_a_configuration_is_split_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("of=monday.wasm");
        std::fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(parsed(PolicyKind::Scheduler, path), Ok((path.to_owned(), vec!["{}".to_owned()])));
        let (label, configs) = parsed(PolicyKind::Scheduler, &format!(r#"{path}={{"x": 1}}"#)).unwrap();
        assert_eq!((label, &*configs[0]), (format!(r#"{path}{{"x": 1}}"#), r#"{"x":1}"#));
    }
}
