//! The decoder on a device: the same configuration and loaded weights, with the kernels of `infer_kernels::cuda`.
//!
//! A step uploads everything that differs between steps, launches kernels, and downloads one token per row. Memory is
//! allocated when an executor is created, or takes an adapter, never within a step, so a decode can be recorded once per
//! batch size and repeated (a CUDA graph). This is independent of the device: tests run it on the emulated one.

mod adapters;
mod answer;
pub mod bench;
mod buffers;
pub mod checks;
mod decoder;
mod drawing;
mod executor;
mod experts;
mod fused;
mod layout;
mod plan;
mod step;
mod weights;

use std::sync::Arc;

use infer_core::{AdapterWeights, DeviceFault, DeviceFaultKind};
use infer_kernels::cuda::{AttentionShape, CudaError, CudaErrorKind, Device, ProductKind, Type};

use crate::config::ModelConfig;
use crate::error::{ModelError, ModelErrorKind};
use crate::lora::{self, Adapter, AdapterLoader};
use crate::{DType, Model, WeightType};

use adapters::{PackedAdapter, PlacedAdapter};
pub use executor::DeviceExecutor;
use weights::DeviceWeights;

/// A model whose weights are on a device.
pub struct DeviceModel {
    config: ModelConfig,
    ty: Type,
    device: Arc<dyn Device>,
    weights: Arc<DeviceWeights>,
    /// Those of the model, in the order of their numbers.
    adapters: Vec<Arc<PlacedAdapter>>,
    /// How many an executor has room for, if that is more.
    room: u32,
    /// Bytes that they may take together, if others are expected.
    room_bytes: u64,
}

/// Options of an executor on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Rows of a batch, and tokens that it samples, those after draft tokens included.
    pub max_rows: u32,
    /// Tokens of a batch.
    pub max_tokens: u32,
    /// Prompt plus output tokens of a sequence.
    pub max_seq_len: u32,
    /// Prompts whose last logits can be kept.
    pub prompt_cache_entries: u32,
    /// Makes a row's bits depend on that row alone: one order of sums for all products, and contexts cut at fixed positions.
    pub deterministic: bool,
    /// Whether decodes are recorded and repeated.
    pub graphs: bool,
}

impl DeviceOptions {
    /// What computes products.
    fn kind(&self) -> ProductKind {
        if self.deterministic { ProductKind::RowByRow } else { ProductKind::Fastest }
    }
}

impl Model {
    /// Copies the weights to a device, with those of adapters. The model can be dropped afterwards. Integers stay integers, but
    /// for experts' and where the model computes in f32 or rows are not whole groups; these and 4-bit floats are widened.
    ///
    /// # Errors
    /// If a part of the model has no kernel, or device memory runs out.
    pub fn to_device(&self, device: &Arc<dyn Device>) -> Result<DeviceModel, ModelError> {
        check(&self.config)?;
        let ty = device_type(self.dtype);
        let weights = DeviceWeights::upload(device, ty, &self.config, &self.weights).map_err(too_heavy)?;
        let placed = |adapter: &Arc<Adapter>| {
            let placed = PlacedAdapter::new(device, &PackedAdapter::new(adapter, ty));
            placed.map(Arc::new).map_err(too_many)
        };
        Ok(DeviceModel {
            config: self.config.clone(),
            ty,
            device: Arc::clone(device),
            weights: Arc::new(weights),
            adapters: self.adapters.iter().map(placed).collect::<Result<_, _>>()?,
            room: 0,
            room_bytes: 0,
        })
    }

    /// What loads further adapters for executors of this model that run on a device.
    pub fn device_adapter_loader(&self) -> AdapterLoader {
        let ty = device_type(self.dtype);
        AdapterLoader::new(self.config.clone(), lora::format(self.weight_type), move |adapter| {
            let packed = PackedAdapter::new(&adapter, ty);
            let bytes = packed.bytes();
            let weights: AdapterWeights = Box::new(packed);
            (weights, bytes)
        })
    }
}

impl DeviceModel {
    /// Creates a model of this configuration with random weights of a type on the device, for benchmarks. Beside integers all is
    /// bf16, as are 4-bit floats.
    ///
    /// # Errors
    /// As [`Model::to_device`].
    pub fn random(
        config: &ModelConfig,
        weight_type: WeightType,
        device: &Arc<dyn Device>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        check(config)?;
        let ty = match weight_type {
            WeightType::F32 => Type::F32,
            WeightType::F16 => Type::F16,
            WeightType::Bf16 | WeightType::Q8 | WeightType::Q4 | WeightType::Mxfp4 => Type::Bf16,
        };
        let weights = DeviceWeights::random(device, (ty, weight_type), config, seed).map_err(too_heavy)?;
        let (device, weights) = (Arc::clone(device), Arc::new(weights));
        Ok(Self { config: config.clone(), ty, device, weights, adapters: Vec::new(), room: 0, room_bytes: 0 })
    }

