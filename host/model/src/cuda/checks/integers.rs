//! Models whose weights are integers, on a device and, with the same weights widened, on the CPU.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use infer_core::LogitsSlot;
use infer_kernels::cuda::Device;
use infer_kernels::{Format, Matrix, Packer};

use super::same::{RANKS, adapt, add_adapters, each_stands_alone, recorded_is_launched};
use super::walk::{Chunk, Draws, Mode, Walk};
use crate::cuda::DeviceModel;
use crate::weights::{Experts, Gated, LayerWeights, Linear, Mlp, Weights};
use crate::{
    DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelExecutor, Quantize, Source, WeightType,
};

const BLOCK_SIZE: u32 = 16;
const MAX_SEQ_LEN: u32 = 200;
const TOTAL_BLOCKS: u32 = 128;
/// Lengths of the prompts: together more rows than are multiplied with integers as they are.
const PROMPTS: [usize; 4] = [1, 5, 17, 40];
/// Tokens after them, one a step.
const STEPS: usize = 3;

/// Logits of models with weights of 8 and of 4 bits are those of the same weights in f32, within the error of the golden ones.
///
/// # Errors
/// Says what differs.
pub fn integers(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    logits_are_near(device, checkpoint, &[])
}

/// The same of sequences without and with adapters.
///
/// # Errors
/// Says what differs.
pub fn adapted_integers(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    logits_are_near(device, checkpoint, &RANKS)
}

/// `ranks`: of adapters.
fn logits_are_near(device: &Arc<dyn Device>, checkpoint: &Path, ranks: &[usize]) -> Result<String, String> {
    let mut worst = 0.0_f64;
    for quantize in [Quantize::Q8, Quantize::Q4] {
        let mut model = load(checkpoint, quantize)?;
        add_adapters(&mut model, ranks).map_err(|error| error.to_string())?;
        let placed = model.to_device(device).map_err(|error| error.to_string())?;
        let tolerance = if model.dtype == DType::F32 { 1e-4 } else { 2e-2 };
        let mut here = Walk::new(&placed, BLOCK_SIZE, MAX_SEQ_LEN, Mode::LAUNCHED)?;
        let mut there = on_cpu(&widened(&model)?)?;
        adapt(&mut here.inner, placed.adapters());
        adapt(&mut there, placed.adapters());
        let vocab = model.config.vocab as u32;
        let token = |stream: usize, at: usize| (at as u32 * 31 + stream as u32 * 7 + 3) % vocab;
        for step in 0..=STEPS {
            let span = |prompt: usize| match step {
                0 => 0..prompt,
                _ => prompt + step - 1..prompt + step,
            };
            let inputs: Vec<Vec<u32>> = (PROMPTS.into_iter().enumerate())
                .map(|(stream, prompt)| span(prompt).map(|at| token(stream, at)).collect())
                .collect();
            let chunks: Vec<Chunk<'_>> = (PROMPTS.into_iter().zip(&inputs).enumerate())
                .map(|(stream, (prompt, tokens))| Chunk {
                    sequence: stream as u64,
                    start: span(prompt).start,
                    tokens,
                })
                .collect();
            here.run(&chunks, Draws::KEPT)?;
            there.run(&chunks, Draws::KEPT)?;
            for row in 0..chunks.len() {
                let kept = there.executor.kept_logits(LogitsSlot(row as u32));
                let error = distance(&here.kept(row)?, kept.ok_or("the CPU kept nothing")?);
                if error.is_nan() || error > tolerance {
                    return Err(format!("{quantize:?}, step {step}, row {row}: relative error {error:.2e}"));
                }
                worst = worst.max(error);
            }
        }
    }
    Ok(format!("8 and 4 bits, relative error up to {worst:.1e}"))
}

/// [`super::graphs_are_eager`] with weights of 4 bits.
///
/// # Errors
/// Says what differs.
pub fn integers_are_recorded(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    recorded_is_launched(&place(device, checkpoint)?)
}

/// [`super::tokens_stand_alone`] with weights of 4 bits.
///
/// # Errors
/// Says what differs.
pub fn integers_stand_alone(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    each_stands_alone(&place(device, checkpoint)?)
}

