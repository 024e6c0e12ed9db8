//! A second decoder, from the definitions: scalars in f64, the whole prompt at every layer, no cache. It reads the shape that
//! a checkpoint was made from, never its files.

use crate::shape::{Experts, POSITIONS, Scaling, Shape};
use crate::tensors::Tensors;

/// Logits of every position, `[position][vocab]`.
pub fn logits(shape: &Shape, tensors: &Tensors, tokens: &[u32]) -> Vec<Vec<f64>> {
    let scalar = Scalar { shape, tensors };
    let [embedding_scale, _, divisor] = shape.multipliers;
    let scale = if shape.gemma() { (shape.hidden as f64).sqrt() } else { embedding_scale };
    let embedding = scalar.matrix("model.embed_tokens.weight");
    let row = |token: &u32| embedding[*token as usize].iter().map(|x| x * scale).collect();
    let mut states: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    for layer in 0..shape.slides.len() {
        scalar.layer(layer, &mut states);
    }
    let head = if shape.tied { embedding } else { scalar.matrix("lm_head.weight") };
    let logits = |state: &Vec<f64>| {
        let normed = scalar.norm("model.norm.weight", state);
        head.iter().map(|row| cap(dot(row, &normed) / divisor, shape.logit_cap)).collect()
    };
    states.iter().map(logits).collect()
}

struct Scalar<'a> {
    shape: &'a Shape,
    tensors: &'a Tensors,
}

impl Scalar<'_> {
    fn vector(&self, name: &str) -> Vec<f64> {
        self.tensors[name].1.iter().map(|x| f64::from(*x)).collect()
    }

    fn matrix(&self, name: &str) -> Vec<Vec<f64>> {
        let width = self.tensors[name].0[1];
        self.vector(name).chunks(width).map(<[f64]>::to_vec).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let offset = if self.shape.gemma() { 1.0 } else { 0.0 };
        let weights = self.vector(name);
        x.iter().zip(weights).map(|(x, w)| x / (mean + 1e-5).sqrt() * (w + offset)).collect()
    }

    /// A projection of every row.
    fn project(&self, name: &str, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let weight = self.matrix(&format!("{name}.weight"));
        let bias = format!("{name}.bias");
        let bias = match self.tensors.contains_key(&bias) {
            true => self.vector(&bias),
            false => vec![0.0; weight.len()],
        };
        let row = |x: &Vec<f64>| weight.iter().zip(&bias).map(|(w, b)| dot(w, x) + b).collect();
        rows.iter().map(row).collect()
    }

    fn layer(&self, layer: usize, states: &mut [Vec<f64>]) {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let norm = |part: &str, rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            rows.iter().map(|row| self.norm(&name(&format!("{part}.weight")), row)).collect()
        };
        let gemma = self.shape.gemma();
        let behind = self.shape.norms_behind();
        let before =
            |part: &str, states: &[Vec<f64>]| if behind { states.to_vec() } else { norm(part, states) };
        let mut back = self.attention(layer, &before("input_layernorm", states));
        if gemma || behind {
            back = norm("post_attention_layernorm", &back);
        }
        add(states, self.shape.multipliers[1], &back);
        let place = if gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let inputs = before(place, states);
        let mut back = match self.shape.experts(layer) {
            None => self.gated(&name("mlp"), &inputs),
            Some(experts) => self.experts(&name("mlp"), experts, &inputs),
        };
        if gemma || behind {
            back = norm("post_feedforward_layernorm", &back);
        }
        add(states, self.shape.multipliers[1], &back);
    }

    fn gated(&self, place: &str, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let project = |part: &str| self.project(&format!("{place}.{part}_proj"), inputs);
        let (gate, up) = (project("gate"), project("up"));
        let gelu = self.shape.gemma();
        let gated: Vec<Vec<f64>> = gate
            .iter()
            .zip(&up)
            .map(|(gate, up)| gate.iter().zip(up).map(|(g, u)| activation(*g, gelu) * u).collect())
            .collect();
        self.project(&format!("{place}.down_proj"), &gated)
    }

    fn experts(&self, place: &str, experts: &Experts, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let each: Vec<Vec<Vec<f64>>> = (0..experts.count)
            .map(|expert| self.gated(&format!("{place}.experts.{expert}"), inputs))
            .collect();
        let logits = self.project(&format!("{place}.gate"), inputs);
        let row = |(row, logits): (usize, &Vec<f64>)| {
            let mut chosen: Vec<usize> = (0..experts.count).collect();
            chosen.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            chosen.truncate(experts.per_token);
            let total: f64 = match experts.normalized {
                true => chosen.iter().map(|expert| logits[*expert].exp()).sum(),
                false => logits.iter().map(|logit| logit.exp()).sum(),
            };
            let mut sum = vec![0.0; self.shape.hidden];
            for expert in chosen {
                let weight = logits[expert].exp() / total;
                sum.iter_mut().zip(&each[expert][row]).for_each(|(sum, x)| *sum += weight * x);
            }
            sum
        };
        logits.iter().enumerate().map(row).collect()
    }

    fn attention(&self, layer: usize, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let shape = self.shape;
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let turned = |part: &str, norm: &str| -> Vec<Vec<Vec<f64>>> {
            let mut rows = self.project(&name(part), inputs);
            if shape.qk_norm_whole() {
                rows.iter_mut().for_each(|row| *row = self.norm(&name(norm), row));
            }
            let rows = rows.into_iter().enumerate();
            let head = |position: usize, head: &[f64]| {
                let head = match shape.qk_norm() {
                    true => self.norm(&name(norm), head),
                    false => head.to_vec(),
                };
                self.rope(layer, position, &head)
            };
            rows.map(|(at, row)| row.chunks(shape.head_dim).map(|h| head(at, h)).collect()).collect()
        };
        let (q, k) = (turned("q_proj", "q_norm.weight"), turned("k_proj", "k_norm.weight"));
        let v = self.project(&name("v_proj"), inputs);
        let attended: Vec<Vec<f64>> = (0..inputs.len())
            .map(|at| {
                let first = match shape.slides[layer] {
                    true => (at + 1).saturating_sub(shape.window as usize),
                    false => 0,
                };
                let head = |head: usize| {
                    let group = head / (shape.heads / shape.kv_heads);
                    let score = |from: usize| {
                        let score = dot(&q[at][head], &k[from][group]) / shape.query_scalar.sqrt();
                        cap(score, shape.attention_cap).exp()
                    };
                    let weights: Vec<f64> = (first..=at).map(score).collect();
                    let total: f64 = weights.iter().sum();
                    (0..shape.head_dim)
                        .map(|d| {
                            let value = |from: usize| v[from][group * shape.head_dim + d];
                            (first..=at).zip(&weights).map(|(from, w)| w / total * value(from)).sum()
                        })
                        .collect::<Vec<f64>>()
                };
                (0..shape.heads).flat_map(head).collect()
            })
            .collect();
        self.project(&name("o_proj"), &attended)
    }

    fn rope(&self, layer: usize, position: usize, head: &[f64]) -> Vec<f64> {
        if !self.shape.rotated[layer] {
            return head.to_vec();
        }
        let (head, rest) = head.split_at(self.shape.turned);
        let (half, width) = (head.len() / 2, head.len() as f64);
        let local = self.shape.has_local() && self.shape.slides[layer];
        let (theta, scaling) = match local {
            true => (self.shape.local_theta, Scaling::None),
            false => (self.shape.theta, self.shape.scaling),
        };
        let turn = |pair: usize| {
            let plain = theta.powf(-2.0 * pair as f64 / width);
            let angle = position as f64 * frequency(scaling, plain, pair, width, theta);
            (angle.cos() * amplitude(scaling), angle.sin() * amplitude(scaling))
        };
        let at = |d: usize| {
            let (cos, sin) = turn(d % half);
            if d < half { head[d] * cos - head[d + half] * sin } else { head[d] * cos + head[d - half] * sin }
        };
        (0..head.len()).map(at).chain(rest.iter().copied()).collect()
    }
}

