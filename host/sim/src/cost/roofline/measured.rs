//! The steps that were measured on an H200 with this host's kernels (`kernels/cuda/README.md`, 27 November 2026), and
//! what the profile `h200` predicts for them. The tables that this makes are those of `FIDELITY.md`.

use super::*;

const BATCHES: [u32; 6] = [1, 8, 16, 32, 128, 256];
const PROMPTS: [u32; 4] = [512, 2_048, 8_192, 16_384];
/// `infer bench engine` computes prompts in chunks of this many tokens.
const CHUNK: u32 = 2_048;
/// Where nothing was measured: no room in the pool, another context, windows of attention.
const NONE: f64 = 0.0;

/// A model that was measured.
struct Measured {
    title: &'static str,
    shape: ModelShape,
    /// Milliseconds of a decode step, by context and by [`BATCHES`].
    decodes: &'static [(u32, [f64; 6])],
    /// 10^12 operations per second of prompts, by [`PROMPTS`].
    prefills: [f64; 4],
    /// Percent of the measured times by which no prediction is off.
    error: f64,
}

/// The profile is fitted to the first two, and judged on the others.
fn measured() -> [Measured; 4] {
    let named = |name| ModelShape::named(name).unwrap();
    let qwen = ModelShape {
        name: "qwen3-1.7b".to_owned(),
        weights: 1.7204e9,
        output_weights: 311.2e6,
        layers: 28,
        heads: 16,
        head_dim: 128,
        ..named("1b")
    };
    let gemma = ModelShape {
        name: "gemma3-1b".to_owned(),
        weights: 999.8e6,
        output_weights: 302e6,
        layers: 26,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        ..named("1b")
    };
    [
        Measured {
            title: "1B",
            shape: named("1b"),
            decodes: &[
                (256, [0.83, 0.91, 1.17, 1.23, 1.78, 2.45]),
                (1_024, [NONE, NONE, NONE, 1.53, NONE, NONE]),
                (4_096, [0.90, 1.26, 1.84, 2.51, 6.47, 12.0]),
                (16_384, [1.07, 2.24, 3.76, 6.36, 21.5, NONE]),
            ],
            prefills: [415.0, 548.0, 463.0, 409.0],
            error: 7.0,
        },
        Measured {
            title: "8B",
            shape: named("8b"),
            decodes: &[
                (256, [3.96, 4.47, 4.91, 5.18, 7.16, 11.0]),
                (1_024, [4.24, 4.64, 5.42, 6.25, 10.9, 18.1]),
                (4_096, [4.33, 5.58, 7.37, 10.0, 25.7, NONE]),
                (16_384, [4.78, 9.40, 15.0, 25.0, NONE, NONE]),
            ],
            // 2,048 tokens: from 569 to 674.
            prefills: [587.0, 621.0, 532.0, 482.0],
            error: 7.0,
        },
        Measured {
            title: "Qwen3 1.7B",
            shape: qwen,
            decodes: &[
                (256, [1.34, 1.45, 1.99, 2.12, 3.37, 4.94]),
                (1_024, [NONE, NONE, NONE, 3.08, NONE, NONE]),
                (4_096, [1.54, 2.57, 4.15, 6.39, 19.6, 37.5]),
                (16_384, [1.98, 5.92, 10.8, 19.4, NONE, NONE]),
            ],
            prefills: [387.0, 495.0, 407.0, 358.0],
            error: 9.0,
        },
        // Most of its layers attend to 512 tokens only, which a profile can't say.
        Measured {
            title: "Gemma 3 1B",
            shape: gemma,
            decodes: &[(256, [1.27, 1.32, 1.68, 1.70, 2.03, 2.60])],
            prefills: [209.0, NONE, NONE, NONE],
            error: 35.0,
        },
    ]
}

