//! Logits and greedy tokens of the golden checkpoints, against what Hugging Face transformers computed.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;
use infer_core::AdapterId;
use infer_kernels::cuda::Device;
use serde_json::Value;

use super::walk::{Chunk, Draws, Mode, Walk};
use crate::cuda::DeviceModel;
use crate::{DType, LoadOptions, Model, ModelError, Source};

/// How much of the golden data is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The longest few prompts of up to this many tokens, and few greedy steps: for the emulated device.
    UpTo(usize),
    /// Everything.
    All,
}

/// Number of prompts for [`Extent::UpTo`].
const FEW: usize = 3;
/// Number of greedy steps for it.
const FEW_STEPS: usize = 12;
/// Longest sequence of the golden data.
const MAX_SEQ_LEN: u32 = 400;

pub(super) struct Prompt {
    pub name: String,
    /// Of all its tokens.
    pub adapter: AdapterId,
    ids: Vec<u32>,
    /// Stored positions, their logits and margins.
    logits: BTreeMap<usize, (Vec<f32>, f64)>,
    /// Tokens and margins.
    greedy: Vec<(u32, f64)>,
}

pub(super) struct Case {
    pub name: String,
    pub prompts: Vec<Prompt>,
    pub tolerance: f64,
    pub safe_margin: f64,
}

/// Golden checkpoints: `directory` itself if it is one, else those in it, by name.
///
/// # Errors
/// If the directory can't be read or holds none.
pub fn checkpoints(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let is_golden = |path: &Path| path.join("golden.safetensors").exists();
    if is_golden(directory) {
        return Ok(vec![directory.to_owned()]);
    }
    let entries =
        std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.retain(|path| is_golden(path));
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{} contains no golden checkpoints", directory.display()));
    }
    Ok(paths)
}

/// Checks one golden checkpoint: prompts in chunks of mixed lengths, then greedy decodes that join the batch one by one, then
/// the same tokens as draft tokens.
///
/// # Errors
/// Names the checkpoint, prompt and position of each part that differs, or the file that can't be read.
pub fn golden(device: &Arc<dyn Device>, checkpoint: &Path, extent: Extent) -> Result<String, String> {
    let (case, model) = read(checkpoint, device, extent)?;
    let logits = case.prompts_in_chunks(&model);
    let tokens = [case.greedy(&model, extent), case.drafted(&model)];
    match (logits, tokens) {
        (Ok(worst), [Ok(()), Ok(())]) => {
            let (prompts, limit) = (case.prompts.len(), case.tolerance);
            Ok(format!("{prompts} prompts, relative error up to {worst:.1e} of {limit:.0e}"))
        }
        (logits, [tokens, drafted]) => {
            let wrong = [logits.err(), tokens.err(), drafted.err()];
            Err(wrong.into_iter().flatten().collect::<Vec<_>>().join("; "))
        }
    }
}

