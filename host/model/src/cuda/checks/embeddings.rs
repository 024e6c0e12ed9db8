//! Vectors of the golden checkpoint that embeds, against what Hugging Face transformers computed.

use std::path::Path;
use std::sync::Arc;

use infer_kernels::cuda::Device;
use serde_json::Value;

use super::golden::Extent;
use super::walk::{Chunk, Draws, Mode, Walk};
use crate::{DType, Model, Source, vector};

/// Longest sequence of the golden data.
const MAX_SEQ_LEN: u32 = 400;

struct Prompt {
    ids: Vec<u32>,
    vector: Vec<f32>,
}

/// Checks the vectors of a golden checkpoint: prompts as a whole, together in a batch; and with their last tokens in a step of
/// its own, which would be recorded if its rows sampled.
///
/// # Errors
/// Names the prompt that differs, or the file that can't be read.
pub fn embeddings(device: &Arc<dyn Device>, checkpoint: &Path, extent: Extent) -> Result<String, String> {
    let prompts = read(checkpoint, extent)?;
    let source = Source::Directory(checkpoint.to_owned());
    let model = Model::load(&source, None).map_err(|error| error.to_string())?;
    let limit = if model.dtype == DType::F32 { 1e-4 } else { 2e-2 };
    let model = model.to_device(device).map_err(|error| error.to_string())?;
    let mut worst = 0.0_f64;
    let mut compare = |prompt: &Prompt, got: &[f32], how: &str| {
        let got = vector::finish(got.to_vec(), prompt.vector.len(), true);
        let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
        let error = got.iter().zip(&prompt.vector).map(square).sum::<f64>().sqrt();
        worst = worst.max(error);
        match error < limit && got.len() == prompt.vector.len() {
            true => Ok(()),
            false => Err(format!("the vector of {} tokens, {how}: off by {error:.1e}", prompt.ids.len())),
        }
    };

    let mut walk = Walk::new(&model, 16, MAX_SEQ_LEN, Mode::LAUNCHED)?;
    let whole: Vec<Chunk<'_>> = (0..)
        .zip(&prompts)
        .map(|(sequence, prompt)| Chunk { sequence, start: 0, tokens: &prompt.ids })
        .collect();
    for (prompt, vector) in prompts.iter().zip(embed(&mut walk, &whole)?) {
        compare(prompt, &vector, "whole")?;
    }

    let mut walk = Walk::new(&model, 16, MAX_SEQ_LEN, Mode::RECORDED)?;
    let ends: Vec<Chunk<'_>> = (0..)
        .zip(&prompts)
        .map(|(sequence, prompt)| {
            let start = prompt.ids.len() - 1;
            Chunk { sequence, start, tokens: &prompt.ids[start..] }
        })
        .collect();
    for (chunk, prompt) in ends.iter().zip(&prompts).filter(|(chunk, _)| chunk.start > 0) {
        let before = Chunk { start: 0, tokens: &prompt.ids[..chunk.start], sequence: chunk.sequence };
        walk.inner.run(&[before], Draws::NONE)?;
    }
    // Several times, as a decode is only recorded when it comes again.
    for round in 0..3 {
        for (prompt, vector) in prompts.iter().zip(embed(&mut walk, &ends)?) {
            compare(prompt, &vector, &format!("last token alone, round {round}"))?;
        }
    }
    if walk.inner.executor.graph_launches() > 0 {
        return Err("a step with vectors was recorded".to_owned());
    }
    Ok(format!("{} prompts, off by up to {worst:.1e} of {limit:.0e}", prompts.len()))
}

/// The vectors of these chunks' last tokens.
fn embed(walk: &mut Walk, chunks: &[Chunk<'_>]) -> Result<Vec<Vec<f32>>, String> {
    if walk.inner.run(chunks, Draws::EMBED)?.iter().any(Option::is_some) {
        return Err("a row that embeds sampled a token".to_owned());
    }
    let vectors = walk.inner.embeddings();
    match vectors.iter().map(|(row, _)| *row).eq(0..chunks.len()) {
        true => Ok(vectors.iter().map(|(_, vector)| vector.clone()).collect()),
        false => Err(format!("{} rows have {} vectors", chunks.len(), vectors.len())),
    }
}

fn read(checkpoint: &Path, extent: Extent) -> Result<Vec<Prompt>, String> {
    let path = checkpoint.join("embeddings.json");
    let wrong = |error: String| format!("{}: {error}", path.display());
    let bytes = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let all: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let numbers =
        |value: &Value| -> Option<Vec<f64>> { value.as_array()?.iter().map(Value::as_f64).collect() };
    let prompt = |prompt: &Value| {
        Some(Prompt {
            ids: numbers(&prompt["ids"])?.into_iter().map(|id| id as u32).collect(),
            vector: numbers(&prompt["vector"])?.into_iter().map(|number| number as f32).collect(),
        })
    };
    let prompts: Option<Vec<Prompt>> =
        all["prompts"].as_array().and_then(|all| all.iter().map(prompt).collect());
    let mut prompts = prompts.ok_or_else(|| wrong("no prompts".to_owned()))?;
    if let Extent::UpTo(most) = extent {
        prompts.retain(|prompt| prompt.ids.len() <= most);
    }
    Ok(prompts)
}
