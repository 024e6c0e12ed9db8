//! A step allocates nothing once buffers have grown: otherwise every token would cost allocations. Loading an adapter
//! allocates little beside it.
#![allow(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use common::{Chunk, Driver, model};
use infer_core::{Batch, Executor, StepOutput};
use infer_model::{DType, KvCacheKind, ModelConfig, Source};
use safetensors::tensor::{Dtype, TensorView};

/// Steps that must allocate nothing, one after another.
const STEPS_IN_A_ROW: u32 = 8;
/// Steps within which they must occur.
const MOST_STEPS: u32 = 64;
/// Attempts at what can be tried only once with an executor.
const REPEATS: u32 = 8;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are allocated, and the most that were.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Held by a test: the counters count what all threads allocate.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        let live = LIVE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(live, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Repeats a batch until it allocates nothing, or for too long.
fn settles(driver: &mut Driver, batch: &Batch) -> bool {
    let mut output = StepOutput::default();
    // A thread that starts late allocates when it begins, which the first steps may observe.
    let mut in_a_row = 0;
    for _ in 0..MOST_STEPS {
        in_a_row = if allocations(driver, batch, &mut output) == 0 { in_a_row + 1 } else { 0 };
        if in_a_row == STEPS_IN_A_ROW {
            return true;
        }
    }
    false
}

/// Allocations of a step.
fn allocations(driver: &mut Driver, batch: &Batch, output: &mut StepOutput) -> usize {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    driver.walk.executor.execute(batch, output).expect("sound batches run");
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

/// Writes an adapter of all projections, in bf16.
fn write_adapter(directory: &Path, config: &ModelConfig, rank: usize) {
    let (q, kv, hidden, wide) = (config.q_width(), config.kv_width(), config.hidden, config.intermediate);
    let targets = [
        ("self_attn.q", q, hidden),
        ("self_attn.k", kv, hidden),
        ("self_attn.v", kv, hidden),
        ("self_attn.o", hidden, q),
        ("mlp.gate", wide, hidden),
        ("mlp.up", wide, hidden),
        ("mlp.down", hidden, wide),
    ];
    let mut all = Vec::new();
    for layer in 0..config.layers.len() {
        for (target, outputs, inputs) in targets {
            for (half, shape) in [("A", [rank, inputs]), ("B", [outputs, rank])] {
                let name = format!("base_model.model.model.layers.{layer}.{target}_proj.lora_{half}.weight");
                all.push((name, shape, vec![0_u8; 2 * shape[0] * shape[1]]));
            }
        }
    }
    let views = all.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.to_vec(), bytes).expect("sizes agree"))
    });
    let file = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("names are unique");
    std::fs::write(directory.join("adapter_model.safetensors"), file).expect("it can be written");
    let settings = serde_json::json!({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"});
    std::fs::write(directory.join("adapter_config.json"), settings.to_string()).expect("it can be written");
}

/// What is available is compared with its own bytes before it is read.
#[test]
fn loading_an_adapter_takes_little_more_memory_than_the_adapter() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut model = model("qwen3-bf16", DType::Bf16);
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_adapter(directory.path(), &model.config, 128);
    let source = Source::Directory(directory.path().to_owned());
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    model.add_adapter(&source).expect("it is sound");
    let peak = PEAK.load(Ordering::SeqCst) - before;
    let bytes = model.adapter_bytes() as usize;
    // The adapter itself is in a map, which isn't counted. All of it as f32 would be twice as much.
    assert!(peak < bytes, "{peak} bytes were allocated beside an adapter of {bytes}");
}

#[test]
fn repeated_step_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, dtype) in [
        ("llama-f32", DType::F32),
        ("qwen3-bf16", DType::Bf16),
        ("gemma3-bf16", DType::Bf16),
        ("qwen3moe-bf16", DType::Bf16),
        ("granite-bf16", DType::Bf16),
        ("olmo3-bf16", DType::Bf16),
        ("olmoe-bf16", DType::Bf16),
        ("gptoss-bf16", DType::Bf16),
    ] {
        let model = model(name, dtype);
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 2);
        let prompt: Vec<u32> = (0..40).collect();
        driver.run(&[
            Chunk { sequence: 1, start: 0, tokens: &prompt },
            Chunk { sequence: 2, start: 0, tokens: &prompt[..7] },
        ]);
        // A decode together with a chunk of a prompt.
        let batch = driver.batch(&[
            Chunk { sequence: 1, start: 40, tokens: &[3] },
            Chunk { sequence: 2, start: 7, tokens: &prompt[7..30] },
        ]);
        assert!(settles(&mut driver, &batch), "{name}");
        // Nor one with adapters.
        let mut model = model;
        let adapters = [4, 9].map(|rank| model.add_random_adapter(rank, 1).expect("it is small"));
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 2);
        driver.walk.adapt(1, adapters[0]);
        driver.walk.adapt(2, adapters[1]);
        let tokens = &prompt[..20];
        let batch = driver.batch(&[1, 2, 3].map(|sequence| Chunk { sequence, start: 0, tokens }));
        assert!(settles(&mut driver, &batch), "{name} with adapters");
    }
    // Nor does one of as many tokens that choose other experts: here all choose the same, after each had some.
    let model = model("qwen3moe-bf16", DType::Bf16);
    let (spread, same) = ((0..96).collect::<Vec<u32>>(), [9; 96]);
    let mut allocated = Vec::new();
    // Again if a thread starts only then.
    for _ in 0..REPEATS {
        let mut driver = Driver::new(&model, KvCacheKind::Paged, 16, 2);
        let batches = [(1, &spread[..]), (2, &same[..])]
            .map(|(sequence, tokens)| driver.batch(&[Chunk { sequence, start: 0, tokens }]));
        assert!(settles(&mut driver, &batches[0]), "one chunk");
        let mut output = StepOutput::default();
        // Room for a row's token.
        output.reset(1);
        allocated.push(allocations(&mut driver, &batches[1], &mut output));
        if allocated.ends_with(&[0]) {
            return;
        }
    }
    panic!("each time a step allocated: {allocated:?} times");
}
