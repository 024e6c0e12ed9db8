//! Every CUDA kernel on the emulated device against the reference, with several orders of threads.

use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::bench::{self, Cell, Extent, Line, ModelShape, Plan};
use infer_kernels::cuda::checks::{self, Effort};
use infer_kernels::cuda::{
    CudaErrorKind, Device, Driver, FEW, ProductKind, Switches, Type, fuses, kernels_embedded,
};

/// Seeds of shapes and of the order of threads.
const SEEDS: u64 = 2;

fn run(name: &str) {
    let check = checks::all().iter().find(|check| check.name == name).expect("a check of this name");
    for seed in 0..SEEDS {
        let Some(emulator) = Emulator::new(seed * 1_000_003) else {
            eprintln!("skipped: no C++ compiler");
            return;
        };
        let device: Arc<dyn Device> = Arc::new(emulator);
        if let Err(wrong) = check.run(&device, Effort::Quick, seed) {
            panic!("{name}: {wrong}");
        }
    }
}

macro_rules! checks {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test] fn $test() { run($name); })*

        #[test]
        fn every_check_runs_here() {
            let here = [$($name),*];
            assert!(checks::all().iter().all(|check| here.contains(&check.name)));
        }
    };
}

checks! {
    embedding_gather: "embedding gather",
    tokens_of_the_last_draws: "tokens of the last draws",
    gated_activations: "gated activations",
    residual_and_norm: "residual and norm",
    block_copies: "block copies",
    kv_writes: "rope, head norms and KV writes",
    products: "products",
    products_row_by_row: "products row by row",
    products_with_gates: "products with gates",
    products_with_residual_sums_and_norms: "products with residual sums and norms",
    products_with_rope_and_kv_writes: "products with rope and KV writes",
    embeddings_of_integers: "embeddings of integers",
    widened_integers: "widened integers",
    products_of_integers: "products of integers",
    products_of_integers_row_by_row: "products of integers row by row",
    products_of_integers_with_gates: "products of integers with gates",
    products_of_integers_with_residual_sums_and_norms: "products of integers with residual sums and norms",
    products_of_integers_with_rope_and_kv_writes: "products of integers with rope and KV writes",
    choices_of_experts: "choices of experts",
    layers_of_experts: "layers of experts",
    adapters: "adapters",
    decode_attention: "decode attention",
    decode_attention_in_fixed_parts: "decode attention in fixed parts",
    attention_right_after_kv_writes: "attention right after KV writes",
    prefill_attention: "prefill attention",
    sampling: "sampling",
    sampling_by_exact_weights: "sampling by exact weights",
    sampling_of_broken_logits: "sampling of broken logits",
}

#[test]
fn opening_reports_missing_kernels_before_a_missing_gpu() {
    match Driver::open(0, |_| {}) {
        Ok(driver) => assert!(kernels_embedded() && !driver.properties().name.is_empty()),
        Err(error) if kernels_embedded() => assert_ne!(error.kind, CudaErrorKind::NoKernels, "{error}"),
        Err(error) => {
            assert_eq!(error.kind, CudaErrorKind::NoKernels, "{error}");
            assert!(error.message.contains("cargo xtask cuda-toolkit"), "{error}");
        }
    }
}

#[test]
fn copies_are_measured_on_a_device_with_less_memory() {
    let Some(emulator) = Emulator::new(1) else { return };
    emulator.limit_memory(1 << 20);
    let device: Arc<dyn Device> = Arc::new(emulator);
    let rate = bench::copy_rate(&device, 2 << 30).expect("it copies less");
    assert!(rate.is_finite() && rate > 0.0, "{rate}");
}

