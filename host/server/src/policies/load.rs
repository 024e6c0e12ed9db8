//! Finds, checks, compiles and configures policies, and joins several into a list. Everything here blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use infer_core::engine::Policies as Slots;
use infer_core::policy::{AdmissionPolicy, AnyPolicy, Chain, FaultKind, PolicyFault, PolicyKind};
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};
use serde_json::{Map, Value};

use super::{Component, Member, New, Origin, Origins, PolicyError, PolicySource};
use crate::config::{PolicyChoice, PolicyLimits, near};

/// Names the native policy of any slot, as its own name does.
const BUILTIN: &str = "builtin";
/// Most characters of an unknown name in an error.
const SHOWN_NAME: usize = 64;

/// The configured policy of each slot, in the order of `PolicyKind::ALL`.
pub type Choices = [PolicyChoice; 3];

/// Loads the policies that a host starts with.
pub fn load_initial(
    loader: &PolicyLoader,
    choices: &Choices,
) -> Result<(Slots, Origins), (PolicyKind, PolicyError)> {
    let mut slots = Slots::builtin();
    let origins = Origins::default();
    for kind in PolicyKind::ALL {
        let New { policy, origin } =
            load_choice(loader, kind, &choices[kind as usize]).map_err(|e| (kind, e))?;
        origins.remember(kind, origin);
        match policy {
            AnyPolicy::Scheduler(p) => slots.scheduler = p,
            AnyPolicy::Admission(p) => slots.admission = p,
            AnyPolicy::PrefixCache(p) => slots.prefix_cache = p,
        }
    }
    Ok((slots, origins))
}

/// Returns a loader that uses the host's cache of compiled policies, with a host's usual limits.
pub fn loader() -> Result<PolicyLoader, LoadError> {
    loader_with(&PolicyLimits::default())
}

/// As [`loader`], with these limits.
pub fn loader_with(limits: &PolicyLimits) -> Result<PolicyLoader, LoadError> {
    PolicyLoader::new(LoaderConfig {
        cache_dir: compiled_dir(),
        deadline: limits.deadline,
        max_memory_bytes: limits.memory_bytes,
        ..LoaderConfig::default()
    })
}

/// Directory of compiled policies and of the compiled template renderer.
pub fn compiled_dir() -> Option<PathBuf> {
    cache_base().map(|base| base.join("policies"))
}

/// Directory of this user's caches; `None` if neither `XDG_CACHE_HOME` nor `HOME` is an absolute path.
pub fn cache_base() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")))?;
    base.is_absolute().then(|| base.join("infer"))
}

pub(super) fn load_choice(
    loader: &PolicyLoader,
    kind: PolicyKind,
    choice: &PolicyChoice,
) -> Result<New, PolicyError> {
    let config: Value = serde_json::from_str(&choice.config).unwrap_or_default();
    if kind != PolicyKind::Admission || !choice.name.contains(',') {
        return load(loader, kind, source_of(&choice.name)?, config);
    }
    let given = list_members(&choice.name, &config).map_err(PolicyError::ListConfig)?;
    let member = |(name, config): (&str, Value)| Ok((source_of(name)?, config));
    let members = given.into_iter().map(member).collect::<Result<_, PolicyError>>()?;
    load(loader, kind, PolicySource::List(members), Value::Null)
}

/// Splits a list as `--admission` takes it, `a,b`, into its members with their configurations. `configs` has these
/// under the names as the list has them, that of a file under its path; a member that it lacks gets the empty one.
///
/// # Errors
/// A configuration belongs to no member, or is no object.
pub fn list_members<'a>(names: &'a str, configs: &Value) -> Result<Vec<(&'a str, Value)>, String> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let mut keys = configs.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    if let Some(other) = keys.find(|key| !names.contains(key)) {
        return Err(format!(
            "the configuration has `{other}`, which is not one of {}; list each policy's configuration under its name, as \
             the list has it",
            names.join(", ")
        ));
    }
    let member = |name: &'a str| match configs.get(name) {
        None | Some(Value::Null) => Ok((name, empty())),
        Some(config @ Value::Object(_)) => Ok((name, config.clone())),
        Some(_) => Err(format!("the configuration of `{name}` in a list must be a JSON object")),
    };
    names.into_iter().map(member).collect()
}

fn source_of(name: &str) -> Result<PolicySource, PolicyError> {
    if !is_component_path(name) {
        return Ok(PolicySource::Name(name.to_owned()));
    }
    let bytes = std::fs::read(name).map_err(|e| PolicyError::File(name.to_owned(), e))?;
    Ok(PolicySource::Component(bytes.into()))
}

