//! NVIDIA GPUs: places a model's weights on one, sizes the pool from the remaining memory, and runs the
//! checks and measurements of `infer gpu-check` and `infer bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use infer_core::Executor;
use infer_kernels::cuda::bench::{self as kernel_bench, Cell, Extent, Line, ModelShape, Plan};
use infer_kernels::cuda::{CudaError, CudaErrorKind, Device, Driver, Memory};
use infer_model::cuda::checks::{self, Scope};
use infer_model::cuda::{DeviceModel, DeviceOptions, bench as engine_bench};
use infer_model::shapes::Shape;
use infer_model::{AdapterLoader, AdapterSize, Model, ModelError, ModelErrorKind, WeightType};
use serde_json::{Value, json};

use super::{Cause, Measurement, Refusal};
use crate::config::Config;

/// Memory reserved for recorded graphs and the driver.
const RESERVED_BYTES: u64 = 512 << 20;
/// The shape of kernels other than attention if none is named.
const KERNEL_SHAPE: &str = "llama-8b";

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
        let driver = Driver::open(index, |message| tracing::warn!("{message}")).map_err(refusal)?;
        let device: Arc<dyn Device> = Arc::new(driver);
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

    /// Copies the weights to the GPU, with those of adapters, beside which others may come.
    ///
    /// # Errors
    /// If they don't fit.
    pub fn place(self, model: &Model, config: &Config) -> Result<Placed, ModelError> {
        let begun = Instant::now();
        let mut placed = model.to_device(&self.device)?;
        placed.reserve_adapters(config.most_adapters() as u32, config.expected_adapter_bytes());
        tracing::info!(
            weight_bytes = placed.weight_bytes(),
            adapter_bytes = Some(placed.adapter_bytes()).filter(|bytes| *bytes > 0),
            seconds = begun.elapsed().as_secs_f32(),
            "computing on {}",
            self.name
        );
        if let Some(stored_bytes) = model.stored_blocks {
            tracing::info!(
                stored_bytes,
                weight_bytes = placed.weight_bytes(),
                "the file's quantized weights became {}; experts are floats on a GPU, as are all weights of a model that \
                 computes in f32",
                model.weight_type
            );
        }
        Ok(Placed { model: placed, name: self.name })
    }
}

impl Placed {
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of all weight matrices on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    /// Memory that `--gpu-memory-utilization` leaves for the pool after weights and working memory, by the maximum length
    /// of a sequence.
    ///
    /// # Errors
    /// If the device fails.
    pub fn pool_bytes(&self, config: &Config, entries: u32) -> Result<impl Fn(u32) -> u64, ModelError> {
        let memory = self
            .model
            .device()
            .memory()
            .map_err(|error| ModelError::new(ModelErrorKind::Device, error.message))?;
        let others = self.adapter_room(config);
        Ok(move |max_seq_len| {
            let working = self.model.working_bytes(&options(config, 1, max_seq_len, entries));
            pool_bytes(memory, config.gpu_memory_utilization, working + others)
        })
    }

    /// Memory that is kept for the matrices of adapters that are loaded later.
    fn adapter_room(&self, config: &Config) -> u64 {
        config.expected_adapter_bytes().saturating_sub(self.model.adapter_bytes())
    }

    /// What each adapter of the model takes here, in the order of their numbers.
    pub fn adapter_sizes(&self, model: &Model) -> Vec<AdapterSize> {
        let sizes = model.adapter_sizes().zip(self.model.bytes_of_adapters());
        sizes.map(|(AdapterSize { rank, .. }, bytes)| AdapterSize { rank, bytes }).collect()
    }

