//! The machine's limits (read bandwidth, instruction rates), measured in the same run as what is compared with them.

use std::fmt;

use infer_kernels::{Cpu, Format, Isa, Pages};
use infer_model::WeightType;
use serde::Serialize;

use super::Machine;
use super::machine::load_average;

/// Memory that the bandwidth probe reads: more than caches hold.
const PROBE_BYTES: usize = 1 << 30;

/// Machine, threads and limits of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// The machine.
    pub machine: Machine,
    /// Load average of the last minute when the measurement ended.
    pub load_average_after: Option<f64>,
    /// Compute threads.
    pub threads: usize,
    /// Widest instruction set that the machine has.
    pub instructions: String,
    /// The machine's limits.
    pub limits: Limits,
}

/// The machine's limits, all threads together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// 10^9 bytes per second, 4 KiB pages.
    pub read_small_pages_gb_per_s: f64,
    /// 10^9 bytes per second, huge pages if the system has them.
    pub read_huge_pages_gb_per_s: f64,
    /// 10^9 operations per second on f32.
    pub f32_gflop_per_s: f64,
    /// 10^9 operations per second on bf16 pairs.
    pub bf16_gflop_per_s: f64,
    /// 10^9 operations per second on 8-bit integers.
    pub int8_gop_per_s: f64,
}

impl Conditions {
    /// Measures the limits with `threads` threads.
    ///
    /// # Errors
    /// If the system has not enough memory or threads.
    pub(super) fn measure(threads: usize) -> Result<Self, String> {
        let machine = Machine::here();
        let limits = Limits::measure(threads)?;
        let instructions = format!("{:?}", Isa::detect());
        Ok(Self { machine, load_average_after: None, threads, instructions, limits })
    }

    /// Notes the load average at the end of the measurement.
    pub(super) fn end(&mut self) {
        self.load_average_after = load_average();
    }
}

impl Limits {
    fn measure(threads: usize) -> Result<Self, String> {
        let cpu = Cpu::new(threads).map_err(|error| format!("--threads: {error}"))?;
        let read = |pages| cpu.read_bandwidth(pages, PROBE_BYTES, 5).map_err(|error| error.to_string());
        let rate = |format| cpu.peak_rate(format, 9) / 1e9;
        Ok(Self {
            read_small_pages_gb_per_s: read(Pages::Small)? / 1e9,
            read_huge_pages_gb_per_s: read(Pages::Huge)? / 1e9,
            f32_gflop_per_s: rate(Format::F32),
            bf16_gflop_per_s: rate(Format::Bf16),
            int8_gop_per_s: rate(Format::Int8),
        })
    }

    /// The larger share of a limit, and which limit it is: `memory` (with huge pages) or `arithmetic` (at the rate of
    /// `weights`).
    pub(super) fn judge(&self, weights: WeightType, gb_per_s: f64, gflop_per_s: f64) -> (f64, &'static str) {
        let rate = match weights {
            WeightType::F32 | WeightType::F16 => self.f32_gflop_per_s,
            WeightType::Bf16 => self.bf16_gflop_per_s,
            WeightType::Q8 | WeightType::Q4 | WeightType::Mxfp4 => self.int8_gop_per_s,
        };
        let (memory, arithmetic) = (gb_per_s / self.read_huge_pages_gb_per_s, gflop_per_s / rate);
        (memory.max(arithmetic), if memory > arithmetic { "memory" } else { "arithmetic" })
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, threads, instructions, .. } = self;
        let Limits { read_small_pages_gb_per_s, read_huge_pages_gb_per_s, .. } = self.limits;
        let Limits { f32_gflop_per_s, bf16_gflop_per_s, int8_gop_per_s, .. } = self.limits;
        let load = |load: Option<f64>| load.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"));
        let (before, after) = (load(machine.load_average_before), load(self.load_average_after));
        let (cpu, cores) = (&machine.cpu, machine.cores);
        writeln!(
            f,
            "{cpu}, {cores} cores, {instructions}; {threads} threads; load {before} before, {after} after"
        )?;
        writeln!(
            f,
            "limits: read {read_small_pages_gb_per_s:.1} GB/s (4 KiB pages), {read_huge_pages_gb_per_s:.1} GB/s \
             (huge pages); f32 {f32_gflop_per_s:.0}, bf16 {bf16_gflop_per_s:.0}, int8 {int8_gop_per_s:.0} \
             billion operations/s"
        )
    }
}