/// Whether a flag's value names a file.
pub fn is_component_path(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("wasm"))
}

/// The empty configuration: a policy's defaults.
pub fn empty() -> Value {
    Value::Object(Map::new())
}

/// Checks, compiles and configures a policy or a list.
pub(super) fn load(
    loader: &PolicyLoader,
    kind: PolicyKind,
    source: PolicySource,
    config: Value,
) -> Result<New, PolicyError> {
    let PolicySource::List(all) = source else {
        let (policy, member) = load_one(loader, kind, source, config)?;
        let origin = Origin { info: Arc::clone(&member.info), members: vec![member] };
        return Ok(New { policy, origin });
    };
    // Before anything is loaded: each instance reserves gigabytes of address space.
    Chain::check_length(all.len()).map_err(PolicyError::List)?;
    let mut policies = Vec::new();
    let mut members = Vec::new();
    for (source, config) in all {
        let (policy, member) = load_one(loader, kind, source, config)?;
        policies.push(policy);
        members.push(member);
    }
    let policy = join(policies)?;
    let info = policy.info();
    Ok(New { policy, origin: Origin { info, members } })
}

/// Loads what was live in a slot before a restart, in the way of a swap: one policy, or the members of a list.
pub fn load_kept(
    loader: &PolicyLoader,
    kind: PolicyKind,
    mut members: Vec<(PolicySource, Value)>,
) -> Result<(AnyPolicy, Origin), PolicyError> {
    let New { policy, origin } = match members.len() {
        1 => {
            let (source, config) = members.remove(0);
            load(loader, kind, source, config)?
        }
        _ => load(loader, kind, PolicySource::List(members), Value::Null)?,
    };
    Ok((policy, origin))
}

/// Loads an earlier policy again, with its configuration.
pub(super) fn load_again(
    loader: &PolicyLoader,
    kind: PolicyKind,
    earlier: Origin,
) -> Result<New, PolicyError> {
    let source = |member: Member| {
        let source = match member.component {
            Component::Given(bytes) => PolicySource::Component(bytes),
            Component::Native | Component::Bundled(_) => PolicySource::Name(member.info.name.clone()),
        };
        (source, member.config)
    };
    let mut members: Vec<_> = earlier.members.into_iter().map(source).collect();
    if let [_] = members[..] {
        let (source, config) = members.remove(0);
        return load(loader, kind, source, config);
    }
    load(loader, kind, PolicySource::List(members), Value::Null)
}

fn load_one(
    loader: &PolicyLoader,
    kind: PolicyKind,
    source: PolicySource,
    config: Value,
) -> Result<(AnyPolicy, Member), PolicyError> {
    let component = match source {
        PolicySource::Component(bytes) => Component::Given(bytes),
        PolicySource::List(_) => return Err(no_list("a list can't contain a list")),
        PolicySource::Name(name) => find(kind, &name)?,
    };
    let policy = match component.bytes() {
        Some(bytes) => loader.load(kind, bytes, &canonical(&config))?,
        None if config.as_object().is_some_and(|fields| !fields.is_empty()) => {
            return Err(PolicyError::NoConfig);
        }
        None => builtin(kind),
    };
    let info = policy.info();
    Ok((policy, Member { info, config, component }))
}

/// A configuration's text with sorted keys: its digest must not depend on their order.
fn canonical(config: &Value) -> String {
    let mut config = config.clone();
    config.sort_all_objects();
    config.to_string()
}

/// Whether the host brings a policy of this name.
pub(super) fn is_bundled(kind: PolicyKind, name: &str) -> bool {
    find(kind, name).is_ok()
}

/// The policy that the host brings under this name.
///
/// # Errors
/// There is none; the message has those that there are.
pub fn find(kind: PolicyKind, name: &str) -> Result<Component, PolicyError> {
    if name == BUILTIN || *name == builtin(kind).info().name {
        return Ok(Component::Native);
    }
    if let Some(bundled) = infer_bundle::find(kind.name(), name) {
        return Ok(Component::Bundled(bundled.component));
    }
    let names = infer_bundle::POLICIES.iter().filter(|p| p.kind == kind.name()).map(|p| p.name);
    let names: Vec<&str> = names.chain([BUILTIN]).collect();
    let hint = near(name, &names).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"));
    let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    // An operator's request may hold megabytes.
    let name = name.chars().take(SHOWN_NAME).collect();
    Err(PolicyError::Unknown { kind, name, hint, known: known.join(", ") })
}

