//! The boundary to the device: something that computes a batch.

use crate::batch::Batch;

/// Computes batches. Implemented by the model, by a simulator's cost model and by scripted ones in tests.
pub trait Executor {
    /// Computes `batch` and fills `output` (cleared first). An error fails the requests it names.
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault>;

    /// Starts `batch` and returns while it is computed: `collect` then takes what came of it. `false` from an
    /// executor that computes in the caller's time; `execute` is called instead.
    fn submit(&mut self, batch: &Batch) -> Result<bool, DeviceFault> {
        let _ = batch;
        Ok(false)
    }

    /// Whether `submit` takes a batch while another one is computed, with rows whose input is drawn in that one
    /// (`Row::input_from`). `collect` then takes them in their order. Never behind a batch in whose draws the host has
    /// a part (`SamplingParams::needs_host`).
    fn plans_ahead(&self) -> bool {
        false
    }

    /// Waits for the batch that was submitted first, and otherwise does as `execute`.
    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        self.execute(batch, output)
    }
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// One entry per `Batch::rows`: the token drawn, where the row samples.
    pub sampled: Vec<Option<u32>>,
    /// Of rows with guesses, by index into `Batch::rows`, ascending: the token drawn after each guess,
    /// none where there was no drawing one.
    pub after_guesses: Vec<(usize, Option<u32>)>,
    /// Of rows that ask for them, by index into `Batch::rows`, ascending.
    pub logprobs: Vec<(usize, TokenLogprobs)>,
    /// Of prompt tokens that rows ask about, likewise: for a row that computes positions `from..to`
    /// those of the prompt's tokens `from + 1 ..= to`.
    pub prompt_logprobs: Vec<(usize, Vec<TokenLogprobs>)>,
}

impl StepOutput {
    /// Empties it for a batch of `rows` rows, keeping the buffers.
    pub fn reset(&mut self, rows: usize) {
        self.sampled.clear();
        self.sampled.resize(rows, None);
        self.after_guesses.clear();
        self.logprobs.clear();
        self.prompt_logprobs.clear();
    }
}

/// How likely the model found a token, and what it found likelier: natural logarithms of the softmax
/// of the model's logits, before penalties, temperature and the like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// The likeliest tokens, in this order; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// The device could not compute a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// What kind of fault.
    pub kind: DeviceFaultKind,
    /// Shown to the clients whose requests it fails.
    pub message: String,
    /// Indexes into `Batch::rows` that are lost; `None` means all of them.
    pub rows: Option<Vec<usize>>,
}

/// Kinds of device faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFaultKind {
    /// The device has no memory for this step.
    OutOfMemory,
    /// The device computes nothing more until the process is started again.
    Lost,
    /// Anything else.
    Failed,
}
