//! NVIDIA GPUs: a model's weights on one, its pool sized from the memory that is left, and the checks and measurements of
//! `infer gpu-check` and `infer bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use infer_core::Executor;
use infer_kernels::cuda::checks::{Effort, all};
use infer_kernels::cuda::{Device, Driver, bench as kernel_bench};
use infer_model::cuda::{DeviceModel, DeviceOptions, bench as engine_bench, checks};
use infer_model::{Model, ModelError};

use crate::config::Config;

/// What recorded decodes and the driver may take beside the pool.
const RESERVED_BYTES: u64 = 512 << 20;

/// An opened GPU.
pub struct Gpu {
    device: Arc<dyn Device>,
    name: String,
}

/// A model whose weights are on a GPU.
pub struct Placed {
    model: DeviceModel,
    name: String,
}

impl Gpu {
    /// Whether this build can use GPUs.
    pub const BUILT_IN: bool = true;

    /// Opens a GPU.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn open(index: u32) -> Result<Self, String> {
        let device: Arc<dyn Device> = Arc::new(Driver::open(index).map_err(|error| error.to_string())?);
        let properties = device.properties();
        let name = format!("cuda:{index} ({})", properties.name);
        if properties.vendor_products.is_none() {
            tracing::warn!(
                "libcublasLt was not found or doesn't start (INFER_CUDA_LIB names its folder): long prompts are slower"
            );
        }
        Ok(Self { device, name })
    }

    /// Copies the weights.
    ///
    /// # Errors
    /// Where they don't fit.
    pub fn place(self, model: &Model) -> Result<Placed, ModelError> {
        let begun = Instant::now();
        let placed = model.to_device(&self.device)?;
        tracing::info!(
            weight_bytes = placed.weight_bytes(),
            seconds = begun.elapsed().as_secs_f32(),
            "computing on {}",
            self.name
        );
        Ok(Placed { model: placed, name: self.name })
    }
}

impl Placed {
    /// What it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory that `--gpu-memory-utilization` leaves for the pool beside weights and working memory.
    ///
    /// # Errors
    /// Where the device doesn't answer.
    pub fn pool_bytes(&self, config: &Config, max_seq_len: u32, entries: u32) -> Result<u64, ModelError> {
        let memory =
            self.model.device().memory().map_err(|error| ModelError::unsupported(error.to_string()))?;
        let usable = (memory.total as f64 * f64::from(config.gpu_memory_utilization)) as u64;
        let taken = memory.total - memory.free;
        let working = self.model.working_bytes(&options(config, 1, max_seq_len, entries));
        Ok(usable.saturating_sub(taken + working + RESERVED_BYTES))
    }

    /// What computes batches.
    ///
    /// # Errors
    /// Where the device has no memory for it.
    pub fn executor(
        &self,
        config: &Config,
        total_blocks: u32,
        max_seq_len: u32,
        entries: u32,
    ) -> Result<Box<dyn Executor + Send>, ModelError> {
        Ok(Box::new(self.model.executor(options(config, total_blocks, max_seq_len, entries))?))
    }
}

fn options(config: &Config, total_blocks: u32, max_seq_len: u32, entries: u32) -> DeviceOptions {
    DeviceOptions {
        block_size: config.block_size,
        total_blocks,
        max_rows: config.max_batch_size,
        max_tokens: config.step_tokens(true),
        max_seq_len,
        prompt_cache_entries: entries,
        deterministic: config.deterministic,
        graphs: true,
    }
}

/// Every kernel against the reference with this many seeds, then whole models against the golden data, where it is given.
///
/// # Errors
/// Says how many checks failed; each one's fault is printed as it is found.
pub fn gpu_check(index: u32, seeds: u64, golden: Option<&Path>) -> Result<(), String> {
    let device = Gpu::open(index)?.device;
    let mut failed = 0;
    let mut say = |name: &str, begun: Instant, outcome: Result<String, String>| {
        let seconds = begun.elapsed().as_secs_f32();
        match outcome {
            Ok(covered) => println!("ok      {name} ({covered}), {seconds:.1} s"),
            Err(wrong) => {
                failed += 1;
                println!("FAILED  {name}: {wrong}");
            }
        }
    };
    println!("{}", describe(&device)?);
    for check in all() {
        let begun = Instant::now();
        let outcome = (0..seeds).map(|seed| check.run(&device, Effort::Thorough, seed));
        say(
            check.name,
            begun,
            outcome.collect::<Result<Vec<_>, _>>().map(|mut done| done.pop().unwrap_or_default()),
        );
    }
    if let Some(golden) = golden {
        let begun = Instant::now();
        say("golden logits", begun, checks::golden(&device, golden, checks::Extent::All));
        type Whole = fn(&Arc<dyn Device>, &Path) -> Result<String, String>;
        let wholes: [(&str, Whole); 4] = [
            ("graphs draw as launches do", checks::graphs_are_eager),
            ("paged is contiguous", checks::contiguous_is_paged),
            ("deterministic tokens stand alone", checks::tokens_stand_alone),
            ("memory runs out", checks::memory_runs_out),
        ];
        for (name, check) in wholes {
            for family in ["llama-bf16", "qwen3-bf16", "gemma3-bf16", "llama-f32"] {
                let begun = Instant::now();
                say(&format!("{name}, {family}"), begun, check(&device, &golden.join(family)));
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} checks failed on this device")),
    }
}

/// Speed of kernels, beside the machine's own limits.
///
/// # Errors
/// Where the device fails.
pub fn measure_kernels(index: u32, quick: bool) -> Result<(), String> {
    let device = Gpu::open(index)?.device;
    println!("{}", describe(&device)?);
    let extent = if quick { &kernel_bench::Extent::FEW } else { &kernel_bench::Extent::ALL };
    kernel_bench::run(&device, extent, &mut |line| println!("{line}")).map_err(|error| error.to_string())
}

/// Speed of whole steps of models with random weights.
///
/// # Errors
/// Where the device fails.
pub fn measure_engine(index: u32, quick: bool) -> Result<(), String> {
    let device = Gpu::open(index)?.device;
    println!("{}", describe(&device)?);
    engine_bench::run(&device, quick, &mut |line| println!("{line}"))
}

fn describe(device: &Arc<dyn Device>) -> Result<String, String> {
    let memory = device.memory().map_err(|error| error.to_string())?;
    let properties = device.properties();
    let (major, minor) = properties.capability;
    Ok(format!(
        "{}, compute capability {major}.{minor}, {} multiprocessors, {} of {} MiB free, cuBLASLt {}",
        properties.name,
        properties.multiprocessors,
        memory.free >> 20,
        memory.total >> 20,
        properties.vendor_products.map_or("not found".to_owned(), |version| version.to_string())
    ))
}
