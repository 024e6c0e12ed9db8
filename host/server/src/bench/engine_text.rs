//! The report of `infer bench engine` as people read it.

use std::fmt::Write as _;

use super::Machine;
use super::engine::{EngineReport, Limits};

/// On what was measured, and what it can do at most.
pub(super) fn conditions(
    machine: &Machine,
    load_after: Option<f64>,
    threads: usize,
    instructions: &str,
    limits: &Limits,
) -> String {
    let Limits { read_small_pages_gb_per_s, read_huge_pages_gb_per_s, .. } = limits;
    let Limits { f32_gflop_per_s, bf16_gflop_per_s, int8_gop_per_s, .. } = limits;
    let load = |load: Option<f64>| load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
    let (before, after) = (load(machine.load_average_before), load(load_after));
    let (cpu, cores) = (&machine.cpu, machine.cores);
    format!(
        "{cpu}, {cores} cores, {instructions}; {threads} threads; load {before} before, {after} after\n\
         limits: read {read_small_pages_gb_per_s:.1} GB/s (4 KiB pages), {read_huge_pages_gb_per_s:.1} GB/s \
         (huge pages); f32 {f32_gflop_per_s:.0}, bf16 {bf16_gflop_per_s:.0}, int8 {int8_gop_per_s:.0} \
         billion operations/s\n\n"
    )
}

impl EngineReport {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = conditions(
            &self.machine,
            self.load_average_after,
            self.threads,
            &self.instructions,
            &self.limits,
        );
        _ = writeln!(
            text,
            "{:<12} {:<5} {:<12} {:>9} {:>9} {:>9} {:>7} {:>8}  limit",
            "shape", "", "", "tok/s", "median", "ms", "GB/s", "GFLOP/s"
        );
        for run in &self.runs {
            _ = writeln!(
                text,
                "{:<12} {:<5} {:<12} {:>9.1} {:>9.1} {:>9.2} {:>7.1} {:>8.1}  {:.0} % of {}",
                run.shape,
                run.weights,
                run.run,
                run.best_tokens_per_s,
                run.median_tokens_per_s,
                run.best_ms,
                run.gb_per_s,
                run.gflop_per_s,
                100.0 * run.share_of_limit,
                run.bound_by
            );
        }
        for run in &self.runs {
            let Some(crowded) = run.crowded else { continue };
            _ = writeln!(
                text,
                "beside {} spinning threads, {} {} {}: {:.1} tok/s on average, {:.0} % of the average without; \
                 a fair share is {:.0} %",
                crowded.neighbours,
                run.shape,
                run.weights,
                run.run,
                crowded.mean_tokens_per_s,
                100.0 * crowded.share,
                100.0 * crowded.fair_share
            );
        }
        text
    }
}
