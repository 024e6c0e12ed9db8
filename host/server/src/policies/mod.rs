//! The three slots from outside: swapping policies in one at a time, remembering who was configured how, and who
//! was in force before the previous one: the engine keeps that one alone. Finding and making them is in `load`.

mod load;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use infer_api::admin::{AdminEvent, AvailablePolicy, QuarantineEntry, SwapAnswer};
use infer_core::policy::{AnyPolicy, PolicyFault, PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;
use infer_core::trial::ShadowState;
use infer_wasm::{LoadError, PolicyLoader};
use serde_json::Value;

use crate::config::PolicyChoice;
use crate::engine::{EngineHandle, EngineStopped, OtherOnTrial, SwapMode, Swapped};
use crate::faults::{Library, Loaded};

pub use load::{
    Choices, builtin, cache_base, compiled_dir, empty, is_component_path, join, load_initial, loader,
};
use load::{is_of_the_host, load, load_again, load_choice};

/// Policies of a slot, behind the previous one, that rollbacks lead back to.
const EARLIER: usize = 8;
/// Policies of a slot that can become live again: the live one, the previous one and those behind it.
const CONFIGURED: usize = EARLIER + 2;

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
    /// Also where it is in quarantine, which ends that.
    pub force: bool,
    /// Only where this one is in force: a name, or the digest of a component.
    pub of: Option<String>,
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
    /// Nothing to go back to but what was taken out.
    #[error(
        "the previous policy of the {kind} slot, `{name}`, was taken out: {reason}; swap it in with `force` all the same"
    )]
    PreviousQuarantined {
        /// The slot.
        kind: PolicyKind,
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// Not whom the caller has seen.
    #[error("`{found}` is in the {kind} slot by now, not `{expected}`: look again")]
    NotThere {
        /// The slot.
        kind: PolicyKind,
        /// As the caller named it.
        expected: String,
        /// Who is there.
        found: String,
    },
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
            Self::NoPrevious(_) | Self::PreviousQuarantined { .. } => "no_previous",
            Self::NotThere { .. } => "not_there",
            Self::List(_) => "list",
            Self::Quarantined { .. } => "quarantined",
            Self::OtherOnTrial(_) => "on_trial",
            Self::NothingToPromote(_) => "nothing_to_promote",
            Self::NoShadow(_) => "no_shadow",
            Self::Stopped(_) => "engine_stopped",
        }
    }
}

/// What came of reading a slot's configuration again.
#[derive(Debug)]
pub enum Reconfigured {
    /// The chosen policy has it.
    Done(SwapAnswer),
    /// An operator swapped another policy in, which stays live.
    Stays {
        /// Its name.
        name: String,
    },
}