fn frequency(scaling: Scaling, plain: f64, pair: usize, width: f64, theta: f64) -> f64 {
    let turns_within = |original: f64| original * plain / std::f64::consts::TAU;
    match scaling {
        Scaling::None | Scaling::Dynamic { .. } => plain,
        Scaling::Linear { factor } => plain / factor,
        Scaling::Long { short, long, original, .. } => {
            let by = if POSITIONS > original { long } else { short };
            plain / (1.0 + by * pair as f64)
        }
        Scaling::Llama3 { factor, low, high, original } => {
            let kept = ((turns_within(original) - low) / (high - low)).clamp(0.0, 1.0);
            plain * (kept + (1.0 - kept) / factor)
        }
        Scaling::Yarn { factor, original, .. } => {
            // Pairs with 32 turns and with one turn within the training, as fractions of all pairs.
            let pair_of =
                |turns: f64| width / 2.0 * (original / (turns * std::f64::consts::TAU)).ln() / theta.ln();
            let (low, high) = (pair_of(32.0).floor().max(0.0), pair_of(1.0).ceil().min(width - 1.0));
            let ramp = (pair as f64 - low) / if high == low { 0.001 } else { high - low };
            let stretched = ramp.clamp(0.0, 1.0);
            plain * (1.0 - stretched) + plain / factor * stretched
        }
    }
}

/// The factor of queries and keys.
fn amplitude(scaling: Scaling) -> f64 {
    match scaling {
        Scaling::Yarn { attention: Some(attention), .. } => attention,
        Scaling::Yarn { factor, .. } => 0.1 * factor.ln() + 1.0,
        Scaling::Long { attention: Some(attention), .. } => attention,
        Scaling::Long { original, .. } => {
            let (all, original) = (POSITIONS as f64, original as f64);
            (1.0 + (all / original).ln() / original.ln()).sqrt()
        }
        _ => 1.0,
    }
}

fn activation(x: f64, gelu: bool) -> f64 {
    match gelu {
        true => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()),
        false => x / (1.0 + (-x).exp()),
    }
}

fn cap(x: f64, cap: Option<f64>) -> f64 {
    cap.map_or(x, |cap| cap * (x / cap).tanh())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(rows: &mut [Vec<f64>], scale: f64, others: &[Vec<f64>]) {
    rows.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(a, b)| *a += scale * b);
}
