//! The three slots from outside: swapping policies in one at a time, remembering who was configured how, and who
//! was in force before the previous one: the engine keeps that one alone. Finding and making them is in `load`.

mod load;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_api::admin::{AdminEvent, AvailablePolicy, SwapAnswer};
use infer_core::policy::{AnyPolicy, PolicyFault, PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;
use infer_wasm::{LoadError, PolicyLoader};
use serde_json::Value;

use crate::config::PolicyChoice;
use crate::engine::{EngineHandle, EngineStopped, OtherOnTrial, SwapMode, Swapped};
use crate::faults::{Library, Loaded};

pub use load::{
    Choices, builtin, cache_base, compiled_dir, empty, is_component_path, join, load_initial, loader,
};
use load::{load, load_again, load_choice};

/// Policies of a slot, behind the previous one, that rollbacks lead back to.
const EARLIER: usize = 8;

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A bundled policy's name, or `builtin`.
    Name(String),
    /// A component.
    Component(Arc<[u8]>),
    /// Admission policies that are asked in turn, each with its configuration.
    List(Vec<(PolicySource, Value)>),
}

/// What is to come into a slot, and how.
#[derive(Clone, Debug)]
pub struct SwapOrder {
    /// The policy.
    pub source: PolicySource,
    /// Its configuration, an object.
    pub config: Value,
    /// At once, in shadow, or on trial.
    pub mode: SwapMode,
    /// Also where it is in quarantine.
    pub force: bool,
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
    /// Not as a list.
    #[error("{0}")]
    List(PolicyFault),
    /// It was taken out before.
    #[error("`{name}` was taken out of the {kind} slot: {reason}; swap it in with `force` all the same")]
    Quarantined {
        /// Its name.
        name: String,
        /// The slot.
        kind: String,
        /// Why.
        reason: String,
    },
    /// Another slot's policy is on trial.
    #[error(
        "the {0} policy is on trial, and nobody could tell whose doing it is; wait, or promote it or roll it back"
    )]
    OtherOnTrial(PolicyKind),
    /// Neither shadow nor canary.
    #[error("the {0} slot has neither a shadow nor a policy on trial")]
    NothingToPromote(PolicyKind),
    /// No shadow.
    #[error("no policy runs in shadow in the {0} slot")]
    NoShadow(PolicyKind),
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
            Self::List(_) => "list",
            Self::Quarantined { .. } => "quarantined",
            Self::OtherOnTrial(_) => "on_trial",
            Self::NothingToPromote(_) => "nothing_to_promote",
            Self::NoShadow(_) => "no_shadow",
            Self::Stopped(_) => "engine_stopped",
        }
    }
}

/// Loads and swaps policies.
pub struct PolicyManager {
    loader: PolicyLoader,
    engine: EngineHandle,
    library: Arc<Library>,
    one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// Who was in force before the previous one, latest last.
    earlier: Mutex<[VecDeque<Loaded>; 3]>,
    available: tokio::sync::OnceCell<Vec<AvailablePolicy>>,
}

/// What the engine keeps for a policy that is to come; forgotten where it doesn't.
struct Priming<'a>(Option<&'a EngineHandle>);

impl Priming<'_> {
    /// It has come.
    fn done(&mut self) {
        self.0 = None;
    }
}

impl Drop for Priming<'_> {
    fn drop(&mut self) {
        if let Some(engine) = self.0 {
            engine.end_priming();
        }
    }
}

impl PolicyManager {
    /// For an engine that was started with policies of this library.
    pub fn new(loader: PolicyLoader, engine: EngineHandle, library: Arc<Library>) -> Self {
        Self {
            loader,
            engine,
            library,
            one_at_a_time: Arc::default(),
            earlier: Mutex::default(),
            available: tokio::sync::OnceCell::new(),
        }
    }