fn read(path: &Path, device: &Arc<dyn Device>, extent: Extent) -> Result<(Case, DeviceModel), String> {
    let name = name_of(path);
    let wrong = |error: ModelError| format!("{name}: {error}");
    let model = load(path, None).map_err(wrong)?;
    let (tolerance, margin) = limits(model.dtype);
    let (prompts, safe_margin) = read_prompts(path, ["golden.json", "golden.safetensors"], margin, extent)?;
    let on_device = model.to_device(device).map_err(wrong)?;
    Ok((Case { name, prompts, tolerance, safe_margin }, on_device))
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Loads a golden checkpoint for a device, in this type or in its own.
pub(super) fn load(path: &Path, dtype: Option<DType>) -> Result<Model, ModelError> {
    let options = LoadOptions { dtype, for_gpu: true, ..LoadOptions::default() };
    Model::load_with(&Source::Directory(path.to_owned()), &options, &mut |_| ControlFlow::Continue(()))
}

/// The tolerance of a type's relative errors, and the name of its safe margin.
pub(super) fn limits(dtype: DType) -> (f64, &'static str) {
    match dtype {
        DType::F32 => (1e-4, "float32_compute"),
        DType::Bf16 => (2e-2, "bfloat16_compute"),
        // The emulator reaches 5.1e-3 by rounding to f16 between steps.
        DType::F16 => (1e-2, "bfloat16_compute"),
    }
}

/// Prompts of the two golden files of a folder, and the safe margin of this name.
pub(super) fn read_prompts(
    path: &Path,
    [json, arrays]: [&str; 2],
    margin: &str,
    extent: Extent,
) -> Result<(Vec<Prompt>, f64), String> {
    let wrong = |error: String| format!("{}: {error}", name_of(path));
    let file = |file: &str| std::fs::read(path.join(file)).map_err(|error| wrong(format!("{file}: {error}")));
    let golden: Value = serde_json::from_slice(&file(json)?).map_err(|e| wrong(e.to_string()))?;
    let arrays = candle_core::safetensors::load_buffer(&file(arrays)?, &candle_core::Device::Cpu)
        .map_err(|error| wrong(error.to_string()))?;
    let safe_margin =
        golden["safe_margin"][margin].as_f64().ok_or_else(|| wrong("no safe margin".to_owned()))?;
    let prompts = golden["prompts"].as_array().ok_or_else(|| wrong("no prompts".to_owned()))?;
    let mut prompts: Vec<Prompt> = prompts.iter().filter_map(|prompt| read_prompt(prompt, &arrays)).collect();
    if let Extent::UpTo(most) = extent {
        prompts.retain(|prompt| prompt.ids.len() <= most);
        prompts.sort_by_key(|prompt| prompt.ids.len());
        prompts.drain(..prompts.len().saturating_sub(FEW));
    }
    Ok((prompts, safe_margin))
}

fn read_prompt(prompt: &Value, arrays: &HashMap<String, Tensor>) -> Option<Prompt> {
    let name = prompt["name"].as_str()?.to_owned();
    let rows: Vec<Vec<f32>> = arrays.get(&format!("{name}.logits"))?.to_vec2().ok()?;
    let positions = numbers(&prompt["positions"])?.into_iter().map(|at| at as usize);
    let stored = rows.into_iter().zip(numbers(&prompt["margins"])?);
    // Those of adapters have none.
    let greedy = match prompt.get("greedy") {
        Some(greedy) => ids(&greedy["ids"])?.into_iter().zip(numbers(&greedy["margins"])?).collect(),
        None => Vec::new(),
    };
    Some(Prompt {
        ids: ids(&prompt["ids"])?,
        logits: positions.zip(stored).collect(),
        greedy,
        name,
        adapter: AdapterId::NONE,
    })
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    Some(numbers(value)?.into_iter().map(|id| id as u32).collect())
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

impl Case {
    /// Each round computes one chunk of every unfinished prompt; chunks end where logits are stored. Returns the largest
    /// relative error.
    pub(super) fn prompts_in_chunks(&self, model: &DeviceModel) -> Result<f64, String> {
        let mut worst = 0.0_f64;
        for (size, block_size) in [(7, 16), (400, 5)] {
            let mut walk = Walk::new(model, block_size, MAX_SEQ_LEN, Mode::LAUNCHED)?;
            for (sequence, prompt) in (0..).zip(&self.prompts) {
                walk.inner.adapt(sequence, prompt.adapter);
            }
            let mut done = vec![0; self.prompts.len()];
            loop {
                let (mut chunks, mut ends) = (Vec::new(), Vec::new());
                for (i, prompt) in self.prompts.iter().enumerate() {
                    let start = done[i];
                    let Some((stored, _)) = prompt.logits.range(start..).next() else { continue };
                    done[i] = (start + size).min(stored + 1);
                    chunks.push(Chunk { sequence: i as u64, start, tokens: &prompt.ids[start..done[i]] });
                    ends.push((prompt, done[i] - 1));
                }
                if chunks.is_empty() {
                    break;
                }
                walk.run(&chunks, Draws::KEPT).map_err(|wrong| format!("{}: {wrong}", self.name))?;
                for (row, (prompt, position)) in ends.into_iter().enumerate() {
                    let Some((wanted, margin)) = prompt.logits.get(&position) else { continue };
                    let what = format!("{} {} position {position}, chunks of {size}", self.name, prompt.name);
                    worst = worst.max(self.compare(&walk.kept(row)?, wanted, *margin, &what)?);
                }
            }
        }
        Ok(worst)
    }

    /// Prompts join one after another, so that prefills and decodes share batches; the last steps have only decodes.
    fn greedy(&self, model: &DeviceModel, extent: Extent) -> Result<(), String> {
        let mut walk = Walk::new(model, 16, MAX_SEQ_LEN, Mode::RECORDED)?;
        let most = match extent {
            Extent::UpTo(_) => FEW_STEPS,
            Extent::All => usize::MAX,
        };
        let steps = |prompt: &Prompt| {
            prompt.greedy.len().min(most).min((MAX_SEQ_LEN as usize).saturating_sub(prompt.ids.len() + 1))
        };
        let mut drawn = vec![0; self.prompts.len()];
        let mut round = 0;
        loop {
            round += 1;
            let alive: Vec<usize> =
                (0..self.prompts.len().min(round)).filter(|i| drawn[*i] < steps(&self.prompts[*i])).collect();
            if alive.is_empty() && round > self.prompts.len() {
                return Ok(());
            }
            let inputs: Vec<(usize, Vec<u32>)> = alive
                .iter()
                .map(|i| match drawn[*i] {
                    0 => (0, self.prompts[*i].ids.clone()),
                    step => {
                        (self.prompts[*i].ids.len() + step - 1, vec![self.prompts[*i].greedy[step - 1].0])
                    }
                })
                .collect();
            let chunks: Vec<Chunk<'_>> = (alive.iter().zip(&inputs))
                .map(|(i, (start, tokens))| Chunk { sequence: *i as u64, start: *start, tokens })
                .collect();
            let tokens =
                walk.run(&chunks, Draws::GREEDY).map_err(|wrong| format!("{}: {wrong}", self.name))?;
            for (i, token) in alive.into_iter().zip(tokens) {
                self.is_greedy(&self.prompts[i], drawn[i], token)?;
                drawn[i] += 1;
            }
        }
    }

    /// All prompts are computed but for their last tokens, which are then computed with draft tokens behind them, all of them
    /// right.
    fn drafted(&self, model: &DeviceModel) -> Result<(), String> {
        let wrong = |wrong| format!("{}: {wrong}", self.name);
        let mut walk = Walk::new(model, 16, MAX_SEQ_LEN, Mode::LAUNCHED)?;
        for (sequence, prompt) in (0..).zip(&self.prompts).filter(|(_, prompt)| prompt.ids.len() > 1) {
            let tokens = &prompt.ids[..prompt.ids.len() - 1];
            walk.inner.run(&[Chunk { sequence, start: 0, tokens }], Draws::NONE).map_err(wrong)?;
        }
        let room = |prompt: &Prompt| prompt.greedy.len().min(MAX_SEQ_LEN as usize - prompt.ids.len());
        let guesses = self.prompts.iter().map(room).min().unwrap_or(0).min(7);
        let inputs: Vec<Vec<u32>> = (self.prompts.iter())
            .map(|prompt| {
                let drafts = prompt.greedy[..guesses].iter().map(|(token, _)| *token);
                prompt.ids.last().copied().into_iter().chain(drafts).collect()
            })
            .collect();
        let chunks: Vec<Chunk<'_>> = ((0..).zip(self.prompts.iter().zip(&inputs)))
            .map(|(sequence, (prompt, tokens))| Chunk { sequence, start: prompt.ids.len() - 1, tokens })
            .collect();
        let draws = Draws { guesses: guesses as u32, ..Draws::GREEDY };
        for (prompts, chunks) in self.prompts.chunks(4).zip(chunks.chunks(4)) {
            for (prompt, drawn) in prompts.iter().zip(walk.draft(chunks, draws).map_err(wrong)?) {
                for (step, token) in drawn.into_iter().enumerate().take(prompt.greedy.len()) {
                    self.is_greedy(prompt, step, token)?;
                }
            }
        }
        Ok(())
    }

    fn is_greedy(&self, prompt: &Prompt, step: usize, token: u32) -> Result<(), String> {
        let (wanted, margin) = prompt.greedy[step];
        if token != wanted && margin > self.safe_margin {
            return Err(format!("{} {} step {step}: {token} instead of {wanted}", self.name, prompt.name));
        }
        Ok(())
    }

    fn compare(&self, logits: &[f32], wanted: &[f32], margin: f64, what: &str) -> Result<f64, String> {
        let square = |x: f32| f64::from(x).powi(2);
        let error: f64 = logits.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
        let error = (error / wanted.iter().map(|x| square(*x)).sum::<f64>()).sqrt();
        if error.is_nan() || error >= self.tolerance {
            return Err(format!("{what}: relative error {error:.2e}"));
        }
        if margin > self.safe_margin && largest(logits) != largest(wanted) {
            return Err(format!("{what}: another token is likeliest"));
        }
        Ok(error)
    }
}

fn largest(logits: &[f32]) -> Option<usize> {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map(|(token, _)| token)
}