/// Whether this is the name of a policy, or of a list, as operators may write it: with `builtin` for the native policy,
/// and a list as its own name has it, `a+b`, or as swaps take it, `a, b`.
pub(super) fn is_called(kind: PolicyKind, name: &str, written: &str) -> bool {
    let native = builtin(kind).info();
    let parts: Vec<&str> = match written.contains(',') {
        true => written.split(',').map(str::trim).collect(),
        false => written.split('+').collect(),
    };
    let own: Vec<&str> =
        parts.into_iter().map(|part| if part == BUILTIN { native.name.as_str() } else { part }).collect();
    name == written || name == own.join("+")
}

/// Returns the native policy of a slot.
pub fn builtin(kind: PolicyKind) -> AnyPolicy {
    let slots = Slots::builtin();
    match kind {
        PolicyKind::Scheduler => AnyPolicy::Scheduler(slots.scheduler),
        PolicyKind::Admission => AnyPolicy::Admission(slots.admission),
        PolicyKind::PrefixCache => AnyPolicy::PrefixCache(slots.prefix_cache),
    }
}

/// Joins admission policies into a list. A single policy of any kind is returned as it is.
pub fn join(mut policies: Vec<AnyPolicy>) -> Result<AnyPolicy, PolicyError> {
    if policies.len() == 1 {
        return Ok(policies.remove(0));
    }
    let admission = |policy| match policy {
        AnyPolicy::Admission(policy) => Ok(policy),
        _ => Err(no_list("this slot takes one policy; only admission takes a list")),
    };
    let members =
        policies.into_iter().map(admission).collect::<Result<Vec<Box<dyn AdmissionPolicy>>, _>>()?;
    Ok(AnyPolicy::Admission(Box::new(Chain::new(members).map_err(PolicyError::List)?)))
}

fn no_list(why: &str) -> PolicyError {
    PolicyError::List(PolicyFault::new(FaultKind::Setup, why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn native_policy_has_two_names_alone_and_in_a_list() {
        for kind in PolicyKind::ALL {
            let own = builtin(kind).info().name.clone();
            assert_ne!(own, BUILTIN);
            let list = format!("slo+{own}");
            for (name, written, called) in [
                (own.as_str(), BUILTIN, true),
                (own.as_str(), own.as_str(), true),
                (list.as_str(), "slo+builtin", true),
                (list.as_str(), list.as_str(), true),
                (list.as_str(), "slo,builtin", true),
                (list.as_str(), " slo ,\tbuiltin", true),
                (list.as_str(), list.replace('+', ", ").as_str(), true),
                (list.as_str(), "builtin,slo", false),
                (list.as_str(), "slo,builtin,", false),
                (list.as_str(), "slo", false),
                ("slo", "slo,", false),
                ("slo", BUILTIN, false),
                (list.as_str(), BUILTIN, false),
                (own.as_str(), "slo+builtin", false),
            ] {
                assert_eq!(is_called(kind, name, written), called, "{name} as {written}");
            }
        }
    }

    #[test]
    fn misspelt_name_is_answered_with_the_one_that_was_meant() {
        for (name, words) in [
            (
                "contnuous",
                "there is no scheduler policy `contnuous` (did you mean `continuous`?); available are `",
            ),
            ("bultin", "`bultin` (did you mean `builtin`?); available are `"),
            ("memory-aware", "there is no scheduler policy `memory-aware`; available are `"),
        ] {
            let error = find(PolicyKind::Scheduler, name).expect_err("it is unknown").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_configurations_text_does_not_depend_on_the_order_of_its_keys() {
        let config = json!({"b": [{"d": 1, "c": 2}], "a": null});
        assert_eq!(canonical(&config), r#"{"a":null,"b":[{"c":2,"d":1}]}"#);
    }

    #[test]
    fn configurations_of_a_list_are_found_under_its_names_and_no_other_is_ignored() {
        let names = "slo, ./mine.wasm,builtin";
        let configs = json!({"./mine.wasm": {"x": 1}, "slo": null});
        let members = [("slo", json!({})), ("./mine.wasm", json!({"x": 1})), ("builtin", json!({}))];
        assert_eq!(list_members(names, &configs), Ok(members.into()));
        for (configs, says) in [
            (
                json!({"slo": {}, "mine": {"x": 1}}),
                "has `mine`, which is not one of slo, ./mine.wasm, builtin",
            ),
            (json!({"reserve": 0.3}), "has `reserve`, which is not one of"),
            (json!({"slo": 5}), "`slo` in a list must be a JSON object"),
        ] {
            let why = list_members(names, &configs).unwrap_err();
            assert!(why.contains(says), "{configs}: {why}");
        }
    }
}
