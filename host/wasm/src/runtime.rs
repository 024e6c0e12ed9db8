//! One wasmtime engine, its linker and its ticker, shared by all policies of a loader.
//!
//! Deliberately absent: WASI in the linker, threads, shared memory, garbage collection, 64-bit and multiple
//! memories, relaxed SIMD. NaNs are canonical. So a policy's answers depend on its inputs alone, on every
//! machine.
//!
//! Instances are allocated on demand: they are made only at load and after a fault, where 0.1 ms doesn't
//! matter, and the pooling allocator would reserve slots for nothing (the benchmark compares the two).

use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{HasSelf, InstancePre, Linker};
use wasmtime::{Config, Engine, Store, Trap};

use crate::bindings::scheduler::infer::policy::{host, types};
use crate::deadline::Deadline;
use crate::error::LoadError;
use crate::gauges::Gauges;
use crate::limits::Limits;
use crate::loader::LoaderConfig;
use crate::log::{GuestLog, RunLog};
use crate::room::Room;
use crate::ticker::{Running, Ticker};
use crate::usage::{Peaks, Usage};

/// Largest lifted size in bytes of one answer or log line: a plan of a million rows.
pub(crate) const MAX_ANSWER_BYTES: usize = 8 << 20;

pub(crate) struct Runtime {
    engine: Engine,
    linker: Linker<HostState>,
    /// None if fuel limits calls.
    ticker: Option<Ticker>,
    max_memory_bytes: usize,
    deadline: Duration,
    fuel: Option<u64>,
    /// Of all instances, if fuel limits calls.
    run_log: RunLog,
    peaks: Arc<Peaks>,
}

/// What a store carries.
pub(crate) struct HostState {
    pub(crate) limits: Limits,
    pub(crate) deadline: Deadline,
    pub(crate) log: GuestLog,
    pub(crate) gauges: Gauges,
    /// What the call may still pass through the imports.
    room: Room,
    pub(crate) fuel: Option<u64>,
}

impl host::Host for HostState {
    fn log(&mut self, level: host::Level, message: String) -> wasmtime::Result<()> {
        self.passed(&message)?;
        self.log.write(level, &message);
        Ok(())
    }

    fn gauge(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        self.passed(&name)?;
        if let Some(why) = self.gauges.set(name, value) {
            self.log.write(host::Level::Warn, &why);
        }
        Ok(())
    }
}

impl HostState {
    /// A guest without loops could call imports for minutes and never check a tick, so the limits are checked here
    /// too.
    fn passed(&mut self, text: &str) -> wasmtime::Result<()> {
        if self.fuel.is_none() && self.deadline.look() {
            return Err(Trap::Interrupt.into());
        }
        self.room.take(text).map_err(wasmtime::Error::new)
    }
}

impl types::Host for HostState {}

