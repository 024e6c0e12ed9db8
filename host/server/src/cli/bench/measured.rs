//! Flags that `infer bench engine` and `infer bench kernels` share: what to measure, and how to print it.

use clap::{Args, ValueEnum};
use infer_model::WeightType;
use infer_model::shapes::{SHAPES, Shape};
use serde::Serialize;

use super::Failure;
use crate::bench::Machine;
use crate::startup::device::DeviceChoice;

/// Measured unless `--shape` is given.
const DEFAULT: [&str; 2] = ["smollm-135m", "llama-1b"];

/// Flags of both commands.
#[derive(Args)]
pub struct Measured {
    /// Shapes to measure [default: smollm-135m and llama-1b]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(SHAPES.map(|shape| shape.name)))]
    shape: Vec<String>,
    /// Storage type of the weights; q8 is 8-bit integers with a scale per 32 [default: bf16 and q8]
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Vec<Weights>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Output::Text)]
    format: Output,
    /// `cpu`, or a GPU (`cuda`, `cuda:N`); a GPU has measurements of its own and uses no other flag but --quick
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = named_device)]
    device: DeviceChoice,
    /// On a GPU, measure fewer shapes, batches and lengths
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    F32,
    Bf16,
    Q8,
}

impl Measured {
    /// Calls `measure` with the GPU's index and `--quick` if `--device` names a GPU; else returns false.
    pub(super) fn on_gpu(&self, measure: fn(u32, bool) -> Result<(), String>) -> Result<bool, Failure> {
        let DeviceChoice::Cuda(index) = self.device else { return Ok(false) };
        crate::log::start("info")?;
        measure(index, self.quick).map_err(Failure::Failed)?;
        Ok(true)
    }

    pub(super) fn shapes(&self) -> Vec<Shape> {
        let wanted = |shape: &Shape| match self.shape.is_empty() {
            true => DEFAULT.contains(&shape.name),
            false => self.shape.iter().any(|name| name == shape.name),
        };
        SHAPES.into_iter().filter(wanted).collect()
    }

    pub(super) fn weights(&self) -> Vec<WeightType> {
        let named: &[Weights] =
            if self.weights.is_empty() { &[Weights::Bf16, Weights::Q8] } else { &self.weights };
        let kind = |weights: &Weights| match weights {
            Weights::F32 => WeightType::F32,
            Weights::Bf16 => WeightType::Bf16,
            Weights::Q8 => WeightType::Q8,
        };
        named.iter().map(kind).collect()
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(|| Machine::here().cores, usize::from)
    }

    /// Prints a report to stdout.
    pub(super) fn print<T: Serialize>(&self, report: &T, text: fn(&T) -> String) -> Result<(), Failure> {
        match self.format {
            Output::Text => print!("{}", text(report)),
            Output::Json => println!("{}", serde_json::to_string_pretty(report).map_err(Failure::failed)?),
        }
        Ok(())
    }
}

/// Refuses `auto`: a figure is worth nothing unless the caller knows which device it is of.
fn named_device(text: &str) -> Result<DeviceChoice, String> {
    match DeviceChoice::parse(text) {
        Ok(DeviceChoice::Auto) | Err(_) => Err(format!("`{text}` is not one of `cpu`, `cuda`, `cuda:N`")),
        named => named,
    }
}
