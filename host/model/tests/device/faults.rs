//! What the device's executor makes of a device that refuses: recordings, single operations, everything. On the emulated one.

use std::sync::Arc;

use infer_core::{Batch, DeviceFault, DeviceFaultKind, Executor, SamplingExtras, StepOutput};
use infer_cuda_emulator::{Emulator, Operation};
use infer_kernels::cuda::{CudaError, CudaErrorKind, Device};
use infer_model::cuda::{DeviceExecutor, DeviceOptions};
use infer_model::walk::{Chunk, Draws, Walk};

use crate::{load, seeded};

const BLOCKS: u32 = 32;
const BLOCK_SIZE: u32 = 4;
/// Steps of a whole run: the prompts, a decode that is launched, one that is recorded, others that repeat it.
const STEPS: usize = 6;

/// An executor with two sequences.
struct Stage {
    device: Arc<Emulator>,
    walk: Walk<DeviceExecutor>,
    /// Prompts and greedy tokens.
    streams: [Vec<u32>; 2],
    begun: bool,
}

impl Stage {
    fn new(graphs: bool) -> Option<Self> {
        let device = seeded(13).map(Arc::new)?;
        let options = DeviceOptions {
            block_size: BLOCK_SIZE,
            total_blocks: BLOCKS,
            max_rows: 4,
            max_tokens: 32,
            max_seq_len: 32,
            prompt_cache_entries: 0,
            deterministic: false,
            graphs,
        };
        let on: Arc<dyn Device> = device.clone();
        let model = load("llama-f32").to_device(&on);
        let executor = model.and_then(|model| model.executor(options)).expect("it fits");
        let walk = Walk::new(executor, BLOCK_SIZE, BLOCKS);
        Some(Self { device, walk, streams: [vec![1, 2, 3], vec![9, 8, 7, 6, 5]], begun: false })
    }

    /// The next step: both prompts, or the last token of both sequences.
    fn batch(&mut self) -> Batch {
        let start = |stream: &[u32]| if self.begun { stream.len() - 1 } else { 0 };
        let chunks: Vec<Chunk<'_>> = (0..)
            .zip(&self.streams)
            .map(|(sequence, stream)| Chunk {
                sequence,
                start: start(stream),
                tokens: &stream[start(stream)..],
            })
            .collect();
        self.walk.batch(&chunks, Draws::GREEDY)
    }

    fn step(&mut self) -> Result<(), DeviceFault> {
        let (batch, mut output) = (self.batch(), StepOutput::default());
        self.walk.executor.execute(&batch, &mut output)?;
        for (stream, token) in self.streams.iter_mut().zip(&output.sampled) {
            stream.push(token.expect("each row draws"));
        }
        self.begun = true;
        Ok(())
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step().expect("nothing fails");
        }
    }

    /// Numbers of recordings begun and of graphs launched.
    fn recorded(&self) -> (u64, u64) {
        (self.device.recordings(), self.walk.executor.graph_launches())
    }
}

/// The streams of a run in which nothing fails.
fn undisturbed() -> Option<[Vec<u32>; 2]> {
    let mut stage = Stage::new(true)?;
    stage.steps(STEPS);
    assert_eq!(stage.recorded(), (1, STEPS as u64 - 2));
    Some(stage.streams)
}

#[test]
fn decodes_that_can_not_be_recorded_are_launched() {
    let Some(wanted) = undisturbed() else { return };
    let mut refused = Stage::new(true).expect("as before");
    refused.device.refuse_recordings();
    refused.steps(STEPS);
    assert_eq!(refused.streams, wanted);
    assert_eq!(refused.recorded(), (2, 0), "with early launches and without, then never again");

    let mut broken_off = Stage::new(true).expect("as before");
    broken_off.steps(2);
    for _ in 0..2 {
        broken_off.device.fail_next(Operation::Launch, CudaError::failed("a launch that can't be recorded"));
    }
    broken_off.steps(STEPS - 2);
    assert_eq!(broken_off.streams, wanted);
    assert_eq!(broken_off.recorded(), (2, 0), "half a step was recorded, twice");
}

