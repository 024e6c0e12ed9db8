//! The tests' oracle: the simplest definition of each operation, with sums in f64. Slow on purpose.

use crate::attention_params::AttentionParams;
use crate::cpu::activation::Activation;

/// `out[i][j] = sum over k of x[i][k] * w[j][k]`, both row-major.
pub fn matmul(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let rows = x.chunks_exact(k);
    rows.flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w) as f32)).collect()
}

/// `x / sqrt(mean(x^2) + epsilon) * weight`, one row.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32).collect()
}

/// Rotary embedding of one head at a position, half-split layout.
pub fn rope(head: &[f32], inverse_frequencies: &[f32], position: u32) -> Vec<f32> {
    let half = inverse_frequencies.len();
    let turned = |i: usize| {
        let angle = f64::from(position as f32 * inverse_frequencies[i % half]);
        let (x, y) = (f64::from(head[i % half]), f64::from(head[i % half + half]));
        if i < half { x * angle.cos() - y * angle.sin() } else { y * angle.cos() + x * angle.sin() }
    };
    (0..2 * half).map(|i| turned(i) as f32).collect()
}

/// `activation(gate) * up`, or what the activation says.
pub fn gated(activation: Activation, gate: f32, up: f32) -> f32 {
    let x = f64::from(gate);
    let activated = match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::ClampedSwish { alpha, limit } => {
            let (x, limit) = (x.min(f64::from(limit)), f64::from(limit));
            let up = f64::from(up).clamp(-limit, limit);
            return ((up + 1.0) * x / (1.0 + (-x * f64::from(alpha)).exp())) as f32;
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    };
    (activated * f64::from(up)) as f32
}

/// The experts of a row by its router's logits, in ascending order, with the weights of their outputs.
pub fn route(logits: &[f32], per_row: usize, normalized: bool) -> Vec<(usize, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let power = |expert: &usize| (f64::from(logits[*expert]) - f64::from(largest)).exp();
    let mut experts: Vec<usize> = (0..logits.len()).collect();
    let all: f64 = experts.iter().map(power).sum();
    // Equal ones stay in order.
    experts.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("numbers"));
    experts.truncate(per_row);
    experts.sort_unstable();
    let total: f64 = if normalized { experts.iter().map(power).sum() } else { all };
    experts.into_iter().map(|expert| (expert, (power(&expert) / total) as f32)).collect()
}

/// One query head at `position` over keys and values `[position][dimension]` of its key head, with the head's sink.
pub fn attention(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    position: u32,
    params: &AttentionParams<'_>,
    sink: Option<f32>,
) -> Vec<f32> {
    let width = q.len();
    let seen = params.first_position(position) as usize..position as usize + 1;
    let scores: Vec<f64> = seen
        .clone()
        .map(|p| {
            let key = &keys[p * width..(p + 1) * width];
            let product: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = product * f64::from(params.scale);
            params.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    let sink = sink.map(f64::from);
    let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    (0..width)
        .map(|d| {
            let sum: f64 =
                seen.clone().zip(&weights).map(|(p, w)| w * f64::from(values[p * width + d])).sum();
            (sum / total) as f32
        })
        .collect()
}