    /// Gives executors that are created from now on room for so many adapters of so many bytes together, those of the model
    /// included. The memory of the others' matrices is allocated when they come, that of their kernels with the executor.
    pub fn reserve_adapters(&mut self, most: u32, bytes: u64) {
        (self.room, self.room_bytes) = (most, bytes);
    }

    /// How many adapters an executor has room for.
    fn most_adapters(&self) -> u32 {
        self.adapters().max(self.room)
    }

    /// Creates an executor with its own KV pool.
    ///
    /// # Errors
    /// If an option is invalid or device memory runs out.
    pub fn executor(&self, options: DeviceOptions) -> Result<DeviceExecutor, ModelError> {
        DeviceExecutor::new(self, options)
    }

    /// Bytes that an executor needs besides its pool.
    pub fn working_bytes(&self, options: &DeviceOptions) -> u64 {
        let properties = self.device.properties();
        let scratch = self.weights.scratch_bytes(self.ty) as u64;
        layout::working_bytes(&self.config, self.ty, properties, options)
            + scratch
            + adapters::working_bytes(self, options)
    }

    /// Adapters beside the model.
    pub fn adapters(&self) -> u32 {
        self.adapters.len() as u32
    }

    /// Bytes of the matrices of each adapter on the device, in the order of their numbers.
    pub fn bytes_of_adapters(&self) -> impl Iterator<Item = u64> {
        self.adapters.iter().map(|adapter| adapter.bytes())
    }

    /// Bytes of the matrices of all adapters on the device.
    pub fn adapter_bytes(&self) -> u64 {
        self.bytes_of_adapters().sum()
    }

    /// Bytes of all weight matrices on the device, without those of adapters.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Bytes of the weights that a step of so many tokens reads: all that every step reads, and of a layer's experts as many
    /// as are chosen on average if all are equally likely.
    pub fn step_bytes(&self, tokens: u32) -> u64 {
        self.weights.step_bytes(tokens)
    }

    /// The device that has the weights.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

fn device_type(dtype: DType) -> Type {
    match dtype {
        DType::F32 => Type::F32,
        DType::Bf16 => Type::Bf16,
        DType::F16 => Type::F16,
    }
}

fn shape(config: &ModelConfig, ty: Type) -> AttentionShape {
    let (heads, kv_heads) = (config.heads as u32, config.kv_heads as u32);
    AttentionShape { ty, heads, kv_heads, head_dim: config.head_dim as u32 }
}

fn check(config: &ModelConfig) -> Result<(), ModelError> {
    if config.head_dim > 256 || !config.head_dim.is_multiple_of(2) || config.vocab >= 1 << 20 {
        let (head_dim, vocab) = (config.head_dim, config.vocab);
        return Err(ModelError::unsupported(format!(
            "heads of {head_dim} with a vocabulary of {vocab} have no kernels; use --device cpu"
        )));
    }
    Ok(())
}

/// The error for weights that can't be copied to a device.
fn too_heavy(error: CudaError) -> ModelError {
    refused(&error, "; the weights don't fit: end other processes on the device, or take a smaller model")
}

/// The error for adapters that can't be copied to a device.
fn too_many(error: CudaError) -> ModelError {
    refused(
        &error,
        "; the adapters don't fit beside the weights: end other processes on the device, or serve fewer",
    )
}

/// The error for an executor that can't be set up on a device.
fn unfit(error: CudaError) -> ModelError {
    let advice =
        "; lower gpu-memory-utilization (kv-memory, if that is given), max-batch-tokens or max-batch-size";
    refused(&error, advice)
}

/// An error with advice if memory ran out.
fn refused(error: &CudaError, advice: &str) -> ModelError {
    let advice = if error.kind == CudaErrorKind::OutOfMemory { advice } else { "" };
    ModelError::new(ModelErrorKind::Device, format!("{error}{advice}"))
}

/// The fault of a failed step.
fn fault(error: CudaError) -> DeviceFault {
    let kind = match error.kind {
        CudaErrorKind::OutOfMemory => DeviceFaultKind::OutOfMemory,
        CudaErrorKind::Lost => DeviceFaultKind::Lost,
        _ => DeviceFaultKind::Failed,
    };
    DeviceFault { kind, message: format!("the device: {error}"), rows: None }
}
