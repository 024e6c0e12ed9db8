//! The component under check: makes fresh instances of it and keeps its limits and usage.

use std::sync::Arc;

use infer_core::policy::{AnyPolicy, PolicyInfo, PolicyKind};
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};

use crate::run::Run;
use crate::sheet::{Check, Sheet};

/// Fuel of one call: as many ordinary instructions as a core executes within a host's 20 ms of processor
/// time. The outcome is the same on every machine, but no promise: a division takes as much fuel as an
/// addition, and more time. A simulation allows a call as much.
pub const FUEL_PER_CALL: u64 = 40_000_000;

/// Memory of one instance in bytes, as on a host.
pub const MAX_MEMORY_BYTES: usize = 64 << 20;

/// A component that loads with its configuration.
pub(crate) struct Candidate {
    pub kind: PolicyKind,
    pub info: Arc<PolicyInfo>,
    loader: PolicyLoader,
    component: Vec<u8>,
    config: String,
    /// Compiled once, used for every instance; dropped with the candidate.
    _compiled: tempfile::TempDir,
}

impl Candidate {
    /// The outer error is this machine's, the inner one the component's.
    pub fn new(component: &[u8], config: &str) -> Result<Result<Self, LoadError>, String> {
        let compiled =
            tempfile::tempdir().map_err(|e| format!("can't make a directory for compiled code: {e}"))?;
        let loader = PolicyLoader::new(LoaderConfig {
            // Made by the loader, which wants it private.
            cache_dir: Some(compiled.path().join("compiled")),
            max_memory_bytes: MAX_MEMORY_BYTES,
            fuel: Some(FUEL_PER_CALL),
            ..LoaderConfig::default()
        })
        .map_err(|e| e.to_string())?;
        let loaded = loader
            .describe(component)
            .and_then(|(kind, _)| Ok((kind, loader.load(kind, component, config)?.info())));
        if let Err(LoadError::Machine(lack)) = &loaded {
            return Err(lack.clone());
        }
        Ok(loaded.map(|(kind, info)| Self {
            kind,
            info,
            loader,
            component: component.to_owned(),
            config: config.to_owned(),
            _compiled: compiled,
        }))
    }

    /// An instance without a past.
    pub fn load(&self) -> AnyPolicy {
        // The sandbox has no input that could differ from the first time.
        self.loader.load(self.kind, &self.component, &self.config).expect("it loaded before")
    }

    /// Fuel of all calls so far.
    pub fn fuel(&self) -> u64 {
        self.loader.usage().fuel
    }

    /// Writes down what calls took at most.
    pub fn judge_usage(&self, runs: &[Run], sheet: &mut Sheet) {
        let usage = self.loader.usage();
        let percent = usage.fuel_per_call as f64 * 100.0 / FUEL_PER_CALL as f64;
        sheet.done(
            Check::Fuel,
            format!(
                "at most {} units in one call, {percent:.1}% of the {} allowed",
                usage.fuel_per_call, FUEL_PER_CALL
            ),
        );
        sheet.done(
            Check::Memory,
            format!("at most {} KiB, {} KiB are allowed", usage.memory_bytes >> 10, MAX_MEMORY_BYTES >> 10),
        );
        let longest_ms = usage.time_per_call.as_secs_f64() * 1e3;
        let allowed_ms = LoaderConfig::default().deadline.as_secs_f64() * 1e3;
        let beyond = if longest_ms > allowed_ms { ", beyond what a host allows" } else { "" };
        let slowest = runs.iter().max_by(|a, b| a.stats.p99_us.total_cmp(&b.stats.p99_us));
        if let Some(run) = slowest {
            sheet.note(
                Check::Time,
                format!(
                    "a call took {:.0} us (p50) and {:.0} us (p99) of wall time in the run `{}`, and the longest of \
                     all {longest_ms:.1} ms of processor time{beyond}; on this machine and with fuel counted",
                    run.stats.p50_us, run.stats.p99_us, run.name
                ),
            );
        }
    }
}
