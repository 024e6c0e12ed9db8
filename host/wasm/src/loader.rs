//! From bytes to a policy that may decide: check, compile, link, instantiate, describe, configure, self-test.
//!
//! All of it takes tens of milliseconds and belongs on a blocking thread, never on the engine's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use infer_core::policy::{
    AdmissionPolicy, AnyPolicy, FaultKind, PolicyFault, PolicyInfo, PolicyKind, PrefixCachePolicy,
    SchedulerPolicy,
};

use crate::bindings::{admission, prefix_cache, scheduler};
use crate::cache::Cache;
use crate::error::LoadError;
use crate::instance::{Instance, Live, SetupError, Template};
use crate::log::GuestLog;
use crate::runtime::Runtime;
use crate::usage::Usage;
use crate::world::World;
use crate::{check, compiled};

/// What policies may take, and where compiled ones are kept.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Directory of compiled components; it must be private to this user. None compiles every time.
    pub cache_dir: Option<PathBuf>,
    /// Largest component file, in bytes.
    pub max_component_bytes: usize,
    /// Largest memory of one instance, in bytes.
    pub max_memory_bytes: usize,
    /// Processor time of one call. Not in force where `fuel` is set.
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

/// Makes policies of components. Clones share one engine and one cache.
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
    /// A loader with an engine of its own. A cache directory that can't be used is reported in the log
    /// and left alone.
    pub fn new(config: LoaderConfig) -> Result<Self, LoadError> {
        let runtime = Arc::new(Runtime::new(&config)?);
        let cache = config.cache_dir.as_deref().and_then(|dir| compiled::cache(dir, runtime.engine()));
        Ok(Self {
            inner: Arc::new(Inner { runtime, cache, max_component_bytes: config.max_component_bytes }),
        })
    }

    /// A configured and tested policy for the slot `kind`, or the check that it failed.
    /// `config_json` is handed to the policy as it is; `{}` asks for its defaults.
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

    /// Which slot a component is for, and what it says about itself. It is not configured.
    pub fn describe(&self, component: &[u8]) -> Result<(PolicyKind, PolicyInfo), LoadError> {
        let kind = check::inspect(component, self.inner.max_component_bytes)?;
        let info = match kind {
            PolicyKind::Scheduler => self.prepare::<scheduler::SchedulerPolicy>(component)?.1,
            PolicyKind::Admission => self.prepare::<admission::AdmissionPolicy>(component)?.1,
            PolicyKind::PrefixCache => self.prepare::<prefix_cache::PrefixCachePolicy>(component)?.1,
        };
        Ok((kind, info))
    }

    /// The most that any call of this loader's policies has taken so far.
    pub fn usage(&self) -> Usage {
        self.inner.runtime.usage()
    }

    fn start<W: World>(&self, component: &[u8], config_json: &str) -> Result<Instance<W>, LoadError> {
        let (pre, info) = self.prepare::<W>(component)?;
        let template = Arc::new(Template {
            runtime: Arc::clone(&self.inner.runtime),
            pre,
            info: Arc::new(info),
            config: config_json.to_owned(),
        });
        let mut throwaway = Instance::<W>::new(Arc::clone(&template), true).map_err(setup_failed)?;
        W::self_test(&mut throwaway).map_err(|(view, fault)| LoadError::SelfTest { view, fault })?;
        Instance::new(template, false).map_err(setup_failed)
    }

    /// Compiled and linked, with what it says about itself.
    fn prepare<W: World>(&self, component: &[u8]) -> Result<(W::Pre, PolicyInfo), LoadError> {
        let runtime = &self.inner.runtime;
        let digest = check::digest(component);
        let cache = self.inner.cache.as_ref();
        let compiled = compiled::from_cache_or_source(runtime.engine(), cache, component, &digest)
            .map_err(not_compiled)?;
        let pre = runtime
            .link(&compiled)
            .and_then(W::link)
            .map_err(|error| LoadError::Interface(format!("{error:#}")))?;
        let unnamed = GuestLog::new(format!("{} {}", W::KIND, &digest[..12]).into(), true);
        let mut live = Live::<W>::new(runtime, &pre, unnamed)
            .map_err(|fault| setup_failed(SetupError::Instantiate(fault)))?;
        let info =
            live.call("describe", |exports, store| exports.describe(store)).map_err(LoadError::Describe)?;
        check_info(&info)
            .map_err(|message| LoadError::Describe(PolicyFault::new(FaultKind::InvalidDecision, message)))?;
        Ok((pre, PolicyInfo { digest, ..info }))
    }
}

/// Names and texts end in URLs, logs, metrics and consoles.
fn check_info(info: &PolicyInfo) -> Result<(), String> {
    let word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b));
    if info.name.is_empty() || info.name.len() > 64 || !word(&info.name) {
        return Err("its name must be 1 to 64 letters, digits or any of - _ . +".into());
    }
    if info.version.is_empty() || info.version.len() > 64 || !word(&info.version) {
        return Err("its version must be a semantic version of at most 64 characters".into());
    }
    for (what, text, max) in
        [("description", &info.description, 1_024), ("configuration schema", &info.config_schema, 65_536)]
    {
        if text.len() > max {
            return Err(format!("its {what} has {} bytes, the limit is {max}", text.len()));
        }
    }
    Ok(())
}

fn setup_failed(error: SetupError) -> LoadError {
    match error {
        SetupError::Instantiate(fault) if fault.kind == FaultKind::Setup => {
            LoadError::Interface(fault.message)
        }
        SetupError::Instantiate(fault) => LoadError::Instantiate(fault),
        SetupError::Configure(fault) => LoadError::ConfigureFault(fault),
        SetupError::Refused(refusal) => LoadError::Configure(refusal),
    }
}

fn not_compiled(error: wasmtime::Error) -> LoadError {
    LoadError::Compile(format!("{error:#}"))
}