/// The benchmark's launches are valid too.
#[test]
fn the_benchmark_runs() {
    let Some(emulator) = Emulator::new(1) else { return };
    let device: Arc<dyn Device> = Arc::new(emulator);
    let llama = ModelShape {
        name: "llama-8b",
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4_096,
        intermediate: 14_336,
        vocab: 128_256,
    };
    let attention = [
        llama,
        ModelShape { name: "llama-1b", head_dim: 64, ..llama },
        ModelShape { name: "qwen3-1.7b", heads: 16, ..llama },
        ModelShape { name: "gemma3-1b", heads: 4, kv_heads: 1, head_dim: 256, ..llama },
    ];
    let small = ModelShape {
        name: "small",
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        hidden: 64,
        intermediate: 224,
        vocab: 500,
    };
    let plan = Plan { attention: &attention, others: &[small], extent: &Extent::SMALLEST };
    let mut lines = Vec::new();
    bench::run(&device, &plan, &mut |line| lines.push(line)).expect("it runs");
    // Of each table its title, and the first cells of its rows.
    let mut tables: Vec<(&str, Vec<String>)> = Vec::new();
    for line in &lines {
        match line {
            Line::Note(_) => {}
            Line::Head(table) => tables.push((table.title, Vec::new())),
            Line::Row(table, cells) => {
                let (title, rows) = tables.last_mut().expect("a heading comes first");
                assert_eq!(*title, table.title);
                // Of prefill attention, also the form of its blocks.
                let named = if table.title == "prefill attention" { 4 } else { 2 };
                let names: Vec<String> = cells.iter().take(named).map(Cell::to_string).collect();
                rows.push(names.join(" "));
                assert!(cells.iter().all(|cell| *cell != Cell::Absent), "{line}");
            }
        }
    }
    let rates = lines[0].to_string();
    assert!(rates.ends_with("TFLOP/s (by our own kernel: cuBLASLt was not found)"), "{rates}");
    let titles: Vec<&str> = tables.iter().map(|(title, _)| *title).collect();
    let expected = [
        "decode attention",
        "prefill attention",
        "products",
        "products of integers",
        "products with what surrounds them",
        "small kernels",
        "adapters",
        "layers of experts",
        "sampling",
    ];
    assert_eq!(titles, expected);
    assert_eq!(tables[0].1, ["llama-8b 2", "llama-1b 2", "qwen3-1.7b 2", "gemma3-1b 2"]);
    let prefills = |model: &str, forms: &[&str]| -> Vec<String> {
        forms.iter().map(|form| format!("{model} 70 {form}")).collect()
    };
    let wide = ["64 mma.sync", "128 mma.sync", "64 wgmma", "128 wgmma"];
    let narrow = [&wide[..], &["192 wgmma"]].concat();
    let expected = [
        prefills("llama-8b", &wide),
        prefills("llama-1b", &narrow),
        prefills("qwen3-1.7b", &wide),
        prefills("gemma3-1b", &["64 mma.sync", "64 wgmma", "128 wgmma"]),
    ];
    assert_eq!(tables[1].1, expected.concat());
    // Four products of one and of forty rows, by each of our two ways.
    assert_eq!(tables[2].1, [["small 1"; 2], ["small 40"; 2]].concat().repeat(4));
    // With integers of 8 and of 4 bits.
    assert_eq!(tables[3].1, tables[2].1);
    let kernels = ["add_norm", "kv_write", "gated", "embed", "copy_blocks", "attention_plain"];
    assert_eq!(tables[4].1, ["small 1"; 5]);
    assert_eq!(tables[5].1, kernels.map(|kernel| format!("small {kernel}")));
    // Four products of one row, and of forty of one adapter and of many.
    assert_eq!(tables[6].1, [["small 1"; 4].as_slice(), &["small 40"; 8]].concat());
    // Three forms of products of one row, and one of forty fewer: an expert has twenty of them.
    let experts = [["tiny-experts 1"; 3].as_slice(), &["tiny-experts 40"; 2]].concat();
    assert_eq!(tables[7].1, experts);
    let last = lines.last().expect("some").to_string();
    assert!(last.starts_with("copies at the end ") && last.contains("GB/s, at the start "), "{last}");
}

#[test]
fn products_include_what_surrounds_them_up_to_the_rows_that_the_vendors_library_takes() {
    let Some(mut emulator) = Emulator::new(1) else { return };
    let most = |device: &Emulator| {
        (1..=2 * FEW).filter(|rows| fuses(device, Type::Bf16, ProductKind::Fastest, [*rows, 64])).max()
    };
    assert_eq!(most(&emulator), Some(FEW));
    emulator.refuse_products();
    assert_eq!(most(&emulator), Some(8));
    emulator.switch(Switches { few_rows: 5, ..Switches::default() });
    assert_eq!(most(&emulator), Some(5));
}

#[test]
fn the_benchmark_names_what_the_vendors_library_refuses() {
    let Some(mut emulator) = Emulator::new(1) else { return };
    emulator.refuse_products();
    let device: Arc<dyn Device> = Arc::new(emulator);
    let shape = ModelShape {
        name: "tiny",
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        hidden: 64,
        intermediate: 64,
        vocab: 100,
    };
    let plan = Plan { attention: &[], others: &[shape], extent: &Extent::SMALLEST };
    let mut lines = Vec::new();
    bench::run(&device, &plan, &mut |line| lines.push(line)).expect("it runs");
    let rates = lines[0].to_string();
    assert!(rates.ends_with("TFLOP/s (by our own kernel: cuBLASLt refused)"), "{rates}");
    let mut ways = Vec::new();
    for line in &lines {
        if let Line::Row(table, cells) = line
            && table.title == "products"
        {
            let absent: Vec<bool> = cells.iter().skip(5).map(|cell| *cell == Cell::Absent).collect();
            ways.push((cells[4].to_string(), absent));
        }
    }
    let way = |name: &str, absent| (name.to_owned(), vec![absent; 4]);
    let expected = [way("Own", false), way("RowByRow", false), way("Vendor, refused", true)];
    // Four products of one and of forty rows.
    assert_eq!(ways.len(), 8 * expected.len());
    for ways in ways.chunks(expected.len()) {
        assert_eq!(ways, expected);
    }
}
