//! The three policy slots from outside: swaps, reloads, shadows, canaries and rollbacks, one at a time.
//!
//! Policies are compiled and primed here, off the engine thread; the engine only exchanges them. `origin` remembers
//! what each was made of, so that a policy can be described, recorded, or loaded again.

mod answer;
mod configure;
mod describe;
mod error;
mod load;
mod origin;
mod quarantine;
mod rollback;
mod tag;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use infer_api::admin::{AvailablePolicy, CanaryInfo, QuarantineEntry, SwapAnswer};
use infer_core::policy::{AnyPolicy, CacheEvents, PolicyInfo, PolicyKind};
use infer_core::snapshot::{SlotSnapshot, Snapshot};
use infer_wasm::PolicyLoader;
use serde_json::Value;

use crate::engine::{
    By, EngineHandle, EngineStopped, NotChanged, Provided, Seen, SlotChange, SwapMode, Swapped, canary_info,
};
use crate::policy_state::Keeper;

pub use describe::shipped;
pub use error::{PolicyError, Reconfigured};
pub use load::{
    Choices, builtin, cache_base, compiled_dir, empty, find, is_component_path, join, list_members,
    load_initial, load_kept, loader, loader_with,
};
pub use origin::{Component, Member, Origin, Origins};
pub use tag::tag;

use answer::{mode_name, unchanged};
use load::{is_bundled, is_called, load};
use quarantine::{log_lifted, parts};
use rollback::Earlier;
use tag::is_tag;

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A bundled policy's name, or `builtin`.
    Name(String),
    /// The bytes of a component.
    Component(Arc<[u8]>),
    /// Admission policies that are asked in turn, each with its configuration.
    List(Vec<(PolicySource, Value)>),
}

/// What to swap in, and how.
#[derive(Clone, Debug)]
pub struct SwapOrder {
    /// The policy.
    pub source: PolicySource,
    /// Its configuration, an object.
    pub config: Value,
    /// Live at once, as a shadow, or as a canary.
    pub mode: SwapMode,
    /// Swap in a quarantined policy, too, and end its quarantine.
    pub force: bool,
    /// Fail unless this policy is live: a name, a component's digest, or a [`tag`](tag()).
    pub of: Option<String>,
    /// Who wants it.
    pub by: Option<By>,
}

/// Loads and swaps policies.
pub struct PolicyManager {
    loader: PolicyLoader,
    engine: EngineHandle,
    origins: Arc<Origins>,
    /// Held while a policy is loaded, which may take seconds, and until `one_at_a_time` is acquired.
    loading: tokio::sync::Mutex<()>,
    /// Held while a slot changes.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// Policies made from flags and files, latest last: those that a reload may replace.
    configured: Mutex<[VecDeque<Arc<PolicyInfo>>; 3]>,
    earlier: Mutex<Earlier>,
    available: tokio::sync::OnceCell<Vec<AvailablePolicy>>,
    /// Saves what changes, if that is wanted.
    keeper: Option<Arc<Keeper>>,
}

/// A loaded policy and what it was made of.
struct New {
    policy: AnyPolicy,
    origin: Origin,
}

