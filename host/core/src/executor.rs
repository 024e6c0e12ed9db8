//! The boundary to the device: something that computes a batch.

use std::any::Any;

use crate::batch::Batch;
use crate::ids::{AdapterId, BlockId};

/// An adapter's weights, in a form that only the executor knows that they were made for.
pub type AdapterWeights = Box<dyn Any + Send>;

/// Computes batches. Implemented by the model, by a simulator's cost model and by scripted ones in tests.
pub trait Executor {
    /// Computes `batch` and fills `output` (cleared first). An error fails the requests it names.
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault>;

    /// Starts `batch` and returns while it is computed; `collect` then takes the result. An executor that
    /// computes on the caller's thread returns `false`, and `execute` is called instead.
    fn submit(&mut self, batch: &Batch) -> Result<bool, DeviceFault> {
        let _ = batch;
        Ok(false)
    }

    /// Whether `submit` accepts a batch while another one is computed, with rows whose input is sampled in
    /// that one (`Row::input_from`). `collect` then returns them in order. It is never called behind a batch
    /// in whose sampling the host takes part (`SamplingParams::needs_host`).
    fn plans_ahead(&self) -> bool {
        false
    }

    /// Waits for the batch that was submitted first; otherwise like `execute`.
    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        self.execute(batch, output)
    }

    /// Bytes of a block's keys and values in all layers; 0 if they can't be copied to the host and back.
    fn block_bytes(&self) -> usize {
        0
    }

    /// Copies a block's keys and values to `bytes` (`block_bytes` long), in the executor's own order. No batch
    /// is in flight.
    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        let _ = (block, bytes);
        Err(DeviceFault::no_copies())
    }

    /// Overwrites a block's keys and values with what `read_block` copied. No batch is in flight.
    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        let _ = (block, bytes);
        Err(DeviceFault::no_copies())
    }

    /// Takes an adapter, which rows may have (`Row::adapter`) from the next batch on. After an error everything is as it
    /// was. No batch is in flight.
    fn load_adapter(&mut self, adapter: AdapterId, weights: AdapterWeights) -> Result<(), DeviceFault> {
        let _ = (adapter, weights);
        Err(DeviceFault::no_adapters())
    }

    /// Gives an adapter back that no row will have again, to be dropped where that holds up no step. No batch is in
    /// flight.
    fn unload_adapter(&mut self, adapter: AdapterId) -> Option<AdapterWeights> {
        let _ = adapter;
        None
    }
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// One entry per `Batch::rows`: the sampled token, if the row samples and doesn't embed.
    pub sampled: Vec<Option<u32>>,
    /// For rows with draft tokens, by index into `Batch::rows`, ascending: the token sampled after each draft
    /// token, `None` if there was none.
    pub after_guesses: Vec<(usize, Option<u32>)>,
    /// For rows that ask for log-probabilities, by index into `Batch::rows`, ascending.
    pub logprobs: Vec<(usize, TokenLogprobs)>,
    /// For rows that ask for prompt log-probabilities, likewise: a row that computes positions `from..to`
    /// reports the prompt's tokens `from + 1 ..= to`.
    pub prompt_logprobs: Vec<(usize, Vec<TokenLogprobs>)>,
    /// For rows that would sample but embed (`SamplingExtras::embed`), likewise: the hidden state of the last token after
    /// the last norm.
    pub embeddings: Vec<(usize, Vec<f32>)>,
}

impl StepOutput {
    /// Empties it for a batch of `rows` rows, keeping the buffers.
    pub fn reset(&mut self, rows: usize) {
        self.sampled.clear();
        self.sampled.resize(rows, None);
        self.after_guesses.clear();
        self.logprobs.clear();
        self.prompt_logprobs.clear();
        self.embeddings.clear();
    }
}

/// A token's log-probability and the likeliest tokens: natural logarithms of the softmax of the model's
/// logits, before penalties, temperature and the like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// The likeliest tokens in order, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// The device could not compute a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    /// What kind of fault.
    pub kind: DeviceFaultKind,
    /// Shown to the clients whose requests fail.
    pub message: String,
    /// Indexes into `Batch::rows` that are lost; `None` means all of them.
    pub rows: Option<Vec<usize>>,
}

impl DeviceFault {
    fn no_copies() -> Self {
        let message = "this executor's blocks can't be copied".to_owned();
        Self { kind: DeviceFaultKind::Failed, message, rows: None }
    }

    fn no_adapters() -> Self {
        let message = "this executor takes no adapters while it runs".to_owned();
        Self { kind: DeviceFaultKind::Failed, message, rows: None }
    }
}

/// Kinds of device faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFaultKind {
    /// The device has no memory for this step.
    OutOfMemory,
    /// The device computes nothing more until the process is restarted.
    Lost,
    /// The second level of the prefix cache failed before the batch was computed. It is not used any more.
    Offload,
    /// Anything else.
    Failed,
}
