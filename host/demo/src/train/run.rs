//! The training loop: AdamW, a warm-up, a cosine decay, clipped gradients.

use std::path::Path;

use anyhow::Result;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer as _, ParamsAdamW};

use super::tokenizer::{BEGIN, END, Vocabulary};
use super::{Batch, Corpus, Examples, Lesson, Network, Random, Shape};

/// Parameters of a training run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of the initial weights and the examples.
    pub seed: u64,
    /// Optimizer steps of the first stage.
    pub writing_steps: usize,
    /// Optimizer steps of the second stage.
    pub answering_steps: usize,
    /// Optimizer steps of the third stage.
    pub polishing_steps: usize,
    /// Tokens per batch, independent of the length of its rows.
    pub batch_tokens: usize,
    /// Learning rate of the first stage after its warm-up.
    pub writing_rate: f64,
    /// Learning rate of the second stage after its warm-up.
    pub answering_rate: f64,
    /// Learning rate of the third stage after its warm-up.
    pub polishing_rate: f64,
    /// Dimensions; the vocabulary's size is an upper bound here.
    pub shape: Shape,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 7,
            writing_steps: 600,
            answering_steps: 1_200,
            polishing_steps: 400,
            batch_tokens: 1_024,
            writing_rate: 2.5e-3,
            answering_rate: 1.5e-3,
            polishing_rate: 1.2e-3,
            shape: Shape {
                vocabulary: 1_792,
                hidden: 192,
                layers: 5,
                heads: 6,
                kv_heads: 2,
                head: 32,
                intermediate: 512,
                context: 4_096,
            },
        }
    }
}

/// A finished run.
pub struct Trained {
    /// Weights, rounded to what the checkpoint stores.
    pub network: Network,
    /// The tokenizer.
    pub vocabulary: Vocabulary,
    /// Loss of each step.
    pub losses: Vec<f32>,
}

/// Row lengths of the first stage, chosen uniformly: mostly short, which is cheap, some long, so that answers far
/// into a context stay good.
const WRITING_LENGTHS: [usize; 6] = [128, 128, 128, 256, 256, 512];
/// Rows of the second stage hold a question and the start of its answer, every fourth time more.
const ANSWERING_LENGTH: usize = 40;
const CONVERSING_LENGTH: usize = 256;
/// The third stage repeats whole answers.
const POLISHING_LENGTH: usize = 128;

const WARM_UP_STEPS: usize = 40;
const LARGEST_GRADIENT: f64 = 1.0;

/// Trains from scratch and calls `progress(step, loss)` after each step.
///
/// There are three stages: the model learns the text, then which answer belongs to which question, then both
/// together. Each stage starts with weights rounded as in a checkpoint and with its own random generator, so that the
/// later stages can also run alone (`train_from`).
///
/// # Errors
/// What candle or the tokenizer library reports.
pub fn train(corpus: &Corpus, plan: &Plan, mut progress: impl FnMut(usize, f32)) -> Result<Trained> {
    let vocabulary = Vocabulary::train(corpus, plan.shape.vocabulary)?;
    let shape = Shape { vocabulary: vocabulary.size(), ..plan.shape };
    let mut random = Random::new(plan.seed);
    let network = Network::new(shape, &mut random)?;
    let mut trained = Trained { network, vocabulary, losses: Vec::new() };
    trained.write(corpus, plan, &mut random, &mut progress)?;
    trained.answer_questions(corpus, plan, &mut progress)?;
    Ok(trained)
}

/// Runs the stages after the first, from the `model.safetensors` that it wrote.
///
/// # Errors
/// A file that doesn't fit the plan; what candle or the tokenizer library reports.
pub fn train_from(
    weights: &Path,
    corpus: &Corpus,
    plan: &Plan,
    mut progress: impl FnMut(usize, f32),
) -> Result<Trained> {
    let vocabulary = Vocabulary::train(corpus, plan.shape.vocabulary)?;
    let shape = Shape { vocabulary: vocabulary.size(), ..plan.shape };
    let network = Network::new(shape, &mut Random::new(plan.seed))?;
    network.load(weights)?;
    let mut trained = Trained { network, vocabulary, losses: Vec::new() };
    trained.answer_questions(corpus, plan, &mut progress)?;
    Ok(trained)
}

impl Trained {
    /// The first stage: whole answers in rows of several lengths.
    fn write(
        &mut self,
        corpus: &Corpus,
        plan: &Plan,
        random: &mut Random,
        progress: &mut impl FnMut(usize, f32),
    ) -> Result<()> {
        let stage = Stage { seed: plan.seed + 1, steps: plan.writing_steps, rate: plan.writing_rate };
        let lesson = |_| (Lesson::Writing, WRITING_LENGTHS[random.below(WRITING_LENGTHS.len())]);
        self.learn(corpus, plan.batch_tokens, &stage, lesson, progress)
    }