impl Runtime {
    pub(crate) fn new(config: &LoaderConfig) -> Result<Self, LoadError> {
        let engine = Engine::new(&engine_config(config.fuel.is_some())).map_err(setup)?;
        let mut linker = Linker::new(&engine);
        host::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut HostState| state).map_err(setup)?;
        types::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut HostState| state).map_err(setup)?;
        let ticker = match config.fuel {
            Some(_) => None,
            None => {
                Some(Ticker::start(engine.clone()).map_err(|error| LoadError::Engine(error.to_string()))?)
            }
        };
        Ok(Self {
            engine,
            linker,
            ticker,
            max_memory_bytes: config.max_memory_bytes,
            deadline: config.deadline,
            fuel: config.fuel,
            run_log: RunLog::default(),
            peaks: Arc::default(),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn link(
        &self,
        component: &wasmtime::component::Component,
    ) -> wasmtime::Result<InstancePre<HostState>> {
        self.linker.instantiate_pre(component)
    }

    /// An empty store with every limit set. Nothing in it runs until `arm`.
    pub(crate) fn store(&self, log: GuestLog) -> Store<HostState> {
        let state = HostState {
            limits: Limits::new(self.max_memory_bytes, Arc::clone(&self.peaks)),
            deadline: Deadline::new(self.deadline),
            log: if self.fuel.is_some() { log.by_call(&self.run_log) } else { log },
            gauges: Gauges::default(),
            room: Room::of_a_call(),
            fuel: self.fuel,
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limits);
        store.set_hostcall_fuel(MAX_ANSWER_BYTES);
        if self.ticker.is_some() {
            store.epoch_deadline_callback(|mut store| Ok(store.data_mut().deadline.on_tick()));
        }
        store
    }

    /// Notes what the call that just ended took. An error if that was too much time.
    pub(crate) fn account(&self, store: &mut Store<HostState>) -> wasmtime::Result<()> {
        let late = store.data_mut().deadline.end();
        let Some(fuel) = self.fuel else {
            return if late { Err(Trap::Interrupt.into()) } else { Ok(()) };
        };
        let left = store.get_fuel().expect("fuel is configured");
        self.peaks.saw_call(fuel.saturating_sub(left), store.data().deadline.since_first_look());
        Ok(())
    }

    /// Whether time limits calls, so that their duration may matter. Under fuel nothing depends on it.
    pub(crate) fn keeps_time(&self) -> bool {
        self.fuel.is_none()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.peaks.usage()
    }

    /// Starts the limits of one call; keep the returned guard until the call returns.
    pub(crate) fn arm(&self, store: &mut Store<HostState>) -> Option<Running<'_>> {
        let state = store.data_mut();
        state.limits.take_refused();
        state.log.begin_call();
        state.room = Room::of_a_call();
        state.deadline.arm();
        if let Some(fuel) = self.fuel {
            // For reports; decides nothing.
            state.deadline.look();
            store.set_fuel(fuel).expect("fuel is configured");
        }
        self.ticker.as_ref().map(|ticker| {
            store.set_epoch_deadline(1);
            ticker.enter()
        })
    }
}

fn engine_config(fuel: bool) -> Config {
    let mut config = bare_config();
    config
        .consume_fuel(fuel)
        .epoch_interruption(!fuel)
        // Compiled code contains the initial memories. Two bytes far apart would make megabytes of each.
        .memory_guaranteed_dense_image_size(1 << 20);
    config
}

/// The smallest WebAssembly feature set for untrusted code: no threads, no exceptions, no garbage collection,
/// one memory of 32 bits, and the same numbers on every machine.
pub fn bare_config() -> Config {
    let mut config = Config::new();
    config
        .concurrency_support(false)
        .cranelift_nan_canonicalization(true)
        .gc_support(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false)
        .wasm_threads(false)
        .shared_memory(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false);
    config
}

fn setup(error: wasmtime::Error) -> LoadError {
    LoadError::Engine(format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use infer_core::policy::FaultKind;

    use super::*;
    use crate::fault;

    /// A store whose guest has no time left, or no time limit.
    fn armed(fuel: Option<u64>) -> (Runtime, Store<HostState>) {
        let config = LoaderConfig { deadline: Duration::ZERO, fuel, ..LoaderConfig::default() };
        let runtime = Runtime::new(&config).expect("an engine");
        let mut store = runtime.store(GuestLog::new("logs".into(), true));
        drop(runtime.arm(&mut store));
        (runtime, store)
    }

    fn log(store: &mut Store<HostState>) -> wasmtime::Result<()> {
        host::Host::log(store.data_mut(), host::Level::Info, "a line".to_owned())
    }

    /// It checks the time only in the functions called here: it has no loops or calls.
    #[test]
    fn a_guest_that_only_logs_is_stopped_by_its_deadline() {
        let (runtime, mut store) = armed(None);
        runtime.account(&mut store).expect("no check came in time");
        let late = log(&mut store).expect_err("its time is over");
        assert_eq!(fault::from_error(&late, "schedule", store.data_mut()).kind, FaultKind::Deadline);
        let late = runtime.account(&mut store).expect_err("and stays over");
        assert_eq!(fault::from_error(&late, "schedule", store.data_mut()).kind, FaultKind::Deadline);
    }

    #[test]
    fn there_is_no_deadline_under_fuel() {
        let (runtime, mut store) = armed(Some(1_000));
        log(&mut store).expect("there is fuel");
        runtime.account(&mut store).expect("there is fuel");
    }
}
