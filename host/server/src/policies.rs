//! The three slots from outside: finding components, checking them off the engine thread, swapping
//! them in one at a time, remembering who was configured how.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use infer_api::admin::{AdminEvent, AvailablePolicy, SwapAnswer};
use infer_core::engine::Policies as Slots;
use infer_core::policy::{AnyPolicy, PolicyFault, PolicyInfo, PolicyKind};
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};
use serde_json::Value;

use crate::config::{Config, PolicyChoice};
use crate::engine::{EngineHandle, EngineStopped, Swapped};

/// Name of the native policy of any slot, besides its own.
const BUILTIN: &str = "builtin";
/// Configurations remembered per slot; a rollback goes back one.
const REMEMBERED: usize = 8;

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A bundled policy's name, or `builtin`.
    Name(String),
    /// A component.
    Component(Vec<u8>),
}

/// Why a policy is not in force.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No such name.
    #[error("there is no {kind} policy `{name}`; there are {known}")]
    Unknown {
        /// The slot.
        kind: PolicyKind,
        /// The name asked for.
        name: String,
        /// The names that would be right.
        known: String,
    },
    /// A file that can't be read.
    #[error("can't read the component {0}: {1}")]
    File(String, std::io::Error),
    /// It failed a check.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// It failed when it was told the cached blocks.
    #[error("the policy failed when it was told the cached blocks: {0}")]
    Prime(PolicyFault),
    /// A configuration for a policy that takes none.
    #[error("the built-in policy takes no configuration")]
    NoConfig,
    /// Nothing to go back to.
    #[error("the {0} slot has no previous policy to go back to")]
    NoPrevious(PolicyKind),
    /// The engine is gone.
    #[error("{0}")]
    Stopped(#[from] EngineStopped),
}

impl PolicyError {
    /// Machine-readable name of the check that failed.
    pub fn check(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "name",
            Self::File(..) => "file",
            Self::Load(error) => error.check(),
            Self::Prime(_) => "prime",
            Self::NoConfig => "configure",
            Self::NoPrevious(_) => "no_previous",
            Self::Stopped(_) => "engine_stopped",
        }
    }
}

/// A policy and how it is configured.
pub type Configured = (Arc<PolicyInfo>, Value);

/// Loads and swaps policies.
pub struct PolicyManager {
    loader: PolicyLoader,
    engine: EngineHandle,
    configs: Mutex<[VecDeque<Configured>; 3]>,
    one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    available: tokio::sync::OnceCell<Vec<AvailablePolicy>>,
}

/// The policies that a host starts with, and how they are configured. Blocks while it compiles.
pub fn load_initial(
    loader: &PolicyLoader,
    config: &Config,
) -> Result<(Slots, Vec<Configured>), (PolicyKind, PolicyError)> {
    let mut slots = Slots::builtin();
    let mut configs = Vec::new();
    for kind in PolicyKind::ALL {
        let choice = config.policy(kind);
        let policy = load_choice(loader, kind, choice).map_err(|e| (kind, e))?;
        configs.push((policy.info(), serde_json::from_str(&choice.config).unwrap_or_default()));
        match policy {
            AnyPolicy::Scheduler(p) => slots.scheduler = p,
            AnyPolicy::Admission(p) => slots.admission = p,
            AnyPolicy::PrefixCache(p) => slots.prefix_cache = p,
        }
    }
    Ok((slots, configs))
}

/// A loader with the host's cache of compiled policies.
pub fn loader() -> Result<PolicyLoader, LoadError> {
    PolicyLoader::new(LoaderConfig { cache_dir: cache_dir(), ..LoaderConfig::default() })
}

/// Where compiled policies are kept, if this user has a place for it.
pub fn cache_dir() -> Option<std::path::PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(std::path::PathBuf::from);
    let base = from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")))?;
    base.is_absolute().then(|| base.join("infer").join("policies"))
}

fn load_choice(
    loader: &PolicyLoader,
    kind: PolicyKind,
    choice: &PolicyChoice,
) -> Result<AnyPolicy, PolicyError> {
    let source = if is_component_path(&choice.name) {
        let bytes = std::fs::read(&choice.name).map_err(|e| PolicyError::File(choice.name.clone(), e))?;
        PolicySource::Component(bytes)
    } else {
        PolicySource::Name(choice.name.clone())
    };
    load(loader, kind, &source, &choice.config)
}

/// Whether a flag's value means a file.
pub fn is_component_path(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("wasm"))
}

/// Checks, compiles and configures. Blocks.
fn load(
    loader: &PolicyLoader,
    kind: PolicyKind,
    source: &PolicySource,
    config: &str,
) -> Result<AnyPolicy, PolicyError> {
    let name = match source {
        PolicySource::Component(bytes) => return Ok(loader.load(kind, bytes, config)?),
        PolicySource::Name(name) => name,
    };
    if name == BUILTIN || *name == builtin(kind).info().name {
        if !matches!(config.trim(), "" | "{}" | "null") {
            return Err(PolicyError::NoConfig);
        }
        return Ok(builtin(kind));
    }
    let Some(bundled) = infer_bundle::find(kind.name(), name) else {
        let names = infer_bundle::POLICIES.iter().filter(|p| p.kind == kind.name()).map(|p| p.name);
        let known: Vec<String> = names.chain([BUILTIN]).map(|n| format!("`{n}`")).collect();
        return Err(PolicyError::Unknown { kind, name: name.clone(), known: known.join(", ") });
    };
    Ok(loader.load(kind, bundled.component, config)?)
}