type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl PolicyManager {
    /// Returns a manager for an engine that was started with the policies in `origins`.
    pub fn new(loader: PolicyLoader, engine: EngineHandle, origins: Arc<Origins>) -> Self {
        let configured =
            PolicyKind::ALL.map(|kind| origins.latest(kind).into_iter().map(|origin| origin.info).collect());
        Self {
            loader,
            engine,
            origins,
            loading: tokio::sync::Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::default(),
            configured: Mutex::new(configured),
            earlier: Mutex::default(),
            available: tokio::sync::OnceCell::new(),
            keeper: None,
        }
    }

    /// Of an engine in whose slots others than the `configured` policies may be live, which `keeper` saves.
    #[must_use]
    pub fn keeping(self, configured: [Arc<PolicyInfo>; 3], keeper: Arc<Keeper>) -> Self {
        let configured = configured.map(|info| VecDeque::from([info]));
        Self { configured: Mutex::new(configured), keeper: Some(keeper), ..self }
    }

    /// Returns what saves changes, if that is wanted.
    pub fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.keeper.as_ref()
    }

    /// Waits until the changes so far are saved, if they are to be. Returns why they are not.
    pub async fn not_saved(&self) -> Option<String> {
        match &self.keeper {
            Some(keeper) => keeper.not_saved().await,
            None => None,
        }
    }

    /// The response to a change, once that is saved or can't be.
    async fn saved(&self, answer: SwapAnswer) -> SwapAnswer {
        SwapAnswer { not_saved: self.not_saved().await, ..answer }
    }

    /// Loads and checks a policy off the engine thread, then swaps it in. If it is live already, with the same
    /// configuration, nothing changes: a repeated order must not cost the slot its way back.
    pub async fn swap(&self, kind: PolicyKind, order: SwapOrder) -> Result<SwapAnswer, PolicyError> {
        let answer = self.bring(kind, order).await?;
        Ok(self.saved(answer).await)
    }

    async fn bring(&self, kind: PolicyKind, order: SwapOrder) -> Result<SwapAnswer, PolicyError> {
        let SwapOrder { source, config, mode, force, of, by } = order;
        let source = self.resolve_names(kind, source);
        let (new, _turn) = self.loaded(move |loader| load(loader, kind, source, config)).await?;
        let info = Arc::clone(&new.origin.info);
        let Snapshot { step, policies, .. } = self.engine.report().await?.snapshot;
        let slot = slot_of(policies, kind);
        let pardoned = if force { self.pardon(&new.origin) } else { Vec::new() };
        let may_come = expect(kind, &slot.policy, of.as_deref()).and_then(|()| self.admit(&new.origin));
        let swapped = match may_come {
            Ok(()) if mode == SwapMode::Now && runs(&slot, &info) => {
                drop_elsewhere(new.policy);
                pardoned.iter().for_each(|entry| log_lifted(&entry.sha256, by.as_ref()));
                return Ok(unchanged(&slot, step));
            }
            Ok(()) => {
                let there = of.is_some().then(|| Seen::live(&slot));
                self.bring_in(new, |policy| SlotChange::Swap(policy, mode), there, by.clone()).await
            }
            Err(error) => {
                drop_elsewhere(new.policy);
                Err(error)
            }
        };
        for entry in pardoned {
            match &swapped {
                Ok(_) => log_lifted(&entry.sha256, by.as_ref()),
                Err(_) => self.engine.observer().quarantine().put_back(entry),
            }
        }
        let answer = self.finish(swapped?, mode_name(mode), &info);
        let canary = if matches!(mode, SwapMode::Canary(_)) { self.canary(kind, &info).await } else { None };
        Ok(SwapAnswer { canary, ..answer })
    }

    /// Returns the trial of a policy that was swapped in as a canary.
    async fn canary(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Option<Box<CanaryInfo>> {
        let report = self.slot(kind).await.ok()?.canary?;
        Arc::ptr_eq(&report.policy, policy).then(|| Box::new(canary_info(self.engine.clock(), &report)))
    }

    /// Loads a policy, then waits until no other change is under way. Rollbacks need not wait for the compiler.
    async fn loaded(
        &self,
        load: impl FnOnce(&PolicyLoader) -> Result<New, PolicyError> + Send + 'static,
    ) -> Result<(New, Turn<'_>), PolicyError> {
        let _loading = self.loading.lock().await;
        let loader = self.loader.clone();
        let new = blocking(move || load(&loader)).await?;
        Ok((new, self.one_at_a_time.lock().await))
    }

    /// Hands a policy to the engine, which takes it if it is in no quarantine and the slot still has the policy that
    /// was `there`. Primes a prefix cache first.
    async fn bring_in(
        &self,
        New { mut policy, origin }: New,
        change: impl FnOnce(AnyPolicy) -> SlotChange,
        there: Option<Seen>,
        by: Option<By>,
    ) -> Result<Swapped, PolicyError> {
        let kind = policy.kind();
        let provided = Provided { there, sound: parts(&origin).cloned().collect() };
        let mut priming = Priming(None);
        if kind == PolicyKind::PrefixCache {
            (policy, priming) = self.primed(policy).await?;
        }
        // Before it is live: a fault in its first step is reported with what it was made of.
        self.origins.remember(kind, origin);
        let swapped = self.engine.change(change(policy), provided, by).await?;
        let swapped = swapped.map_err(|why| not_changed(kind, why))?;
        priming.done();
        Ok(swapped)
    }

    /// Tells a prefix cache which blocks are cached. The engine keeps what happens until it has the policy.
    async fn primed(&self, policy: AnyPolicy) -> Result<(AnyPolicy, Priming<'_>), PolicyError> {
        let priming = Priming(Some(&self.engine));
        let known = self.engine.prime().await?;
        let policy = blocking(move || prime(policy, &known)).await?;
        Ok((policy, priming))
    }

    async fn slot(&self, kind: PolicyKind) -> Result<SlotSnapshot, EngineStopped> {
        Ok(slot_of(self.engine.report().await?.snapshot.policies, kind))
    }

    /// Replaces the names of components that were given earlier by their bytes, so that changing a configuration needs
    /// no second upload. Names of bundled policies always mean these.
    fn resolve_names(&self, kind: PolicyKind, source: PolicySource) -> PolicySource {
        match source {
            PolicySource::Name(name) if !is_bundled(kind, &name) => {
                self.origins.given(kind, &name).map_or(PolicySource::Name(name), PolicySource::Component)
            }
            PolicySource::List(all) => {
                let resolved = |(source, config)| (self.resolve_names(kind, source), config);
                PolicySource::List(all.into_iter().map(resolved).collect())
            }
            other @ PolicySource::Component(_) | other @ PolicySource::Name(_) => other,
        }
    }

    /// Makes the shadow the live policy, or accepts the canary early, unless it is quarantined by now. With `of`,
    /// fails unless that policy is the shadow or canary.
    pub async fn promote(
        &self,
        kind: PolicyKind,
        of: Option<&str>,
        by: Option<By>,
    ) -> Result<SwapAnswer, PolicyError> {
        let answer = self.accept(kind, of, by).await?;
        Ok(self.saved(answer).await)
    }

    async fn accept(
        &self,
        kind: PolicyKind,
        of: Option<&str>,
        by: Option<By>,
    ) -> Result<SwapAnswer, PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        let tried = Seen::tried(&self.slot(kind).await?).ok_or(PolicyError::NothingToPromote(kind))?;
        let info = Arc::clone(tried.policy());
        expect(kind, &info, of)?;
        let provided = Provided { there: Some(tried), sound: self.parts_of(kind, &info) };
        let swapped = self.engine.change(SlotChange::Promote(kind), provided, by).await?;
        let swapped = swapped.map_err(|why| match why {
            // Its trial is over, and no other has begun.
            NotChanged::Overtaken(slot) if Seen::tried(&slot).is_none() => {
                PolicyError::NothingToPromote(kind)
            }
            NotChanged::Nothing => PolicyError::NothingToPromote(kind),
            why => not_changed(kind, why),
        })?;
        Ok(self.finish(swapped, "promote", &info))
    }

    /// Stops a slot's shadow.
    pub async fn stop_shadow(&self, kind: PolicyKind, by: Option<By>) -> Result<(), PolicyError> {
        let _turn = self.one_at_a_time.lock().await;
        drop_elsewhere(self.engine.stop_shadow(kind, by).await?.ok_or(PolicyError::NoShadow(kind))?);
        Ok(())
    }
}

