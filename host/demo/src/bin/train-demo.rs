//! `train-demo`: trains the demo model from the corpus and writes its checkpoint.
//!
//! Takes an optional output folder, `--seed N`, the steps of the three stages (`--writing-steps N`,
//! `--answering-steps N`, `--polishing-steps N`), and `--from FOLDER`, which skips the first stage and continues from its
//! checkpoint in that folder.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use infer_demo::train::{Corpus, Plan, train, train_from, write_checkpoint};

const SAMPLES: &[&str] = &[
    "What is a prefix cache?",
    "what is continuous batching",
    "Help me understand the KV cache.",
    "In one sentence, what is backpressure?",
    "Could you introduce paged attention?",
    "Who are you?",
    "What is the capital of France?",
];

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut plan = Plan::default();
    let mut folder = here.join("checkpoint");
    let mut from = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64> {
            let value = arguments.next().with_context(|| format!("{argument} needs a number"))?;
            value.parse().with_context(|| format!("{argument} needs a number, not {value:?}"))
        };
        match argument.as_str() {
            "--seed" => plan.seed = number()?,
            "--writing-steps" => plan.writing_steps = usize::try_from(number()?)?,
            "--answering-steps" => plan.answering_steps = usize::try_from(number()?)?,
            "--polishing-steps" => plan.polishing_steps = usize::try_from(number()?)?,
            "--from" => from = Some(PathBuf::from(arguments.next().context("--from needs a folder")?)),
            flag if flag.starts_with('-') => {
                bail!(
                    "unknown flag {flag}; use --seed, --writing-steps, --answering-steps, --polishing-steps or --from"
                )
            }
            path => folder = PathBuf::from(path),
        }
    }
    let corpus = Corpus::read(&here.join("corpus"))?;
    println!("{} topics, {plan:?}", corpus.entries.len());
    let started = Instant::now();
    let mut smooth = None;
    let progress = |step: usize, loss: f32| {
        let average = smooth.map_or(loss, |average: f32| average * 0.95 + loss * 0.05);
        smooth = Some(average);
        if step % 25 == 24 {
            println!("step {:5}  loss {average:.4}  {:.0} s", step + 1, started.elapsed().as_secs_f32());
        }
    };
    let trained = match from {
        Some(folder) => train_from(&folder.join("model.safetensors"), &corpus, &plan, progress)?,
        None => train(&corpus, &plan, progress)?,
    };
    write_checkpoint(&folder, &trained.network, &trained.vocabulary)?;
    println!("wrote {} after {:.0} s", folder.display(), started.elapsed().as_secs_f32());
    for question in SAMPLES {
        let (answer, ended) = trained.answer(question, 128)?;
        println!("> {question}\n{}{}", answer.trim_start(), if ended { "" } else { " ..." });
    }
    Ok(())
}