fn builtin(kind: PolicyKind) -> AnyPolicy {
    let slots = Slots::builtin();
    match kind {
        PolicyKind::Scheduler => AnyPolicy::Scheduler(slots.scheduler),
        PolicyKind::Admission => AnyPolicy::Admission(slots.admission),
        PolicyKind::PrefixCache => AnyPolicy::PrefixCache(slots.prefix_cache),
    }
}

impl PolicyManager {
    /// For an engine that was started with `initial`, in `PolicyKind::ALL` order.
    pub fn new(loader: PolicyLoader, engine: EngineHandle, initial: Vec<Configured>) -> Self {
        let mut configs: [VecDeque<_>; 3] = Default::default();
        for (slot, entry) in configs.iter_mut().zip(initial) {
            slot.push_back(entry);
        }
        Self {
            loader,
            engine,
            configs: Mutex::new(configs),
            one_at_a_time: Arc::default(),
            available: tokio::sync::OnceCell::new(),
        }
    }

    /// Checks a policy off the engine thread and puts it in force. Answers once it is.
    pub async fn swap(
        &self,
        kind: PolicyKind,
        source: PolicySource,
        config: Value,
    ) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let loader = self.loader.clone();
        let text = config.to_string();
        let mut policy = blocking(move || load(&loader, kind, &source, &text)).await?;
        if kind == PolicyKind::PrefixCache {
            let known = self.engine.prime().await?;
            policy = blocking(move || prime(policy, &known)).await?;
        }
        self.remember(kind, policy.info(), config);
        let swapped = self.engine.swap(policy).await?;
        Ok(self.in_force(swapped))
    }

    /// Brings the previous policy of a slot back.
    pub async fn rollback(&self, kind: PolicyKind) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let swapped = self.engine.rollback(kind).await?.ok_or(PolicyError::NoPrevious(kind))?;
        Ok(self.in_force(swapped))
    }

    /// How the policy in force was configured.
    pub fn config_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Value {
        let all = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &all[slot(kind)];
        let same = slot.iter().rev().find(|(info, _)| Arc::ptr_eq(info, policy));
        let equal = || slot.iter().rev().find(|(info, _)| info == policy);
        same.or_else(equal).map_or_else(|| Value::Object(Default::default()), |(_, config)| config.clone())
    }

    /// What can be swapped in by name. Compiles every bundled policy when it is first asked.
    pub async fn available(&self) -> Vec<AvailablePolicy> {
        let loader = self.loader.clone();
        self.available.get_or_init(|| blocking(move || describe_all(&loader))).await.clone()
    }

    fn remember(&self, kind: PolicyKind, info: Arc<PolicyInfo>, config: Value) {
        let mut all = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut all[slot(kind)];
        if slot.len() == REMEMBERED {
            slot.pop_front();
        }
        slot.push_back((info, config));
    }

    fn in_force(&self, swapped: Swapped) -> SwapAnswer {
        let Swapped { report, pause } = swapped;
        let answer = SwapAnswer {
            kind: report.kind.name().to_owned(),
            from: report.from,
            to: report.to,
            at_step: report.at_step,
            pause_us: pause.as_nanos() as f64 / 1_000.0,
            state: if report.restored { "restored" } else { "cold" }.to_owned(),
        };
        // Tearing an instance down unmaps its memory: not on a thread that serves requests.
        let retired = report.retired;
        tokio::task::spawn_blocking(move || drop(retired));
        self.engine.observer().publish(AdminEvent::Swap(answer.clone()));
        answer
    }
}

fn slot(kind: PolicyKind) -> usize {
    PolicyKind::ALL.iter().position(|&k| k == kind).expect("ALL holds every kind")
}

fn prime(policy: AnyPolicy, known: &infer_core::policy::CacheEvents) -> Result<AnyPolicy, PolicyError> {
    match policy {
        AnyPolicy::PrefixCache(mut policy) => {
            // Whatever it would drop of them now it can name again when it is in force.
            policy.observe(known).map_err(PolicyError::Prime)?;
            Ok(AnyPolicy::PrefixCache(policy))
        }
        other => Ok(other),
    }
}

fn describe_all(loader: &PolicyLoader) -> Vec<AvailablePolicy> {
    let mut all = Vec::new();
    for bundled in infer_bundle::POLICIES {
        match loader.describe(bundled.component) {
            Ok((kind, info)) => all.push(available(kind, &info)),
            Err(error) => tracing::error!(policy = bundled.name, "a bundled policy can't be used: {error}"),
        }
    }
    for kind in PolicyKind::ALL {
        all.push(available(kind, &builtin(kind).info()));
    }
    all
}

fn available(kind: PolicyKind, info: &PolicyInfo) -> AvailablePolicy {
    AvailablePolicy {
        kind: kind.name().to_owned(),
        name: info.name.clone(),
        version: info.version.clone(),
        description: info.description.clone(),
        sha256: info.digest.clone(),
        config_schema: schema(info),
    }
}

/// The schema as JSON; a policy may have none.
pub fn schema(info: &PolicyInfo) -> Value {
    serde_json::from_str(&info.config_schema).unwrap_or(Value::Null)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
}