/// Ends the engine's priming on drop, unless it is `done`.
struct Priming<'a>(Option<&'a EngineHandle>);

impl Priming<'_> {
    /// The engine has the policy.
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

fn slot_of(slots: [SlotSnapshot; 3], kind: PolicyKind) -> SlotSnapshot {
    slots.into_iter().find(|slot| slot.kind == kind).expect("every kind has a slot")
}

/// Whether a slot runs this policy for good: neither on trial nor in place of one that was removed.
fn runs(slot: &SlotSnapshot, policy: &PolicyInfo) -> bool {
    !slot.trial && !slot.fallback && slot.policy.is_same(policy)
}

/// Optimistic concurrency check: fails unless the policy is the one that the caller saw.
fn expect(kind: PolicyKind, found: &PolicyInfo, of: Option<&str>) -> Result<(), PolicyError> {
    let Some(of) = of else { return Ok(()) };
    let (is_it, found) = if is_tag(of) {
        let found = tag(found);
        (found == of, found)
    } else {
        let is_it = !of.is_empty() && (is_called(kind, &found.name, of) || of == found.digest);
        (is_it, found.name.clone())
    };
    if is_it { Ok(()) } else { Err(PolicyError::NotThere { kind, expected: of.to_owned(), found }) }
}

/// Why the engine did not change a slot.
fn not_changed(kind: PolicyKind, why: NotChanged) -> PolicyError {
    match why {
        NotChanged::OtherOnTrial(other) => PolicyError::OtherOnTrial(other),
        NotChanged::Overtaken(slot) => PolicyError::Overtaken { kind, found: slot.policy.name.clone() },
        NotChanged::Quarantined(entry) => {
            let QuarantineEntry { name, kind, reason, .. } = *entry;
            PolicyError::Quarantined { name, kind, reason }
        }
        NotChanged::Nothing => PolicyError::NoPrevious(kind),
    }
}

/// Dropping an instance unmaps its memory, which is too slow for a thread that serves requests.
fn drop_elsewhere(policy: AnyPolicy) {
    tokio::task::spawn_blocking(move || drop(policy));
}

fn prime(policy: AnyPolicy, known: &CacheEvents) -> Result<AnyPolicy, PolicyError> {
    match policy {
        AnyPolicy::PrefixCache(mut policy) => {
            // The blocks that it answers with can be ignored: it can name them again once it is live.
            policy.observe_all(known).map_err(PolicyError::Prime)?;
            Ok(AnyPolicy::PrefixCache(policy))
        }
        other => Ok(other),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
}