/// Loads and swaps policies.
pub struct PolicyManager {
    loader: PolicyLoader,
    engine: EngineHandle,
    library: Arc<Library>,
    /// Held while a policy is loaded, which may take seconds, and until it has its turn.
    loading: tokio::sync::Mutex<()>,
    /// Held while a slot changes.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// Policies made from flags and files, latest last: those that a reload may replace.
    configured: Mutex<[VecDeque<Arc<PolicyInfo>>; 3]>,
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
        let configured =
            PolicyKind::ALL.map(|kind| library.latest(kind).into_iter().map(|loaded| loaded.info).collect());
        Self {
            loader,
            engine,
            library,
            loading: tokio::sync::Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::default(),
            configured: Mutex::new(configured),
            earlier: Mutex::default(),
            available: tokio::sync::OnceCell::new(),
        }
    }

    /// Checks a policy off the engine thread and brings it in. Answers once it is there.
    pub async fn swap(&self, kind: PolicyKind, order: SwapOrder) -> Result<SwapAnswer, PolicyError> {
        let SwapOrder { source, config, mode, force, of } = order;
        let source = self.known_by_name(kind, source);
        let (new, _turn) = self.loaded(move |loader| load(loader, kind, source, config)).await?;
        let live = self.slot(kind).await?.policy;
        let pardoned = if force { self.pardon(&new.loaded) } else { Vec::new() };
        let may_come = expect(kind, &live, of.as_deref()).and_then(|()| self.admit(&new.loaded));
        let swapped = match may_come {
            Ok(()) => self.bring_in(new, |policy| self.engine.swap(policy, mode)).await,
            Err(error) => {
                drop_elsewhere(new.policy);
                Err(error)
            }
        };
        if swapped.is_err() {
            pardoned.into_iter().for_each(|entry| self.engine.observer().quarantine().put_back(entry));
        }
        Ok(self.in_force(swapped?, mode_name(mode)))
    }

    /// Reloads a slot's configured policy with a new configuration, if the live policy came from flags or files or if
    /// the built-in replaces a removed one. A policy that an operator swapped in is left alone, even if it has the
    /// same name.
    pub async fn reconfigure(
        &self,
        kind: PolicyKind,
        choice: PolicyChoice,
    ) -> Result<Reconfigured, PolicyError> {
        let (new, _turn) = self.loaded(move |loader| load_choice(loader, kind, &choice)).await?;
        let SlotSnapshot { policy: live, fallback, .. } = self.slot(kind).await?;
        if !fallback && !self.is_configured(kind, &live) {
            drop_elsewhere(new.policy);
            return Ok(Reconfigured::Stays { name: live.name.clone() });
        }
        if let Err(error) = self.admit(&new.loaded) {
            drop_elsewhere(new.policy);
            return Err(error);
        }
        let info = Arc::clone(&new.loaded.info);
        let swapped = self.bring_in(new, |policy| self.engine.swap(policy, SwapMode::Now)).await?;
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut configured[kind as usize];
        if slot.len() == CONFIGURED {
            slot.pop_front();
        }
        slot.push_back(info);
        drop(configured);
        Ok(Reconfigured::Done(self.in_force(swapped, "now")))
    }

    /// Whether a policy was made from flags or files, also an earlier one that a fault or a rollback brought back.
    fn is_configured(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> bool {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        configured[kind as usize].iter().any(|own| Arc::ptr_eq(own, policy))
    }

    /// Loads a policy, then waits for its turn: while it is compiled, others may be rolled back.
    async fn loaded(
        &self,
        load: impl FnOnce(&PolicyLoader) -> Result<New, PolicyError> + Send + 'static,
    ) -> Result<(New, Turn<'_>), PolicyError> {
        let _loading = self.loading.lock().await;
        let loader = self.loader.clone();
        let new = blocking(move || load(&loader)).await?;
        Ok((new, self.one_at_a_time.lock().await))
    }

    /// Hands a policy to the engine; a prefix cache is told first what is cached.
    async fn bring_in<F>(
        &self,
        New { mut policy, loaded }: New,
        enter: impl FnOnce(AnyPolicy) -> F,
    ) -> Result<Swapped, PolicyError>
    where
        F: Future<Output = Result<Result<Swapped, OtherOnTrial>, EngineStopped>>,
    {
        let kind = policy.kind();
        let mut priming = Priming(None);
        if kind == PolicyKind::PrefixCache {
            (policy, priming) = self.primed(policy).await?;
        }
        // First: what it does from its first moment on is told with what it is made of.
        self.library.remember(kind, loaded);
        match enter(policy).await? {
            Ok(swapped) => {
                priming.done();
                Ok(swapped)
            }
            Err(OtherOnTrial { kind, policy }) => {
                drop_elsewhere(policy);
                Err(PolicyError::OtherOnTrial(kind))
            }
        }
    }

    async fn slot(&self, kind: PolicyKind) -> Result<SlotSnapshot, EngineStopped> {
        let slots = self.engine.report().await?.snapshot.policies;
        Ok(slots.into_iter().find(|slot| slot.kind == kind).expect("every kind has a slot"))
    }

    /// Ends the quarantine of a policy and of its members. Returns their entries. Before the policy is live: it may
    /// fail at once.
    fn pardon(&self, loaded: &Loaded) -> Vec<QuarantineEntry> {
        let quarantine = self.engine.observer().quarantine();
        parts(loaded).filter_map(|info| quarantine.pardon(info)).collect()
    }

    /// Refuses a quarantined policy.
    fn admit(&self, loaded: &Loaded) -> Result<(), PolicyError> {
        match self.quarantined(loaded) {
            Some(QuarantineEntry { name, kind, reason, .. }) => {
                Err(PolicyError::Quarantined { name, kind, reason })
            }
            None => Ok(()),
        }
    }

    /// Why a policy, or one of a list's members, is not taken in again.
    fn quarantined(&self, loaded: &Loaded) -> Option<QuarantineEntry> {
        let quarantine = self.engine.observer().quarantine();
        parts(loaded).find_map(|info| quarantine.find(info))
    }

    /// A component that was given before can be named: to configure it anew nobody needs its file. The host's own
    /// policies keep their names, whatever else is called so.
    fn known_by_name(&self, kind: PolicyKind, source: PolicySource) -> PolicySource {
        match source {
            PolicySource::Name(name) if !is_of_the_host(kind, &name) => {
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
    /// stands in nobody's way. With `of`, only where that one is in force: of two who ask at once one goes back.
    pub async fn rollback(&self, kind: PolicyKind, of: Option<&str>) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let SlotSnapshot { policy, previous, .. } = self.slot(kind).await?;
        expect(kind, &policy, of)?;
        let back = match previous.as_ref().filter(|info| self.may_come_back(kind, info)) {
            Some(_) => self.engine.rollback(kind).await?,
            None => None,
        };
        let swapped = match back {
            Some(swapped) => swapped,
            None => self.rollback_to_earlier(kind, previous).await?,
        };
        Ok(self.in_force(swapped, "rollback"))
    }

    async fn rollback_to_earlier(
        &self,
        kind: PolicyKind,
        previous: Option<Arc<PolicyInfo>>,
    ) -> Result<Swapped, PolicyError> {
        let (at, earlier) = self.last_earlier(kind).ok_or_else(|| self.no_way_back(kind, previous))?;
        let then = Arc::clone(&earlier.info);
        let loader = self.loader.clone();
        let new = blocking(move || load_again(&loader, kind, earlier)).await?;
        let info = Arc::clone(&new.loaded.info);
        let enter = |policy| async { self.engine.rollback_to(policy).await.map(Ok) };
        let swapped = self.bring_in(new, enter).await?;
        // It and who came after it are forgotten once it is back.
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].truncate(at);
        let mut configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = configured[kind as usize].iter_mut().find(|own| Arc::ptr_eq(own, &then)) {
            *own = info;
        }
        Ok(swapped)
    }

    fn no_way_back(&self, kind: PolicyKind, previous: Option<Arc<PolicyInfo>>) -> PolicyError {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let last = previous.and_then(|info| self.library.find(kind, &info));
        let last = last.as_ref().or_else(|| earlier[kind as usize].back());
        match last.and_then(|loaded| self.quarantined(loaded)) {
            Some(QuarantineEntry { name, reason, .. }) => {
                PolicyError::PreviousQuarantined { kind, name, reason }
            }
            None => PolicyError::NoPrevious(kind),
        }
    }

    /// Tells a prefix cache what is cached. Until the engine has it, what happens meanwhile is kept for it.
    async fn primed(&self, policy: AnyPolicy) -> Result<(AnyPolicy, Priming<'_>), PolicyError> {
        let priming = Priming(Some(&self.engine));
        let known = self.engine.prime().await?;
        let policy = blocking(move || prime(policy, &known)).await?;
        Ok((policy, priming))
    }

    /// Who a rollback would bring back.
    pub fn before(&self, slot: &SlotSnapshot) -> Option<String> {
        let info = slot.previous.clone().filter(|info| self.may_come_back(slot.kind, info));
        let info = info.or_else(|| self.last_earlier(slot.kind).map(|(_, earlier)| earlier.info))?;
        Some(info.name.clone())
    }

    /// Whether neither it nor one of its members was taken out since.
    fn may_come_back(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> bool {
        self.library.find(kind, policy).is_none_or(|loaded| self.quarantined(&loaded).is_none())
    }

    /// The last of those before the previous one that was not taken out since, and its place.
    fn last_earlier(&self, kind: PolicyKind) -> Option<(usize, Loaded)> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &earlier[kind as usize];
        let at = slot.iter().rposition(|loaded| self.quarantined(loaded).is_none())?;
        Some((at, slot[at].clone()))
    }

    /// Makes what runs in shadow the live policy, or ends a trial well. With `of`, only where that one does.
    pub async fn promote(&self, kind: PolicyKind, of: Option<&str>) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let slot = self.slot(kind).await?;
        let tried = match slot.shadow {
            Some(shadow) if !slot.trial && shadow.state == ShadowState::Watching => Some(shadow.policy),
            _ => slot.trial.then_some(slot.policy),
        };
        let tried = tried.ok_or(PolicyError::NothingToPromote(kind))?;
        expect(kind, &tried, of)?;
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

/// A policy that was loaded, and what it was made of.
struct New {
    policy: AnyPolicy,
    loaded: Loaded,
}

type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

/// A policy and, of a list, its members.
fn parts(loaded: &Loaded) -> impl Iterator<Item = &Arc<PolicyInfo>> {
    loaded.members.iter().map(|member| &member.info).chain([&loaded.info])
}

/// Refuses where somebody else is there than whom the caller has seen.
fn expect(kind: PolicyKind, found: &PolicyInfo, of: Option<&str>) -> Result<(), PolicyError> {
    match of {
        Some(of) if of.is_empty() || (of != found.name && of != found.digest) => {
            Err(PolicyError::NotThere { kind, expected: of.to_owned(), found: found.name.clone() })
        }
        _ => Ok(()),
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