    /// Checks a policy off the engine thread and brings it in. Answers once it is there.
    pub async fn swap(&self, kind: PolicyKind, order: SwapOrder) -> Result<SwapAnswer, PolicyError> {
        let SwapOrder { source, config, mode, force } = order;
        let source = self.known_by_name(kind, source);
        let _turn = self.one_at_a_time.lock().await;
        let loader = self.loader.clone();
        let (mut policy, loaded) = blocking(move || load(&loader, kind, source, config)).await?;
        let quarantine = self.engine.observer().quarantine();
        let mut members = loaded.members.iter();
        if !force && let Some(entry) = members.find_map(|member| quarantine.find(&member.info.digest)) {
            drop_elsewhere(policy);
            let reason = entry.reason;
            return Err(PolicyError::Quarantined { name: entry.name, kind: entry.kind, reason });
        }
        let mut priming = Priming(None);
        if kind == PolicyKind::PrefixCache {
            (policy, priming) = self.primed(policy).await?;
        }
        self.library.remember(kind, loaded);
        match self.engine.swap(policy, mode).await? {
            Ok(swapped) => {
                priming.done();
                Ok(self.in_force(swapped, mode_name(mode)))
            }
            Err(OtherOnTrial { kind, policy }) => {
                drop_elsewhere(policy);
                Err(PolicyError::OtherOnTrial(kind))
            }
        }
    }