/// Milliseconds of a prompt.
fn prefill_ms(profile: &Roofline, tokens: u32) -> f64 {
    let chunk_us = |start: u32| {
        let end = tokens.min(start + CHUNK);
        let work = Work::chunk(f64::from(end - start), f64::from(end));
        profile.step_us(&Work { drawn: f64::from(u8::from(end == tokens)), ..work })
    };
    (0..tokens).step_by(CHUNK as usize).map(chunk_us).sum::<f64>() / 1e3
}

/// Operations of a prompt, as `infer bench engine` counts them.
fn operations(shape: &ModelShape, tokens: u32) -> f64 {
    let t = f64::from(tokens);
    let width = f64::from(shape.layers) * f64::from(shape.heads) * f64::from(shape.head_dim);
    2.0 * (shape.layer_weights() * t + shape.output_weights) + 2.0 * width * t * (t + 1.0)
}

/// Milliseconds that were predicted and measured, by row and column.
struct Table {
    head: &'static str,
    rows: Vec<(String, Vec<(f64, f64)>)>,
}

impl Table {
    fn markdown(&self) -> String {
        let columns = self.head.matches('|').count() - 1;
        let mut text = format!("{}\n|{}\n", self.head, "---|".repeat(columns));
        for (title, cells) in &self.rows {
            text += &format!("| {title} |");
            for &(predicted, measured) in cells {
                text += " ";
                if measured != NONE {
                    text += &format!("{} ({}) ", three_digits(predicted), percent(predicted, measured));
                }
                text += "|";
            }
            text += "\n";
        }
        text
    }
}

fn three_digits(ms: f64) -> String {
    let digits = [10.0, 100.0].iter().filter(|limit| ms < **limit).count();
    format!("{ms:.digits$}")
}

/// By how much a prediction is off; never -0.
fn percent(predicted: f64, measured: f64) -> String {
    format!("{:+.0} %", error(predicted, measured).round() + 0.0)
}

fn error(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted / measured - 1.0)
}

/// A number with separated thousands.
fn grouped(number: u32) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

/// The tables of decodes and of prompts of `models`.
fn tables(models: &[Measured]) -> [Table; 2] {
    let mut decodes =
        Table { head: "| a decode, ms | batch 1 | 8 | 16 | 32 | 128 | 256 |", rows: Vec::new() };
    let mut prompts =
        Table { head: "| a prompt, ms | 512 tokens | 2,048 | 8,192 | 16,384 |", rows: Vec::new() };
    for Measured { title, shape, decodes: measured, prefills, .. } in models {
        let profile = Roofline { hardware: Hardware::named("h200").unwrap(), model: shape.clone() };
        for (context, ms) in *measured {
            let cells = BATCHES.iter().zip(ms).map(|(&batch, &ms)| {
                let work = Work::decode(f64::from(batch), f64::from(*context));
                (profile.step_us(&work) / 1e3, ms)
            });
            decodes.rows.push((format!("{title}, context {}", grouped(*context)), cells.collect()));
        }
        let cells = PROMPTS.iter().zip(prefills).map(|(&tokens, &rate)| {
            let ms = if rate == NONE { NONE } else { operations(shape, tokens) / rate / 1e9 };
            (prefill_ms(&profile, tokens), ms)
        });
        prompts.rows.push(((*title).to_owned(), cells.collect()));
    }
    [decodes, prompts]
}

#[test]
fn h200_predicts_what_was_measured_on_one() {
    for model in measured() {
        let (title, most) = (model.title, model.error);
        for Table { rows, .. } in tables(&[model]) {
            for (row, cells) in rows {
                for (predicted, measured) in cells.into_iter().filter(|(_, measured)| *measured != NONE) {
                    let error = error(predicted, measured);
                    assert!(error.abs() < most, "{title}, {row}: {predicted} for {measured}, {error:+.1} %");
                }
            }
        }
    }
}

#[test]
fn fidelity_shows_these_predictions() {
    let page = include_str!("../../../FIDELITY.md");
    for table in tables(&measured()).map(|table| table.markdown()) {
        assert!(page.contains(&table), "FIDELITY.md lacks this table:\n{table}");
    }
}
