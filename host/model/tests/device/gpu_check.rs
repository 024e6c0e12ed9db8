//! What `infer gpu-check` checks beside logits: recorded decodes, block tables, copies, a full device; and its report.

use std::path::PathBuf;
use std::sync::Arc;

use infer_kernels::cuda::{Buffer, Device, Type, fill_random};
use infer_model::cuda::checks::{self, Report};

use crate::{emulator, golden, passes};

#[test]
fn recorded_decodes_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::graphs_are_eager(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn deterministic_tokens_depend_only_on_those_before_them() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    for name in ["gemma3-bf16", "olmo3-bf16"] {
        passes(checks::tokens_stand_alone(&device, &golden().join(name)));
    }
}

#[test]
fn draft_tokens_change_no_token() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::drafts_change_no_token(&device, &golden().join("qwen3-bf16")));
}

#[test]
fn scattered_blocks_draw_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::contiguous_is_paged(&device, &golden().join("qwen3-bf16")));
}

#[test]
fn copied_blocks_are_continued_with_the_same_tokens() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    passes(checks::copied_blocks_continue(&device, &golden().join("gemma3-bf16")));
}

#[test]
fn a_pool_beyond_the_device_is_refused_with_advice() {
    let Some(device) = emulator() else { return };
    device.limit_memory(64 << 20);
    let device: Arc<dyn Device> = device;
    passes(checks::memory_runs_out(&device, &golden().join("llama-bf16")));
}

#[test]
fn report_ends_at_a_fault_that_leaves_the_device_unusable() {
    let Some(device) = emulator() else { return };
    let device: Arc<dyn Device> = device;
    let mut lines = Vec::new();
    let mut say = |line| lines.push(line);
    let mut report = Report::new(&device, &[], &mut say);
    report.check("first", || Err("differs".to_owned()));
    report.check("second", || {
        let buffer = Buffer::new(&device, 16).map_err(|error| error.message)?;
        // SAFETY: just after the buffer, in the emulator's guard.
        unsafe { fill_random(device.as_ref(), Type::F32, buffer.at() + 16, 1, 1, 1.0) }
            .and_then(|()| device.wait())
            .map_err(|error| error.message)?;
        Ok("not reached".to_owned())
    });
    report.check("third", || panic!("the device is lost"));
    let summary = report.finish().unwrap_err();
    for part in ["`second`", "CUDA_LAUNCH_BLOCKING=1", "`--seeds 1`"] {
        assert!(summary.contains(part), "{summary}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "FAILED  first: differs");
    assert!(lines[1].starts_with("FAILED  second: fill_float wrote outside"), "{lines:?}");
}

#[test]
fn golden_checkpoints_are_a_directory_or_those_in_it() {
    let all = checks::checkpoints(&golden()).expect("the repository's");
    let names: Vec<_> = all.iter().map(|path| path.file_name().expect("a folder").to_owned()).collect();
    assert!(names.contains(&"llama-f32".into()) && names.is_sorted(), "{names:?}");
    assert!(names.contains(&"gptoss-mxfp4".into()), "{names:?}");
    assert_eq!(checks::checkpoints(&all[0]), Ok(vec![all[0].clone()]));
    let empty = checks::checkpoints(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(empty.unwrap_err().ends_with("contains no golden checkpoints"));
}
