//! NVIDIA GPUs: places a model's weights on one, sizes the pool from the remaining memory, and runs the
//! checks and measurements of `infer gpu-check` and `infer bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use infer_core::Executor;
use infer_kernels::cuda::{CudaError, CudaErrorKind, Device, Driver, bench as kernel_bench};
use infer_model::cuda::{DeviceModel, DeviceOptions, bench as engine_bench, checks};
use infer_model::{Model, ModelError};

use super::Refusal;
use crate::config::Config;

/// Memory reserved for recorded graphs and the driver.
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
    /// Whether this build supports GPUs.
    pub const BUILT_IN: bool = true;

    /// Opens a GPU.
    ///
    /// # Errors
    /// If the GPU can't be used; the message says what is missing.
    pub fn open(index: u32) -> Result<Self, Refusal> {
        let device: Arc<dyn Device> = Arc::new(Driver::open(index).map_err(refusal)?);
        let properties = device.properties();
        let name = format!("cuda:{index} ({})", properties.name);
        let switches = properties.switches.in_use();
        if !switches.is_empty() {
            tracing::warn!("switches for experiments with GPUs are set: {}", switches.join(" "));
        }
        match &properties.vendor_products {
            None => tracing::warn!(
                "libcublasLt was not found or failed to start, so long prompts are slower; INFER_CUDA_LIB sets its directory"
            ),
            Some(library) => {
                if let Some(passed_over) = &library.passed_over {
                    tracing::warn!(
                        "the loader prefers {} to {}; to use the latter, link libcublasLt.so to it in the first directory of \
                         LD_LIBRARY_PATH",
                        library.file.display(),
                        passed_over.display()
                    );
                }
            }
        }
        Ok(Self { device, name })
    }

    /// Copies the weights to the GPU.
    ///
    /// # Errors
    /// If they don't fit.
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
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory that `--gpu-memory-utilization` leaves for the pool after weights and working memory.
    ///
    /// # Errors
    /// If the device fails.
    pub fn pool_bytes(&self, config: &Config, max_seq_len: u32, entries: u32) -> Result<u64, ModelError> {
        let memory =
            self.model.device().memory().map_err(|error| ModelError::unsupported(error.to_string()))?;
        let usable = (memory.total as f64 * f64::from(config.gpu_memory_utilization)) as u64;
        let taken = memory.total - memory.free;
        let working = self.model.working_bytes(&options(config, 1, max_seq_len, entries));
        Ok(usable.saturating_sub(taken + working + RESERVED_BYTES))
    }

    /// The executor that computes batches.
    ///
    /// # Errors
    /// If the device lacks memory.
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

/// Checks every kernel against the reference with this many seeds, and whole models against the golden data
/// if given. Prints a line per check.
///
/// # Errors
/// If the GPU can't be opened or a check failed.
pub fn gpu_check(index: u32, seeds: u64, golden: Option<&Path>) -> Result<(), String> {
    let device = introduced(index)?;
    checks::run(&device, seeds, golden, &mut |line| println!("{line}"))
}

/// Measures kernels beside the machine's own limits.
///
/// # Errors
/// If the device fails.
pub fn measure_kernels(index: u32, quick: bool) -> Result<(), String> {
    let device = introduced(index)?;
    let extent = if quick { &kernel_bench::Extent::FEW } else { &kernel_bench::Extent::ALL };
    kernel_bench::run(&device, extent, &mut |line| println!("{line}")).map_err(|error| error.to_string())
}

/// Measures whole steps of models with random weights.
///
/// # Errors
/// If the device fails.
pub fn measure_engine(index: u32, quick: bool) -> Result<(), String> {
    let device = introduced(index)?;
    engine_bench::run(&device, quick, &mut |line| println!("{line}"))
}

/// Opens a GPU and prints what it is.
fn introduced(index: u32) -> Result<Arc<dyn Device>, String> {
    let device = Gpu::open(index).map_err(|refusal| refusal.reason)?.device;
    println!("{}", describe(&device)?);
    Ok(device)
}

fn refusal(error: CudaError) -> Refusal {
    Refusal { is_setting: error.kind == CudaErrorKind::Switch, reason: error.message }
}

fn describe(device: &Arc<dyn Device>) -> Result<String, String> {
    let memory = device.memory().map_err(|error| error.to_string())?;
    let properties = device.properties();
    let (major, minor) = properties.capability;
    let library = match &properties.vendor_products {
        Some(library) => format!("{} ({})", library.version, library.file.display()),
        None => "not found".to_owned(),
    };
    let switches = properties.switches.in_use();
    Ok(format!(
        "{}, compute capability {major}.{minor}, {} multiprocessors, {} of {} MiB free, early launches {}, cuBLASLt {library}, \
         switches: {}",
        properties.name,
        properties.multiprocessors,
        memory.free >> 20,
        memory.total >> 20,
        if properties.early { "on" } else { "off" },
        if switches.is_empty() { "none".to_owned() } else { switches.join(" ") }
    ))
}