    /// Brings in a slot's policy with another configuration, where the policy in force is the chosen one.
    /// `None` where somebody swapped another one in: that stays.
    pub async fn reconfigure(
        &self,
        kind: PolicyKind,
        choice: PolicyChoice,
        live: &PolicyInfo,
    ) -> Result<Option<SwapAnswer>, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let loader = self.loader.clone();
        let (mut policy, loaded) = blocking(move || load_choice(&loader, kind, &choice)).await?;
        let parts = |name: &str| name.split('+').map(str::to_owned).collect::<Vec<_>>();
        let (here, there) = (parts(&live.name), parts(&loaded.info.name));
        // Admission lists may grow by the policy that keeps rates.
        if !there.starts_with(&here) && !here.starts_with(&there) {
            drop_elsewhere(policy);
            return Ok(None);
        }
        let mut priming = Priming(None);
        if kind == PolicyKind::PrefixCache {
            (policy, priming) = self.primed(policy).await?;
        }
        self.library.remember(kind, loaded);
        match self.engine.swap(policy, SwapMode::Now).await? {
            Ok(swapped) => {
                priming.done();
                Ok(Some(self.in_force(swapped, "now")))
            }
            Err(OtherOnTrial { kind, policy }) => {
                drop_elsewhere(policy);
                Err(PolicyError::OtherOnTrial(kind))
            }
        }
    }

    /// A component that was given before can be named: to configure it anew nobody needs its file.
    fn known_by_name(&self, kind: PolicyKind, source: PolicySource) -> PolicySource {
        match source {
            PolicySource::Name(name) if infer_bundle::find(kind.name(), &name).is_none() => {
                self.library.given(kind, &name).map_or(PolicySource::Name(name), PolicySource::Component)
            }
            PolicySource::List(all) => {
                let known = |(source, config)| (self.known_by_name(kind, source), config);
                PolicySource::List(all.into_iter().map(known).collect())
            }
            other @ PolicySource::Component(_) | other @ PolicySource::Name(_) => other,
        }
    }

    /// Brings the previous policy of a slot back; asked again, the one before it. Who was rolled back from
    /// stands in nobody's way.
    pub async fn rollback(&self, kind: PolicyKind) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let swapped = match self.engine.rollback(kind).await? {
            Some(swapped) => swapped,
            None => {
                let earlier = self.last_earlier(kind, true).ok_or(PolicyError::NoPrevious(kind))?;
                self.rollback_to(kind, earlier).await?
            }
        };
        Ok(self.in_force(swapped, "rollback"))
    }

    /// Tells a prefix cache what is cached. Until the engine has it, what happens meanwhile is kept for it.
    async fn primed(&self, policy: AnyPolicy) -> Result<(AnyPolicy, Priming<'_>), PolicyError> {
        let priming = Priming(Some(&self.engine));
        let known = self.engine.prime().await?;
        let policy = blocking(move || prime(policy, &known)).await?;
        Ok((policy, priming))
    }

    async fn rollback_to(&self, kind: PolicyKind, earlier: Loaded) -> Result<Swapped, PolicyError> {
        let loader = self.loader.clone();
        let (mut policy, loaded) = blocking(move || load_again(&loader, kind, earlier)).await?;
        let mut priming = Priming(None);
        if kind == PolicyKind::PrefixCache {
            (policy, priming) = self.primed(policy).await?;
        }
        self.library.remember(kind, loaded);
        let swapped = self.engine.rollback_to(policy).await?;
        priming.done();
        Ok(swapped)
    }

    /// Who a rollback would bring back.
    pub fn before(&self, slot: &SlotSnapshot) -> Option<String> {
        let info = slot.previous.clone();
        let info = info.or_else(|| self.last_earlier(slot.kind, false).map(|earlier| earlier.info))?;
        Some(info.name.clone())
    }

    /// The last of those before the previous one that was not taken out since; `take`n, it and who came
    /// after it are forgotten.
    fn last_earlier(&self, kind: PolicyKind, take: bool) -> Option<Loaded> {
        let quarantine = self.engine.observer().quarantine();
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut earlier[kind as usize];
        let at = slot.iter().rposition(|loaded| quarantine.find(&loaded.info.digest).is_none())?;
        let found = slot[at].clone();
        if take {
            slot.truncate(at);
        }
        Some(found)
    }

    /// Makes what runs in shadow the live policy, or ends a trial well.
    pub async fn promote(&self, kind: PolicyKind) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let swapped = self.engine.promote(kind).await?.ok_or(PolicyError::NothingToPromote(kind))?;
        Ok(self.in_force(swapped, "promote"))
    }

    /// Ends a slot's shadow.
    pub async fn stop_shadow(&self, kind: PolicyKind) -> Result<(), PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        drop_elsewhere(self.engine.stop_shadow(kind).await?.ok_or(PolicyError::NoShadow(kind))?);
        Ok(())
    }

    /// What a policy that was in force is made of, as recordings tell it.
    pub fn describe(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> infer_api::trace::Policy {
        crate::trace::describe(kind, policy, self.library.find(kind, policy).as_ref())
    }

    /// How the policy in force was configured.
    pub fn config_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Value {
        self.library.find(kind, policy).map_or_else(empty, |loaded| loaded.config())
    }

    /// What the policy in force can be told: its JSON Schema, for a list those of its members as `prefixItems`.
    pub fn schema_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Value {
        match self.library.find(kind, policy) {
            Some(Loaded { members, .. }) if members.len() > 1 => {
                let schemas: Vec<Value> = members.iter().map(|member| schema(&member.info)).collect();
                serde_json::json!({"type": "array", "prefixItems": schemas})
            }
            _ => schema(policy),
        }
    }

    /// What can be swapped in by name. Compiles every bundled policy when it is first asked.
    pub async fn available(&self) -> Vec<AvailablePolicy> {
        let loader = self.loader.clone();
        self.available.get_or_init(|| blocking(move || describe_all(&loader))).await.clone()
    }

    fn keep_earlier(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) {
        let Some(loaded) = self.library.find(kind, policy) else { return };
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut earlier[kind as usize];
        if slot.len() == EARLIER {
            slot.pop_front();
        }
        slot.push_back(loaded);
    }

    fn in_force(&self, swapped: Swapped, mode: &str) -> SwapAnswer {
        let Swapped { report, pause } = swapped;
        let answer = SwapAnswer {
            kind: report.kind.name().to_owned(),
            from: report.from,
            to: report.to,
            at_step: report.at_step,
            pause_us: pause.as_nanos() as f64 / 1_000.0,
            state: if report.restored { "restored" } else { "cold" }.to_owned(),
            mode: mode.to_owned(),
        };
        if let Some(retired) = report.retired {
            // What a rollback retires was left behind, and a shadow was never in force.
            if !["rollback", "shadow"].contains(&mode) {
                self.keep_earlier(report.kind, &retired.info());
            }
            drop_elsewhere(retired);
        }
        if mode != "shadow" {
            self.engine.observer().publish(AdminEvent::Swap(answer.clone()));
        }
        answer
    }
}

fn mode_name(mode: SwapMode) -> &'static str {
    match mode {
        SwapMode::Now => "now",
        SwapMode::Shadow => "shadow",
        SwapMode::Canary(_) => "canary",
    }
}

/// Tearing an instance down unmaps its memory: not on a thread that serves requests.
fn drop_elsewhere(policy: AnyPolicy) {
    tokio::task::spawn_blocking(move || drop(policy));
}

fn prime(policy: AnyPolicy, known: &infer_core::policy::CacheEvents) -> Result<AnyPolicy, PolicyError> {
    match policy {
        AnyPolicy::PrefixCache(mut policy) => {
            // Whatever it would drop of them now it can name again when it is in force.
            policy.observe_all(known).map_err(PolicyError::Prime)?;
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