fn place(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<DeviceModel, String> {
    load(checkpoint, Quantize::Q4)?.to_device(device).map_err(|error| error.to_string())
}

fn load(checkpoint: &Path, quantize: Quantize) -> Result<Model, String> {
    let options = LoadOptions { for_gpu: true, quantize, ..LoadOptions::default() };
    let source = Source::Directory(checkpoint.to_owned());
    Model::load_with(&source, &options, &mut |_| ControlFlow::Continue(())).map_err(|error| error.to_string())
}

fn on_cpu(model: &Model) -> Result<crate::walk::Walk<ModelExecutor>, String> {
    let options = ExecutorOptions {
        kv_cache: KvCacheKind::Paged,
        block_size: BLOCK_SIZE,
        total_blocks: TOTAL_BLOCKS,
        max_running: PROMPTS.len() as u32,
        max_seq_len: MAX_SEQ_LEN,
        prompt_cache_entries: PROMPTS.len() as u32,
        threads: 1,
    };
    let executor = model.executor(options).map_err(|error| error.to_string())?;
    Ok(crate::walk::Walk::new(executor, BLOCK_SIZE, TOTAL_BLOCKS))
}

/// The model with the same weights as floats of 32 bits, whose products round no inputs.
fn widened(model: &Model) -> Result<Model, String> {
    let packer = Packer::new(1).map_err(|error| error.to_string())?;
    let mut wider = Wider { packer };
    let Weights { embedding, head, final_norm, layers } = &*model.weights;
    let weights = Weights {
        embedding: wider.matrix(embedding)?,
        head: head.as_ref().map(|head| wider.matrix(head)).transpose()?,
        final_norm: final_norm.clone(),
        layers: layers.iter().map(|layer| wider.layer(layer)).collect::<Result<_, _>>()?,
    };
    Ok(Model { dtype: DType::F32, weight_type: WeightType::F32, weights: Arc::new(weights), ..model.clone() })
}

struct Wider {
    packer: Packer,
}

impl Wider {
    fn matrix(&mut self, matrix: &Matrix) -> Result<Matrix, String> {
        let (outputs, inputs) = (matrix.outputs(), matrix.inputs());
        let row = |row: usize, out: &mut [f32]| matrix.unpack_row(row, 1.0, out);
        let packed = match matrix.is_gated() {
            true => self.packer.gated(Format::F32, outputs / 2, inputs, row),
            false => self.packer.matrix(Format::F32, outputs, inputs, row),
        };
        packed.map_err(|error| error.to_string())
    }

    fn linear(&mut self, linear: &Linear) -> Result<Linear, String> {
        Ok(Linear { matrix: self.matrix(&linear.matrix)?, bias: linear.bias.clone() })
    }

    fn gated(&mut self, Gated { gate_up, down }: &Gated) -> Result<Gated, String> {
        Ok(Gated { gate_up: self.linear(gate_up)?, down: self.linear(down)? })
    }

    fn layer(&mut self, layer: &LayerWeights) -> Result<LayerWeights, String> {
        Ok(LayerWeights {
            input_norm: layer.input_norm.clone(),
            qkv: self.linear(&layer.qkv)?,
            q_norm: layer.q_norm.clone(),
            k_norm: layer.k_norm.clone(),
            sinks: layer.sinks.clone(),
            output: self.linear(&layer.output)?,
            attention_output_norm: layer.attention_output_norm.clone(),
            mlp_norm: layer.mlp_norm.clone(),
            mlp: match &layer.mlp {
                Mlp::Dense(gated) => Mlp::Dense(self.gated(gated)?),
                Mlp::Experts(Experts { config, router, experts }) => Mlp::Experts(Experts {
                    config: *config,
                    router: self.linear(router)?,
                    experts: experts.iter().map(|expert| self.gated(expert)).collect::<Result<_, _>>()?,
                }),
            },
            mlp_output_norm: layer.mlp_output_norm.clone(),
        })
    }
}

/// The relative L2 error.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    (error / want.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}