#[test]
fn decodes_are_recorded_without_early_launches_if_those_can_not_be() {
    let Some(wanted) = undisturbed() else { return };
    let mut plainly = Stage::new(true).expect("as before");
    plainly.device.refuse_early_recordings();
    plainly.steps(STEPS);
    assert_eq!(plainly.streams, wanted);
    assert_eq!(plainly.recorded(), (2, STEPS as u64 - 2));
}

#[test]
fn failed_operation_fails_its_step_alone() {
    let Some(wanted) = undisturbed() else { return };
    for (operation, before) in
        [(Operation::Launch, 1), (Operation::CopyIn, 1), (Operation::CopyOut, 3), (Operation::Graph, 3)]
    {
        for (kind, reported) in [
            (CudaErrorKind::Failed, DeviceFaultKind::Failed),
            (CudaErrorKind::OutOfMemory, DeviceFaultKind::OutOfMemory),
        ] {
            let mut stage = Stage::new(true).expect("as before");
            stage.steps(before);
            stage.device.fail_next(operation, CudaError { kind, message: "refused on request".to_owned() });
            let fault = stage.step().expect_err("an operation of the step fails");
            assert_eq!((fault.kind, &fault.rows), (reported, &None), "{operation:?}");
            assert!(fault.message.contains("refused on request"), "{fault:?}");
            stage.steps(STEPS - before);
            assert_eq!(stage.streams, wanted, "{operation:?}");
        }
    }
}

#[test]
fn recordings_from_before_a_failure_are_made_again() {
    let Some(wanted) = undisturbed() else { return };
    let mut stage = Stage::new(true).expect("as before");
    stage.steps(3);
    assert_eq!(stage.recorded(), (1, 1));
    stage.device.fail_next(Operation::CopyIn, CudaError::failed("refused on request"));
    stage.step().expect_err("a copy fails");
    stage.steps(STEPS - 3);
    assert_eq!(stage.recorded(), (2, 3), "a decode was launched, the next one recorded");
    assert_eq!(stage.streams, wanted);
}

#[test]
fn lost_device_is_reported_whatever_the_failed_operation_said() {
    let Some(mut told) = Stage::new(true) else { return };
    told.steps(1);
    let gone = CudaError { kind: CudaErrorKind::Lost, message: "fell off the bus".to_owned() };
    told.device.fail_next(Operation::Launch, gone);

    let mut silent = Stage::new(true).expect("as before");
    silent.steps(1);
    silent.device.lose("fell off the bus");
    silent.device.fail_next(Operation::CopyIn, CudaError::failed("a copy failed"));

    for mut stage in [told, silent] {
        for _ in 0..2 {
            let fault = stage.step().expect_err("the device is lost");
            assert_eq!(fault.kind, DeviceFaultKind::Lost, "{fault:?}");
            assert!(fault.message.contains("fell off the bus"), "{fault:?}");
        }
    }

    let mut later = Stage::new(true).expect("as before");
    let (batch, mut output) = (later.batch(), StepOutput::default());
    later.walk.executor.submit(&batch).expect("it is submitted");
    later.device.lose("fell off the bus");
    let fault = later.walk.executor.collect(&batch, &mut output).expect_err("nothing was computed");
    assert_eq!((fault.kind, output.sampled), (DeviceFaultKind::Lost, vec![None, None]));
}

#[test]
fn steps_allocate_no_memory_of_the_device() {
    for graphs in [false, true] {
        let Some(mut stage) = Stage::new(graphs) else { return };
        let before = stage.device.allocations();
        assert!(before > 10, "those of weights and buffers are counted");
        stage.steps(STEPS);
        // Sampled on the host.
        let (mut batch, mut output) = (stage.batch(), StepOutput::default());
        let extras = SamplingExtras { logprobs: Some(2), ..SamplingExtras::default() };
        batch.rows[0].sampling.extras = Some(Arc::new(extras));
        stage.walk.executor.execute(&batch, &mut output).expect("nothing fails");
        assert_eq!(output.logprobs.len(), 1);
        assert_eq!(stage.device.allocations(), before, "with graphs: {graphs}");
    }
}
