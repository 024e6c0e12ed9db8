//! From bytes to a policy that may decide: check, compile, link, instantiate, describe, configure, self-test.
//!
//! Loading takes tens of milliseconds and belongs on a blocking thread, never on the engine's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infer_core::policy::{
    AdmissionPolicy, AnyPolicy, FaultKind, PolicyFault, PolicyInfo, PolicyKind, PrefixCachePolicy,
    SchedulerPolicy,
};
use wasmtime::component::Component;

use crate::bindings::{admission, prefix_cache, scheduler};
use crate::cache::Cache;
use crate::compiled::Compiled;
use crate::error::LoadError;
use crate::fault::lack;
use crate::instance::{Instance, Live, SetupError, Template};
use crate::log::GuestLog;
use crate::runtime::Runtime;
use crate::text::clip;
use crate::usage::Usage;
use crate::world::World;
use crate::{check, compiled, shape};

/// Names reserved for the host's own policies, alone or followed by a dash and more.
const NATIVE: &str = "builtin";
/// wasmtime's message about a file that it doesn't accept.
const MAX_ERROR_BYTES: usize = 1_024;
const MAX_DESCRIPTION_BYTES: usize = 1_024;
const MAX_SCHEMA_BYTES: usize = 65_536;
/// The configuration that leaves everything at its default.
const NO_CONFIG: &str = "{}";

/// Limits of policies, and where compiled ones are kept.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Directory of compiled components; it must be private to this user. `None` compiles every time.
    pub cache_dir: Option<PathBuf>,
    /// Largest component file, in bytes.
    pub max_component_bytes: usize,
    /// Largest memory of one instance, in bytes.
    pub max_memory_bytes: usize,
    /// Processor time of one call. Ignored if `fuel` is set.
    pub deadline: Duration,
    /// Instead of a deadline: units of fuel per call, used up at the same instruction every time.
    /// For tests and simulations.
    pub fuel: Option<u64>,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            max_component_bytes: 8 << 20,
            max_memory_bytes: 64 << 20,
            deadline: Duration::from_millis(20),
            fuel: None,
        }
    }
}

/// Loads policies from components. Clones share one engine and one cache.
#[derive(Clone)]
pub struct PolicyLoader {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Arc<Runtime>,
    cache: Option<Cache>,
    max_component_bytes: usize,
}

impl PolicyLoader {
    /// A loader with an engine of its own. A cache directory that can't be used is logged and not used.
    pub fn new(config: LoaderConfig) -> Result<Self, LoadError> {
        let runtime = Arc::new(Runtime::new(&config)?);
        let cache = config.cache_dir.as_deref().and_then(|dir| compiled::cache(dir, runtime.engine()));
        Ok(Self {
            inner: Arc::new(Inner { runtime, cache, max_component_bytes: config.max_component_bytes }),
        })
    }

    /// Returns a configured and tested policy for the slot `kind`, or the check that it failed. `config_json`
    /// is passed to the policy as it is; `{}` asks for its defaults.
    pub fn load(
        &self,
        kind: PolicyKind,
        component: &[u8],
        config_json: &str,
    ) -> Result<AnyPolicy, LoadError> {
        let found = check::inspect(component, self.inner.max_component_bytes)?;
        if found != kind {
            return Err(LoadError::WrongKind { expected: kind, found });
        }
        Ok(match kind {
            PolicyKind::Scheduler => {
                let policy: Box<dyn SchedulerPolicy> =
                    Box::new(self.start::<scheduler::SchedulerPolicy>(component, config_json)?);
                AnyPolicy::Scheduler(policy)
            }
            PolicyKind::Admission => {
                let policy: Box<dyn AdmissionPolicy> =
                    Box::new(self.start::<admission::AdmissionPolicy>(component, config_json)?);
                AnyPolicy::Admission(policy)
            }
            PolicyKind::PrefixCache => {
                let policy: Box<dyn PrefixCachePolicy> =
                    Box::new(self.start::<prefix_cache::PrefixCachePolicy>(component, config_json)?);
                AnyPolicy::PrefixCache(policy)
            }
        })
    }

    /// Returns the slot that a component is for and its description, without configuring it.
    pub fn describe(&self, component: &[u8]) -> Result<(PolicyKind, PolicyInfo), LoadError> {
        let kind = check::inspect(component, self.inner.max_component_bytes)?;
        let info = match kind {
            PolicyKind::Scheduler => self.info::<scheduler::SchedulerPolicy>(component)?,
            PolicyKind::Admission => self.info::<admission::AdmissionPolicy>(component)?,
            PolicyKind::PrefixCache => self.info::<prefix_cache::PrefixCachePolicy>(component)?,
        };
        Ok((kind, info))
    }

    /// The most that any call of this loader's policies has used so far.
    pub fn usage(&self) -> Usage {
        self.inner.runtime.usage()
    }

    fn start<W: World>(&self, component: &[u8], config_json: &str) -> Result<Instance<W>, LoadError> {
        let Prepared { pre, info, compiled } = self.prepare::<W>(component)?;
        let config = config_json.to_owned();
        let config_digest =
            if config == NO_CONFIG { String::new() } else { check::digest(config_json.as_bytes()) };
        let template = Arc::new(Template {
            runtime: Arc::clone(&self.inner.runtime),
            pre,
            info: Arc::new(PolicyInfo { config, config_digest, ..info }),
        });
        let mut throwaway = Instance::<W>::new(Arc::clone(&template), true).map_err(setup_failed)?;
        W::self_test(&mut throwaway).map_err(|(view, fault)| LoadError::SelfTest { view, fault })?;
        let instance = Instance::new(template, false).map_err(setup_failed)?;
        compiled.keep(self.inner.cache.as_ref());
        Ok(instance)
    }