    /// What loads further adapters of the model whose weights these are.
    pub fn adapter_loader(&self, model: &Model) -> AdapterLoader {
        model.device_adapter_loader()
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

/// What this share of a device's memory leaves beside all that is in use, by whatever process, and the working memory.
fn pool_bytes(memory: Memory, utilization: f32, working: u64) -> u64 {
    let usable = (memory.total as f64 * f64::from(utilization)) as u64;
    let taken = memory.total.saturating_sub(memory.free);
    usable.saturating_sub(taken + working + RESERVED_BYTES)
}

fn options(config: &Config, total_blocks: u32, max_seq_len: u32, entries: u32) -> DeviceOptions {
    DeviceOptions {
        block_size: config.block_size,
        total_blocks,
        max_rows: config.step_samples(),
        max_tokens: config.step_tokens(true),
        max_seq_len,
        prompt_cache_entries: entries,
        deterministic: config.deterministic,
        graphs: true,
    }
}

/// Checks every kernel against the reference with this many seeds, and whole models against the golden data if given; of
/// these, those whose names have one of the words, if there are any. Prints a line per check.
///
/// # Errors
/// If the GPU can't be opened or a check failed.
pub fn gpu_check(index: u32, seeds: u64, golden: Option<&Path>, only: &[String]) -> Result<(), String> {
    let device = introduced(index, &mut |line| println!("{line}"))?;
    checks::run(&device, Scope { seeds, golden, only }, &mut |line| println!("{line}"))
}

/// Measures kernels beside the machine's own limits.
///
/// # Errors
/// If the device fails.
pub fn measure_kernels(what: &Measurement) -> Result<(), String> {
    let mut print = printer(what.json);
    let device = introduced(what.index, &mut print)?;
    let kernels = |usual: &[&str]| shapes(what, usual).iter().map(kernel_shape).collect::<Vec<_>>();
    let plan = Plan {
        attention: &kernels(&engine_bench::MEASURED),
        others: &kernels(&[KERNEL_SHAPE]),
        extent: if what.quick { &Extent::FEW } else { &Extent::ALL },
    };
    kernel_bench::run(&device, &plan, &mut print).map_err(|error| error.to_string())
}

/// Measures whole steps of models with random weights.
///
/// # Errors
/// If the device fails.
pub fn measure_engine(what: &Measurement) -> Result<(), String> {
    let mut print = printer(what.json);
    let device = introduced(what.index, &mut print)?;
    let measured = engine_bench::Measured {
        shapes: &shapes(what, &engine_bench::MEASURED),
        weights: if what.weights.is_empty() { &[WeightType::Bf16] } else { &what.weights },
        quick: what.quick,
    };
    engine_bench::run(&device, &measured, &mut print)
}

/// The shapes to measure: those that are named, or the usual ones.
fn shapes(what: &Measurement, usual: &[&str]) -> Vec<Shape> {
    match what.shapes.is_empty() {
        true => usual.iter().filter_map(|name| Shape::named(name)).collect(),
        false => what.shapes.clone(),
    }
}

fn kernel_shape(shape: &Shape) -> ModelShape {
    let config = shape.config();
    ModelShape {
        name: shape.name,
        heads: config.heads as u32,
        kv_heads: config.kv_heads as u32,
        head_dim: config.head_dim as u32,
        hidden: config.hidden as u32,
        intermediate: config.intermediate as u32,
        vocab: config.vocab as u32,
    }
}

/// Prints the lines of a benchmark, as text or as a JSON object each.
fn printer(json: bool) -> impl FnMut(Line) {
    move |line| {
        let text = match json {
            true => object(&line).map(|object| object.to_string()),
            false => Some(line.to_string()),
        };
        if let Some(text) = text {
            println!("{text}");
        }
    }
}

/// A line as JSON: cells by the names of their columns. Headings have none.
fn object(line: &Line) -> Option<Value> {
    let (table, cells) = match line {
        Line::Note(text) => return Some(json!({ "note": text })),
        Line::Head(_) => return None,
        Line::Row(table, cells) => (table, cells),
    };
    let mut row = json!({ "table": table.title });
    for ((name, _), cell) in table.columns.iter().zip(cells) {
        row[name] = match cell {
            Cell::Text(text) => json!(text),
            Cell::Count(count) => json!(count),
            Cell::Number(number, _) | Cell::Share(number) => json!(number),
            Cell::Absent => Value::Null,
        };
    }
    Some(row)
}

/// Opens a GPU and says what it is.
fn introduced(index: u32, say: &mut dyn FnMut(Line)) -> Result<Arc<dyn Device>, String> {
    let device = Gpu::open(index).map_err(|refusal| refusal.reason)?.device;
    say(Line::Note(describe(&device)?));
    Ok(device)
}

fn refusal(error: CudaError) -> Refusal {
    let cause = match error.kind {
        CudaErrorKind::Switch => Cause::Setting,
        CudaErrorKind::NoKernels => Cause::Excluded,
        _ => Cause::Machine,
    };
    Refusal { reason: error.message, cause }
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

#[cfg(test)]
mod tests {
    use infer_kernels::cuda::bench::Table;

    use super::*;

    #[test]
    fn pool_is_what_the_share_leaves_beside_all_that_is_in_use() {
        const GIB: u64 = 1 << 30;
        for (free, share, working, left) in [
            (80 * GIB, 1.0, 0, 80 * GIB - RESERVED_BYTES),
            (60 * GIB, 0.5, 4 * GIB, 16 * GIB - RESERVED_BYTES),
            // The first byte over what is in use already.
            (44 * GIB + RESERVED_BYTES, 0.5, 4 * GIB, 0),
            (44 * GIB + RESERVED_BYTES + 1, 0.5, 4 * GIB, 1),
            (30 * GIB, 0.5, 0, 0),
            (0, 1.0, GIB, 0),
        ] {
            let memory = Memory { free, total: 80 * GIB };
            assert_eq!(pool_bytes(memory, share, working), left, "{free} bytes free, a share of {share}");
        }
    }

    #[test]
    fn usual_shapes_exist_and_give_way_to_named_ones() {
        let named = Shape::named("smollm-135m").expect("a shape");
        let mut what =
            Measurement { index: 0, shapes: Vec::new(), weights: Vec::new(), quick: false, json: false };
        let names = |what: &Measurement, usual: &[&str]| {
            shapes(what, usual).iter().map(|shape| shape.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&what, &engine_bench::MEASURED), engine_bench::MEASURED);
        assert_eq!(names(&what, &[KERNEL_SHAPE]), [KERNEL_SHAPE]);
        what.shapes = vec![named];
        assert_eq!(names(&what, &engine_bench::MEASURED), ["smollm-135m"]);
        let ModelShape { heads, kv_heads, head_dim, hidden, intermediate, vocab, .. } = kernel_shape(&named);
        assert_eq!([heads, kv_heads, head_dim, hidden, intermediate, vocab], [9, 3, 64, 576, 1_536, 49_152]);
    }

    #[test]
    fn measurements_are_json_objects_by_the_names_of_columns() {
        static TABLE: Table = Table {
            title: "decode",
            columns: &[
                ("model", "model"),
                ("batch", "batch"),
                ("ms", "ms"),
                ("part", "of it"),
                ("eager_ms", "-"),
            ],
        };
        let row = ["a".into(), Cell::Count(8), Cell::Number(0.5, 3), Cell::Share(0.25), Cell::Absent];
        let wanted =
            json!({"table": "decode", "model": "a", "batch": 8, "ms": 0.5, "part": 0.25, "eager_ms": null});
        assert_eq!(object(&TABLE.row(row)), Some(wanted));
        assert_eq!(object(&Line::Note("warm".to_owned())), Some(json!({"note": "warm"})));
        assert_eq!(object(&Line::Head(&TABLE)), None);
    }
}
