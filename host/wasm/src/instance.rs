//! One policy: its compiled template, its live instance, and what a restart needs.
//!
//! After any error the store is dropped: a guest that trapped has no consistent state. `restart` makes a
//! fresh one from the template and configures it. Deliberately absent: a copy of its state; the engine's
//! guard has the only one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use infer_core::ids::Micros;
use infer_core::policy::{CallStats, FaultKind, Gauge, Policy, PolicyFault, PolicyInfo};
use wasmtime::Store;

use crate::fault;
use crate::log::GuestLog;
use crate::runtime::{HostState, Runtime};
use crate::stats::Recorder;
use crate::text::clip;
use crate::world::World;

/// A policy's message when it refuses its configuration or state.
const MAX_REFUSAL_BYTES: usize = 1_024;

/// Everything that instances of one loaded policy share.
pub(crate) struct Template<W: World> {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) pre: W::Pre,
    pub(crate) info: Arc<PolicyInfo>,
}

/// A store with one instance in it.
pub(crate) struct Live<W> {
    runtime: Arc<Runtime>,
    store: Store<HostState>,
    exports: W,
}

/// How setting an instance up failed.
pub(crate) enum SetupError {
    /// The operating system refused what an instance needs.
    Machine(String),
    Instantiate(PolicyFault),
    Configure(PolicyFault),
    Refused(String),
}

impl<W: World> Live<W> {
    pub(crate) fn new(runtime: &Arc<Runtime>, pre: &W::Pre, log: GuestLog) -> Result<Self, SetupError> {
        let mut store = runtime.store(log);
        let running = runtime.arm(&mut store);
        let exports = W::instantiate(pre, &mut store);
        drop(running);
        match exports.and_then(|exports| runtime.account(&mut store).map(|()| exports)) {
            Ok(exports) => Ok(Self { runtime: Arc::clone(runtime), store, exports }),
            Err(error) => {
                if let Some(lack) = fault::lack(&error) {
                    return Err(SetupError::Machine(lack));
                }
                let fault = fault::from_error(&error, "start", store.data_mut());
                // Before any guest code runs nothing is decided: an error is one of setup.
                Err(SetupError::Instantiate(match fault.kind {
                    FaultKind::InvalidDecision => {
                        PolicyFault::new(FaultKind::Setup, clip(&format!("{error:#}"), MAX_REFUSAL_BYTES))
                    }
                    _ => fault,
                }))
            }
        }
    }

    /// One guarded call.
    pub(crate) fn call<R>(
        &mut self,
        function: &str,
        call: impl FnOnce(&W, &mut Store<HostState>) -> wasmtime::Result<R>,
    ) -> Result<R, PolicyFault> {
        let running = self.runtime.arm(&mut self.store);
        let answer = call(&self.exports, &mut self.store);
        drop(running);
        let in_time = self.runtime.account(&mut self.store);
        answer
            .and_then(|answer| in_time.map(|()| answer))
            .map_err(|error| fault::from_error(&error, function, self.store.data_mut()))
    }
}

impl<W: World> Template<W> {
    /// A configured instance.
    pub(crate) fn start(&self, muted: bool) -> Result<Live<W>, SetupError> {
        let log = GuestLog::new(self.info.name.as_str().into(), muted);
        let mut live = Live::<W>::new(&self.runtime, &self.pre, log)?;
        let configured = live.call("configure", |exports, store| exports.configure(store, &self.info.config));
        match configured {
            Ok(Ok(())) => Ok(live),
            Ok(Err(refusal)) => Err(SetupError::Refused(clip(&refusal, MAX_REFUSAL_BYTES))),
            Err(fault) => Err(SetupError::Configure(fault)),
        }
    }
}

/// A policy as the engine holds it.
pub(crate) struct Instance<W: World> {
    template: Arc<Template<W>>,
    /// None from a fault until `restart`.
    live: Option<Live<W>>,
    /// Processor time of all calls.
    spent: Duration,
    recorder: Recorder,
}

impl<W: World> Instance<W> {
    pub(crate) fn new(template: Arc<Template<W>>, muted: bool) -> Result<Self, SetupError> {
        let live = Some(template.start(muted)?);
        Ok(Self { template, live, spent: Duration::ZERO, recorder: Recorder::new() })
    }

    /// One decision, timed.
    pub(crate) fn decide<R>(
        &mut self,
        function: &str,
        call: impl FnOnce(&W, &mut Store<HostState>) -> wasmtime::Result<R>,
    ) -> Result<R, PolicyFault> {
        let (answer, elapsed) = self.timed(function, call);
        self.recorder.record(elapsed);
        answer
    }

    fn guarded<R>(
        &mut self,
        function: &str,
        call: impl FnOnce(&W, &mut Store<HostState>) -> wasmtime::Result<R>,
    ) -> Result<R, PolicyFault> {
        self.timed(function, call).0
    }

    fn timed<R>(
        &mut self,
        function: &str,
        call: impl FnOnce(&W, &mut Store<HostState>) -> wasmtime::Result<R>,
    ) -> (Result<R, PolicyFault>, Duration) {
        let Some(live) = &mut self.live else {
            let fault =
                PolicyFault::new(FaultKind::Setup, "the instance is gone after a fault; restart the policy");
            return (Err(fault), Duration::ZERO);
        };
        let began = Instant::now();
        let answer = live.call(function, call);
        let elapsed = began.elapsed();
        if self.template.runtime.keeps_time() {
            self.spent += live.store.data().deadline.spent(elapsed);
        }
        if answer.is_err() {
            self.live = None;
        }
        (answer, elapsed)
    }
}

impl<W: World> Policy for Instance<W> {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::clone(&self.template.info)
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.guarded("export-state", |exports, store| exports.export_state(store))
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        let imported = self.guarded("import-state", |exports, store| exports.import_state(store, state))?;
        imported.map_err(|refusal| PolicyFault::new(FaultKind::Setup, clip(&refusal, MAX_REFUSAL_BYTES)))
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.live = None;
        let live = self.template.start(false).map_err(|error| match error {
            SetupError::Machine(lack) => {
                PolicyFault::new(FaultKind::Setup, format!("could not be restarted: {lack}"))
            }
            SetupError::Instantiate(fault) | SetupError::Configure(fault) => {
                PolicyFault::new(FaultKind::Setup, format!("could not be restarted: {fault}"))
            }
            SetupError::Refused(refusal) => {
                PolicyFault::new(FaultKind::Setup, format!("refused its configuration on restart: {refusal}"))
            }
        })?;
        self.live = Some(live);
        Ok(())
    }

    fn spent(&self) -> Micros {
        Micros(u64::try_from(self.spent.as_micros()).unwrap_or(u64::MAX))
    }

    fn stats(&self) -> CallStats {
        self.recorder.stats()
    }

    fn gauges(&self) -> Vec<Gauge> {
        let policy = &self.template.info.name;
        let of = |(name, value): (&str, f64)| Gauge { policy: policy.clone(), name: name.to_owned(), value };
        self.live.iter().flat_map(|live| live.store.data().gauges.iter().map(of)).collect()
    }
}