    fn info<W: World>(&self, component: &[u8]) -> Result<PolicyInfo, LoadError> {
        let Prepared { info, compiled, .. } = self.prepare::<W>(component)?;
        compiled.keep(self.inner.cache.as_ref());
        Ok(info)
    }

    /// Compiled and linked, with its description.
    fn prepare<W: World>(&self, component: &[u8]) -> Result<Prepared<W>, LoadError> {
        let runtime = &self.inner.runtime;
        let digest = check::digest(component);
        let cache = self.inner.cache.as_ref();
        let compile = || {
            shape::check_code(component)?;
            Component::from_binary(runtime.engine(), component).map_err(|error| {
                lack(&error).map_or_else(|| LoadError::Compile(words(&error)), LoadError::Machine)
            })
        };
        let compiled = compiled::from_cache_or(runtime.engine(), cache, digest.clone(), compile)?;
        let pre = runtime
            .link(&compiled.code)
            .and_then(W::link)
            .map_err(|error| LoadError::Interface(words(&error)))?;
        let unnamed = GuestLog::new(format!("{} {}", W::KIND, &digest[..12]).into(), true);
        let mut live = Live::<W>::new(runtime, &pre, unnamed).map_err(setup_failed)?;
        let info =
            live.call("describe", |exports, store| exports.describe(store)).map_err(LoadError::Describe)?;
        check_info(&info)
            .map_err(|message| LoadError::Describe(PolicyFault::new(FaultKind::InvalidDecision, message)))?;
        let description = clip(&info.description, MAX_DESCRIPTION_BYTES);
        Ok(Prepared { pre, info: PolicyInfo { digest, description, ..info }, compiled })
    }
}

/// A component that has been asked for its description.
struct Prepared<W: World> {
    pre: W::Pre,
    info: PolicyInfo,
    compiled: Compiled<Component>,
}

/// Whether a name is one that only the host's own policies have, so that no component with it loads.
pub fn is_reserved(name: &str) -> bool {
    name.strip_prefix(NATIVE).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Names and texts end up in URLs, logs, metrics and consoles.
fn check_info(info: &PolicyInfo) -> Result<(), String> {
    let PolicyInfo { name, version, .. } = info;
    let word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b));
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || name.len() > 64 || !word(name) {
        return Err(
            "its name must be 1 to 64 letters, digits or any of - _ . +, the first a letter or digit".into(),
        );
    }
    if is_reserved(name) {
        return Err(format!("its name is `{name}`, which is reserved for the host's own policies"));
    }
    if version.len() > 64 || !word(version) || !is_semantic(version) {
        return Err("its version must be a semantic version, such as 1.2.3, of at most 64 characters".into());
    }
    for (what, text, max) in [
        ("description", &info.description, MAX_DESCRIPTION_BYTES),
        ("configuration schema", &info.config_schema, MAX_SCHEMA_BYTES),
    ] {
        if text.len() > max {
            return Err(format!("its {what} has {} bytes, but the limit is {max}", text.len()));
        }
    }
    // JSON has these escaped; a description is made one line.
    if info.config_schema.chars().any(|c| c.is_control() && !c.is_ascii_whitespace()) {
        return Err("its configuration schema has control characters in it".into());
    }
    Ok(())
}

/// Three numbers, and optionally more after them (semver.org, 2).
fn is_semantic(version: &str) -> bool {
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    numbers.split('.').count() == 3 && numbers.split('.').all(number)
}

fn setup_failed(error: SetupError) -> LoadError {
    match error {
        SetupError::Machine(lack) => LoadError::Machine(lack),
        SetupError::Instantiate(fault) if fault.kind == FaultKind::Setup => {
            LoadError::Interface(fault.message)
        }
        SetupError::Instantiate(fault) => LoadError::Instantiate(fault),
        SetupError::Configure(fault) => LoadError::ConfigureFault(fault),
        SetupError::Refused(refusal) => LoadError::Configure(refusal),
    }
}

/// wasmtime quotes names from the file in its messages.
fn words(error: &wasmtime::Error) -> String {
    clip(&format!("{error:#}"), MAX_ERROR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_versions_and_schemas_are_safe_for_urls_and_terminals() {
        let cases = [
            ("continuous", "0.1.0", "{}", true),
            ("9lives+token.bucket_2", "1.20.300-rc.1+build-7", "{\n\t\"a\": 1\r\n}", true),
            ("", "0.1.0", "", false),
            ("..", "0.1.0", "", false),
            ("-x", "0.1.0", "", false),
            ("a/b", "0.1.0", "", false),
            ("builtin", "0.1.0", "", false),
            ("builtin-fcfs", "0.1.0", "", false),
            ("builtins", "0.1.0", "", true),
            ("p", "", "", false),
            ("p", "1", "", false),
            ("p", "1.2", "", false),
            ("p", "1..2", "", false),
            ("p", "1.2.3.4", "", false),
            ("p", "v1.2.3", "", false),
            ("p", "1.2.3", "\u{1b}[31m", false),
        ];
        for (name, version, config_schema, fine) in cases {
            let (name, version, config_schema) =
                (name.to_owned(), version.to_owned(), config_schema.to_owned());
            let info = PolicyInfo { name, version, config_schema, ..PolicyInfo::default() };
            assert_eq!(check_info(&info).is_ok(), fine, "{info:?}");
        }
    }
}