    /// The second and third stage: which answer belongs to which question, then whole answers again.
    fn answer_questions(
        &mut self,
        corpus: &Corpus,
        plan: &Plan,
        progress: &mut impl FnMut(usize, f32),
    ) -> Result<()> {
        let stage = Stage { seed: plan.seed + 2, steps: plan.answering_steps, rate: plan.answering_rate };
        let lesson = |step| match step % 4 {
            3 => (Lesson::Conversing, CONVERSING_LENGTH),
            _ => (Lesson::Answering, ANSWERING_LENGTH),
        };
        self.learn(corpus, plan.batch_tokens, &stage, lesson, progress)?;
        let stage = Stage { seed: plan.seed + 3, steps: plan.polishing_steps, rate: plan.polishing_rate };
        let lesson =
            |step| (Lesson::Polishing, if step % 4 == 3 { CONVERSING_LENGTH } else { POLISHING_LENGTH });
        self.learn(corpus, plan.batch_tokens, &stage, lesson, progress)
    }

    /// Runs one stage with its own optimizer; rounds the weights at its end as a checkpoint does.
    fn learn(
        &mut self,
        corpus: &Corpus,
        batch_tokens: usize,
        stage: &Stage,
        mut lesson: impl FnMut(usize) -> (Lesson, usize),
        progress: &mut impl FnMut(usize, f32),
    ) -> Result<()> {
        let mut examples = Examples::new(corpus, &self.vocabulary, stage.seed);
        let mut optimizer = optimizer(&self.network)?;
        for step in 0..stage.steps {
            let (lesson, length) = lesson(step);
            let length = length.min(batch_tokens);
            let batch = examples.batch(lesson, batch_tokens / length, length)?;
            let rate = rate(stage.rate, step, stage.steps);
            let loss = learn(&self.network, &mut optimizer, &batch, rate)?;
            progress(self.losses.len(), loss);
            self.losses.push(loss);
        }
        self.network.round_to_bf16()
    }

    /// The greedy answer to a bare question, at most `limit` tokens, and whether it ended within them.
    ///
    /// # Errors
    /// What candle or the tokenizer library reports.
    pub fn answer(&self, question: &str, limit: usize) -> Result<(String, bool)> {
        let mut tokens = vec![BEGIN];
        tokens.extend(self.vocabulary.encode(question)?);
        let prompt = tokens.len();
        while tokens.len() < prompt + limit {
            let logits = self.network.logits(&tokens, 1)?;
            let next = logits.get(tokens.len() - 1)?.argmax(0)?.to_scalar::<u32>()?;
            if next == END {
                return Ok((self.vocabulary.decode(&tokens[prompt..])?, true));
            }
            tokens.push(next);
        }
        Ok((self.vocabulary.decode(&tokens[prompt..])?, false))
    }
}

struct Stage {
    seed: u64,
    steps: usize,
    rate: f64,
}

fn optimizer(network: &Network) -> Result<AdamW> {
    let weights = network.weights().values().cloned().collect();
    let settings = ParamsAdamW { lr: 0.0, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.05 };
    Ok(AdamW::new(weights, settings)?)
}

/// Runs one optimizer step; returns the loss before it.
fn learn(network: &Network, optimizer: &mut AdamW, batch: &Batch, rate: f64) -> Result<f32> {
    let loss = network.loss(batch)?;
    let mut gradients = loss.backward()?;
    clip(network, &mut gradients)?;
    optimizer.set_learning_rate(rate);
    optimizer.step(&gradients)?;
    Ok(loss.to_scalar()?)
}

/// A linear warm-up times a cosine decay.
fn rate(peak: f64, step: usize, steps: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "step counts are small")]
    let part = |step: usize, of: usize| step as f64 / of as f64;
    let warm = part(step + 1, WARM_UP_STEPS).min(1.0);
    let decay = 0.5 * (1.0 + (std::f64::consts::PI * part(step, steps)).cos());
    peak * warm * decay.max(0.01)
}

/// Scales all gradients so that their common norm is at most `LARGEST_GRADIENT`.
fn clip(network: &Network, gradients: &mut GradStore) -> Result<()> {
    let mut squares = Tensor::zeros((), DType::F32, &Device::Cpu)?;
    for weight in network.weights().values() {
        if let Some(gradient) = gradients.get(weight) {
            squares = (squares + gradient.sqr()?.sum_all()?)?;
        }
    }
    let norm = f64::from(squares.to_scalar::<f32>()?).sqrt();
    if norm <= LARGEST_GRADIENT {
        return Ok(());
    }
    for weight in network.weights().values() {
        if let Some(gradient) = gradients.remove(weight) {
            gradients.insert(weight, (gradient * (LARGEST_GRADIENT / norm))?);
        }
    }
    Ok(())
}
