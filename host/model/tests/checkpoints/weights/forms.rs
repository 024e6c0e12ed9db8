//! Quantized checkpoints in safetensors: whole models in each form compute what the numbers that the form stands for compute,
//! and what is missing or other than declared is refused by name.

use std::ops::ControlFlow;

use infer_model::{
    DType, KvCacheKind, LoadOptions, Model, ModelError, ModelErrorKind, Quantize, Source, WeightType,
};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::common::{Chunk, Driver, golden};
use crate::forms::{self, ALL, Checkpoint, Form};

/// Families that differ in the names, the places or the order of their matrices' rows.
const CHECKPOINTS: [&str; 6] =
    ["llama-bf16", "qwen3-bf16", "gemma3-bf16", "phi3-bf16", "qwen3moe-bf16", "mixtral-bf16"];

fn load(checkpoint: &Checkpoint, dtype: Option<DType>, quantize: Quantize) -> Result<Model, ModelError> {
    let weights = checkpoint.weights();
    let files = [("config.json", checkpoint.config.as_bytes()), ("model.safetensors", weights.as_slice())];
    let options = LoadOptions { dtype, quantize, ..LoadOptions::default() };
    Model::load_with(&Source::Embedded(&files), &options, &mut |_| ControlFlow::Continue(()))
}

fn logits(model: &Model) -> Vec<f32> {
    let mut driver = Driver::new(model, KvCacheKind::Paged, 16, 1);
    driver.run(&[Chunk { sequence: 1, start: 0, tokens: &[306, 3, 9, 77, 12, 250] }]).remove(0).0
}

fn distance(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
    (error / want.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}

#[test]
fn models_in_each_form_compute_what_their_numbers_compute() {
    for name in CHECKPOINTS {
        let plain = Checkpoint::read(&golden(name));
        for form in ALL {
            let (coded, widened) = plain.in_form(form);
            let floats = load(&coded, Some(DType::F32), Quantize::Auto).expect("sound");
            assert_eq!(floats.weight_type, WeightType::F32);
            let want = logits(&load(&widened, Some(DType::F32), Quantize::Off).expect("sound"));
            assert!(logits(&floats) == want, "{name}, {form:?}: not the same logits");
            // As the checkpoint says its floats are, but for those of 16 bits that a CPU widens.
            let off = load(&coded, None, Quantize::Off).expect("sound");
            assert_eq!(off.weight_type, WeightType::Bf16, "{name}, {form:?}");
            let held = load(&coded, None, Quantize::Auto).expect("sound");
            // Experts with 32 inputs have them in one group, whatever their order.
            let in_four = form == Form::Gptq4Ordered && ["qwen3moe-bf16", "mixtral-bf16"].contains(&name);
            let expected = if in_four { WeightType::Q4 } else { form.held() };
            assert_eq!(held.weight_type, expected, "{name}, {form:?}");
            let error = distance(&logits(&held), &want);
            println!("{name}, {form:?}: {error:.4}");
            assert!(error < 8e-2, "{name}, {form:?}: {error}");
            if name.contains("moe") {
                // A GPU has experts as floats.
                let weights = coded.weights();
                let files =
                    [("config.json", coded.config.as_bytes()), ("model.safetensors", weights.as_slice())];
                let options = LoadOptions { for_gpu: true, ..LoadOptions::default() };
                let ignore = &mut |_| ControlFlow::Continue(());
                let on_gpu = Model::load_with(&Source::Embedded(&files), &options, ignore).expect("sound");
                assert!(
                    on_gpu.weight_bytes() > held.weight_bytes() && on_gpu.weight_bytes() < off.weight_bytes()
                );
            }
            let smaller = load(&coded, None, Quantize::Q4).expect("sound");
            assert_eq!(smaller.weight_type, WeightType::Q4, "{name}, {form:?}");
        }
    }
}

#[test]
fn progress_and_copies_count_every_byte_of_codes_and_scales_once() {
    for (name, form) in [("phi3-bf16", Form::Fp8Blocks), ("qwen3moe-bf16", Form::Gptq4)] {
        let (coded, _) = Checkpoint::read(&golden(name)).in_form(form);
        let weights = coded.weights();
        let files = [("config.json", coded.config.as_bytes()), ("model.safetensors", weights.as_slice())];
        let (mut done, mut total) = (0, 0);
        Model::load_with(&Source::Embedded(&files), &LoadOptions::default(), &mut |progress| {
            (done, total) = (progress.done_bytes, progress.total_bytes);
            ControlFlow::Continue(())
        })
        .expect("sound");
        assert_eq!(Model::copy_weights(&Source::Embedded(&files)).expect("sound").0, done, "{name}");
        let vectors =
            coded.tensors.iter().filter(|(name, _, shape, _)| shape.len() == 1 && !name.ends_with("g_idx"));
        let left: usize = vectors.map(|(.., bytes)| bytes.len()).sum();
        assert_eq!(done + left as u64, total, "{name}");
    }
}

/// What happens to a checkpoint's tensors, and what the error says.
type Fault<'a> = (Form, &'a str, Change, &'a str);

enum Change {
    Remove,
    Shape(Vec<usize>),
    Type(Dtype),
    /// These bytes from the first on.
    Bytes(Vec<u8>),
    Rename(&'static str),
}

#[test]
fn tensors_that_are_missing_or_other_are_named_with_their_file() {
    const MODULE: &str = "model.layers.2.mlp.down_proj";
    let faults: Vec<Fault<'_>> = vec![
        (Form::Fp8Blocks, "weight", Change::Remove, "down_proj.weight is missing"),
        (
            Form::Fp8Blocks,
            "weight_scale_inv",
            Change::Remove,
            "weight has no model.layers.2.mlp.down_proj.weight_scale",
        ),
        (
            Form::Fp8Blocks,
            "weight_scale_inv",
            Change::Shape(vec![12, 2]),
            "weight_scale_inv has shape [12, 2], which for a matrix of [64, 192] is not that of a scale per 16 outputs and 32 \
             inputs",
        ),
        (
            Form::Fp8Blocks,
            "weight_scale_inv",
            Change::Type(Dtype::I32),
            "is stored as I32, which is no type of scales",
        ),
        (
            Form::Fp8Blocks,
            "weight",
            Change::Shape(vec![192, 64]),
            "has shape [192, 64], which is not that of codes that config.json has for a matrix of [64, 192]",
        ),
        (Form::Fp8Blocks, "weight", Change::Bytes(vec![0, 0x7f]), "number 1 of row 0 is NaN"),
        (
            Form::Fp8Blocks,
            "weight_scale_inv",
            Change::Bytes(f32::INFINITY.to_le_bytes().to_vec()),
            "of row 0 is ",
        ),
        (Form::Fp8Blocks, "weight", Change::Type(Dtype::F8_E5M2), "weight_scale_inv is for codes, and"),
        (Form::Fp8Outputs, "weight_scale", Change::Shape(vec![64, 1, 1]), "a scale per matrix or per output"),
        (Form::Gptq4, "qweight", Change::Remove, "down_proj.weight is missing"),
        (
            Form::Gptq4,
            "qzeros",
            Change::Remove,
            "qweight has no model.layers.2.mlp.down_proj.qzeros beside it",
        ),
        (
            Form::Gptq4,
            "scales",
            Change::Remove,
            "qweight has no model.layers.2.mlp.down_proj.scales beside it",
        ),
        (
            Form::Gptq4Ordered,
            "g_idx",
            Change::Remove,
            "qweight has no model.layers.2.mlp.down_proj.g_idx beside it",
        ),
        // As of 8 bits.
        (
            Form::Gptq4,
            "qweight",
            Change::Shape(vec![48, 64]),
            "qweight has shape [48, 64], config.json requires [24, 64]",
        ),
        (Form::Gptq4, "qweight", Change::Type(Dtype::F32), "qweight is stored as F32, and must be I32"),
        (
            Form::Gptq4,
            "qzeros",
            Change::Shape(vec![6, 4]),
            "qzeros has shape [6, 4], config.json requires [6, 8]",
        ),
        (
            Form::Gptq4,
            "scales",
            Change::Shape(vec![3, 64]),
            "scales has shape [3, 64], config.json requires [6, 64]",
        ),
        (Form::Gptq4, "scales", Change::Bytes(vec![0, 0x7c]), "number 0 of row 0 is of a group whose scale"),
        (Form::Gptq4, "g_idx", Change::Shape(vec![191]), "g_idx has shape [191], config.json requires [192]"),
        (Form::Gptq4, "g_idx", Change::Bytes(vec![6]), "g_idx says that input 0 is in group 6, of 6"),
        (Form::Gptq4, "g_idx", Change::Bytes(vec![255; 4]), "g_idx says that input 0 is in group -1, of 6"),
        (Form::Gptq8, "scales", Change::Bytes(vec![1, 0x7c]), "number 0 of row 0 is NaN"),
        (Form::Awq, "qzeros", Change::Remove, "qweight has no model.layers.2.mlp.down_proj.qzeros beside it"),
        (
            Form::Awq,
            "qweight",
            Change::Shape(vec![24, 64]),
            "qweight has shape [24, 64], config.json requires [192, 8]",
        ),
        (
            Form::Awq,
            "qzeros",
            Change::Shape(vec![3, 8]),
            "qzeros has shape [3, 8], config.json requires [6, 8]",
        ),
        (
            Form::Awq,
            "scales",
            Change::Type(Dtype::I16),
            "scales is stored as I16, which is no type of scales",
        ),
        (Form::Awq, "scales", Change::Bytes(vec![0, 0xfc]), "number 0 of row 0 is of a group whose scale"),
        (Form::Packed4, "weight_packed", Change::Remove, "down_proj.weight is missing"),
        (
            Form::Packed4,
            "weight_scale",
            Change::Remove,
            "weight_packed has no model.layers.2.mlp.down_proj.weight_scale beside",
        ),
        (
            Form::Packed4,
            "weight_zero_point",
            Change::Remove,
            "has no model.layers.2.mlp.down_proj.weight_zero_point beside it",
        ),
        (
            Form::Packed4,
            "weight_shape",
            Change::Remove,
            "has no model.layers.2.mlp.down_proj.weight_shape beside it",
        ),
        (
            Form::Packed4,
            "weight_shape",
            Change::Bytes(vec![65]),
            "says [65, 192], config.json requires [64, 192]",
        ),
        (
            Form::Packed4,
            "weight_packed",
            Change::Type(Dtype::F32),
            "weight_packed is stored as F32, and must be I32",
        ),
        (
            Form::Packed4,
            "weight_packed",
            Change::Shape(vec![64, 48]),
            "has shape [64, 48], which is not that of codes that config.json has for a matrix of [64, 192]",
        ),
        (
            Form::Packed4,
            "weight_scale",
            Change::Shape(vec![64, 3]),
            "not that of a scale per output and 32 inputs",
        ),
        (
            Form::Packed4,
            "weight_zero_point",
            Change::Shape(vec![8, 3]),
            "has shape [8, 3], config.json requires [8, 6]",
        ),
        (
            Form::Packed4,
            "weight_zero_point",
            Change::Type(Dtype::F32),
            "is stored as F32, which is no type of such zeros",
        ),
        (
            Form::Packed4,
            "weight_scale",
            Change::Bytes(vec![1, 0xfe]),
            "number 0 of row 0 is of a group whose scale",
        ),
        (
            Form::Bytes,
            "weight_scale",
            Change::Remove,
            "weight has no model.layers.2.mlp.down_proj.weight_scale beside it",
        ),
        (Form::Bytes, "weight_scale", Change::Bytes(vec![1, 0xfe]), "number 0 of row 0 is NaN"),
        (Form::Bytes, "weight_scale", Change::Shape(vec![2, 64]), "is not that of a scale per output"),
        (Form::Bytes, "weight", Change::Type(Dtype::U8), "weight_scale is for codes, and"),
        (
            Form::Fp8Outputs,
            "input_scale",
            Change::Rename("weight_global_scale"),
            "weight_global_scale is not supported",
        ),
    ];
    let plain = Checkpoint::read(&golden("qwen3-bf16"));
    for (form, tensor, change, named) in faults {
        let (mut coded, _) = plain.in_form(form);
        let name = format!("{MODULE}.{tensor}");
        let at = coded.tensors.iter().position(|(other, ..)| *other == name).expect("it is there");
        let (new_name, dtype, shape, bytes) = &mut coded.tensors[at];
        match change {
            Change::Remove => drop(coded.tensors.remove(at)),
            Change::Shape(other) => {
                let size = bytes.len() / shape.iter().product::<usize>();
                bytes.resize(other.iter().product::<usize>() * size, 0);
                *shape = other;
            }
            Change::Type(other) => *dtype = other,
            Change::Bytes(other) => bytes[..other.len()].copy_from_slice(&other),
            Change::Rename(suffix) => *new_name = format!("{MODULE}.{suffix}"),
        }
        let error = load(&coded, None, Quantize::Auto).err().unwrap_or_else(|| panic!("{named}: taken"));
        assert!(error.message.contains(named) && error.message.contains(MODULE), "{named}: {error}");
        let in_file = error.message.contains("model.safetensors: ");
        assert!(in_file || named.contains("missing") || named.contains("of row"), "{error}");
    }
}

#[test]
fn codes_that_config_json_does_not_declare_are_refused() {
    let (coded, _) = Checkpoint::read(&golden("qwen3-bf16")).in_form(Form::Fp8Blocks);
    let mut config: Value = serde_json::from_str(&coded.config).expect("JSON");
    config.as_object_mut().expect("an object").remove("quantization_config");
    let undeclared = Checkpoint { config: config.to_string(), tensors: coded.tensors.clone() };
    let error = load(&undeclared, None, Quantize::Auto).err().expect("of no form");
    assert!(
        error.message.contains("is stored as F8_E4M3") && error.kind == ModelErrorKind::Unsupported,
        "{error}"
    );
    let (words, _) = Checkpoint::read(&golden("qwen3-bf16")).in_form(Form::Gptq4);
    let words = Checkpoint { config: config.to_string(), tensors: words.tensors };
    let error = load(&words, None, Quantize::Auto).err().expect("of no form").message;
    assert!(
        error.contains("q_proj.weight is missing, but there is") && error.contains("q_proj.qweight;"),
        "{error}"
    );
    config["quantization_config"] = json!({"quant_method": "fp8", "activation_scheme": "dynamic"});
    let other = Checkpoint { config: config.to_string(), tensors: coded.tensors };
    let error = load(&other, None, Quantize::Auto).err().expect("not in blocks");
    assert!(error.message.contains("is not that of a scale per matrix or per output"), "{error}");
}

/// Why `auto` holds such weights as 8-bit integers: these are off by far less than the floats of 8 bits are, whose errors
/// are there already, and take half of what bf16 takes.
#[test]
fn integers_of_8_bits_add_little_to_the_error_that_floats_of_8_bits_have() {
    const SHAPE: [usize; 2] = [256, 512];
    let mut random = infer_kernels::Random::new(3);
    let mut packer = infer_kernels::Packer::new(1).expect("one thread");
    // Outputs of different sizes; with some inputs eight times as large as others, too, and with numbers far from the rest.
    for (name, inputs_apart, outliers) in
        [("even", false, false), ("inputs apart", true, false), ("outliers", false, true)]
    {
        // Near enough to normal: sums of twelve.
        let mut normal = || random.numbers(12).iter().sum::<f32>() / 2.0;
        let mut numbers: Vec<f32> = (0..SHAPE[0] * SHAPE[1]).map(|_| normal()).collect();
        for (at, number) in numbers.iter_mut().enumerate() {
            let (output, input) = (at / SHAPE[1], at % SHAPE[1]);
            *number *= 0.02 * (1.0 + (output % 7) as f32 / 4.0);
            *number *= if inputs_apart && input.is_multiple_of(16) { 8.0 } else { 1.0 };
            *number *= if outliers && at.is_multiple_of(501) { 10.0 } else { 1.0 };
        }
        for form in [Form::Fp8Blocks, Form::Fp8Outputs, Form::Bytes, Form::Gptq4Ordered] {
            let (_, floats) = form.encode("x", SHAPE, &numbers);
            let mut held = |format| {
                let row =
                    |row: usize, out: &mut [f32]| out.copy_from_slice(&floats[row * SHAPE[1]..][..SHAPE[1]]);
                let matrix = packer.matrix(format, SHAPE[0], SHAPE[1], row).expect("it fits");
                let mut all = vec![0.0; floats.len()];
                all.chunks_mut(SHAPE[1]).enumerate().for_each(|(row, out)| matrix.unpack_row(row, 1.0, out));
                all
            };
            let [eight, sixteen] = [infer_kernels::Format::Int8, infer_kernels::Format::Bf16].map(&mut held);
            let before = distance(&floats, &numbers);
            let after = [&eight, &sixteen].map(|held| distance(held, &numbers));
            let own = [&eight, &sixteen].map(|held| distance(held, &floats));
            println!("{name}, {form:?}: {before:.5}; held in 8 and 16 bits {own:.5?}, in all {after:.5?}");
            // Integers of 8 bits are rounded as coarsely as they were.
            let most = if form == Form::Bytes { 2.0 } else { 0.5 };
            assert!(own[0] < 0.012 && own[0] < before * most, "{name}, {form:?}");
            assert!(form == Form::Bytes || after[0] < before * 1.1, "{name}, {form:?}");
        }
    }
}

#[test]
fn codes_of_another_form_than_declared_are_refused() {
    let plain = Checkpoint::read(&golden("qwen3-bf16"));
    for (form, declared) in [
        (Form::Gptq4, Form::Fp8Blocks),
        (Form::Fp8Blocks, Form::Gptq4),
        (Form::Awq, Form::Fp8Blocks),
        (Form::Packed4, Form::Awq),
        (Form::Packed4, Form::Bytes),
        (Form::Bytes, Form::Packed4),
        (Form::Bytes, Form::Gptq8),
    ] {
        let (coded, _) = plain.in_form(form);
        let config = plain.in_form(declared).0.config;
        let error = load(&Checkpoint { config, tensors: coded.tensors }, None, Quantize::Auto).err();
        let error = error.expect("of another form").message;
        assert!(error.contains("is of another form than the quantization_config"), "{form:?}: {error}");
    }
}

/// As of zeros that a checkpoint has though they are none, and of groups that are left open.
#[test]
fn what_says_nothing_is_taken_and_what_contradicts_is_not() {
    let add = |form: Form, suffix: &str, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>| {
        let (mut coded, _) = Checkpoint::read(&golden("qwen3-bf16")).in_form(form);
        coded.tensors.push((format!("model.layers.2.mlp.down_proj.{suffix}"), dtype, shape, bytes));
        load(&coded, None, Quantize::Auto).map(|model| logits(&model)).map_err(|error| error.message)
    };
    let plain = |form: Form| {
        let (coded, _) = Checkpoint::read(&golden("qwen3-bf16")).in_form(form);
        logits(&load(&coded, None, Quantize::Auto).expect("sound"))
    };
    let zeros = |zero: u8| add(Form::Bytes, "weight_zero_point", Dtype::I8, vec![64, 1], vec![zero; 64]);
    assert!(zeros(0) == Ok(plain(Form::Bytes)));
    assert!(zeros(1).expect_err("not symmetric").contains("has zeros other than 0"));
    let indices = |index: fn(usize) -> i32| {
        let bytes = (0..192).flat_map(|input| index(input).to_le_bytes()).collect();
        add(Form::Packed4, "weight_g_idx", Dtype::I32, vec![192], bytes)
    };
    assert!(indices(|_| -1) == Ok(plain(Form::Packed4)));
    assert!(indices(|input| input as i32 / 32) == Ok(plain(Form::Packed4)));
    assert!(indices(|input| 5 - input as i32 / 32).is_ok_and(|logits| logits != plain(Form::Packed4)));
    assert!(indices(|input| input as i32).expect_err("six groups").contains("input 6 is in group 6, of 6"));
    let shared = add(Form::Bytes, "weight_g_idx", Dtype::I32, vec![192], vec![0; 4 * 192]);
    assert!(shared.expect_err("one group").contains("is for groups of inputs, of which there are none"));
}

/// Layers in one form and others in another, as some checkpoints have attention in more bits.
#[test]
fn groups_of_modules_may_have_different_forms() {
    let golden = Checkpoint::read(&golden("llama-bf16"));
    let (four, widened) = golden.in_form(Form::Packed4);
    let (eight, widened_eight) = golden.in_form(Form::Bytes);
    let pick = |a: &[forms::Tensor], b: &[forms::Tensor]| {
        let attends = |name: &str| name.contains("self_attn");
        let own = a.iter().filter(|tensor| !attends(&tensor.0));
        own.chain(b.iter().filter(|tensor| attends(&tensor.0))).cloned().collect::<Vec<_>>()
    };
    let [mut config, other]: [Value; 2] =
        [&four.config, &eight.config].map(|config| serde_json::from_str(config).expect("JSON"));
    let groups = |config: &Value| config["quantization_config"]["config_groups"]["group_0"].clone();
    let [mut of_four, mut of_eight] = [groups(&config), groups(&other)];
    of_four["format"] = json!("pack-quantized");
    of_eight["format"] = json!("int-quantized");
    config["quantization_config"]["format"] = json!("mixed-precision");
    config["quantization_config"]["config_groups"] = json!({"group_0": of_four, "group_1": of_eight});
    let mixed = Checkpoint { config: config.to_string(), tensors: pick(&four.tensors, &eight.tensors) };
    let widened = Checkpoint {
        config: widened.config.clone(),
        tensors: pick(&widened.tensors, &widened_eight.tensors),
    };
    let got = logits(&load(&mixed, Some(DType::F32), Quantize::Auto).expect("sound"));
    assert!(got == logits(&load(&widened, Some(DType::F32), Quantize::Off).expect("sound")));
}

#[test]
fn embeddings_heads_and_routers_may_be_quantized_and_layers_floats() {
    for (name, form) in [
        ("llama-bf16", Form::Gptq4),
        ("llama-bf16", Form::Packed4),
        ("llama-bf16", Form::Fp8Outputs),
        ("qwen3moe-bf16", Form::Awq),
        ("qwen3moe-bf16", Form::Bytes),
    ] {
        let golden = Checkpoint::read(&golden(name));
        let (coded, widened) = golden.with(form, |module| {
            ["lm_head", "embed_tokens", ".gate", "layers.1.self_attn.q_proj"]
                .iter()
                .any(|end| module.ends_with(end))
        });
        let got = logits(&load(&coded, Some(DType::F32), Quantize::Auto).expect("sound"));
        assert!(
            got == logits(&load(&widened, Some(DType::F32), Quantize::Off).expect("sound")),
            "{name}, {form:?}"
        );
        load(&coded, None, Quantize::Auto).expect("sound");
    }
}

/// Shapes, types and bytes that a tensor may as well have: the numbers may be others, but nothing else happens.
#[test]
fn tensors_of_any_shape_type_and_content_are_refused_or_load_and_never_panic() {
    const TYPES: [Dtype; 12] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I64,
        Dtype::I32,
        Dtype::I8,
        Dtype::U8,
        Dtype::F8_E4M3,
        Dtype::F8_E5M2,
        Dtype::F8_E8M0,
        Dtype::BOOL,
        Dtype::I16,
    ];
    let (mut refused, mut taken) = (0, 0);
    for (number, form) in ALL.into_iter().enumerate() {
        // The first has sizes that are no multiples of 8, which AWQ needs.
        let name = if form == Form::Awq { "qwen3-bf16" } else { "qwen2-bf16" };
        let plain = Checkpoint::read(&golden(name));
        for seed in 0..60 {
            let mut random = infer_kernels::Random::new(seed << 8 | number as u64);
            let (mut coded, _) = plain.in_form(form);
            let at = random.size(0, coded.tensors.len() - 1);
            let (_, dtype, shape, bytes) = &mut coded.tensors[at];
            match random.size(0, 3) {
                0 => bytes.iter_mut().for_each(|byte| *byte = random.bits() as u8),
                1 => *dtype = random.one_of(&TYPES),
                2 => shape.reverse(),
                _ => shape.iter_mut().for_each(|side| *side = random.size(0, 2 * *side)),
            }
            let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            bytes.resize(len, 0x5a);
            match load(&coded, None, random.one_of(&[Quantize::Auto, Quantize::Q4, Quantize::Off])) {
                Ok(_) => taken += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 100 && taken > 20, "{refused} refused, {taken} taken");
}

/// Sizes that a configuration may claim: groups, blocks and matrices far larger than the tensors.
#[test]
fn claims_about_groups_and_blocks_are_held_against_the_tensors() {
    let plain = Checkpoint::read(&golden("qwen3-bf16"));
    for (form, key, value) in [
        (Form::Fp8Blocks, "weight_block_size", json!([1_048_576, 1_048_576])),
        (Form::Fp8Blocks, "weight_block_size", json!([1, 1])),
        (Form::Gptq4, "group_size", json!(1_048_576)),
        (Form::Gptq4, "group_size", json!(1)),
        (Form::Gptq4, "group_size", json!(-1)),
        (Form::Gptq4, "bits", json!(8)),
        (Form::Awq, "group_size", json!(1_048_576)),
        (Form::Awq, "group_size", json!(-1)),
    ] {
        let (coded, _) = plain.in_form(form);
        let mut config: Value = serde_json::from_str(&coded.config).expect("JSON");
        config["quantization_config"][key] = value.clone();
        let other = Checkpoint { config: config.to_string(), tensors: coded.tensors };
        let error =
            load(&other, None, Quantize::Auto).err().unwrap_or_else(|| panic!("{key} {value}: taken"));
        assert!(error.message.contains("has shape"), "{key} {value}: {error}");
    }
}

/// As earlier versions of compressed-tensors stored them.
#[test]
fn zeros_of_packed_integers_may_be_bytes() {
    let (mut coded, _) = Checkpoint::read(&golden("qwen3-bf16")).in_form(Form::Packed4);
    let want = logits(&load(&coded, None, Quantize::Auto).expect("sound"));
    for (name, dtype, shape, bytes) in &mut coded.tensors {
        if !name.ends_with(".weight_zero_point") {
            continue;
        }
        let [words, count] = shape[..] else { panic!("a matrix") };
        let zero = |row: usize, group: usize| {
            bytes[4 * (row / 8 * count + group) + row % 8 / 2] >> (row % 2 * 4) & 15
        };
        let outputs = 8 * words;
        let zeros = (0..outputs * count).map(|at| zero(at / count, at % count).wrapping_sub(8)).collect();
        (*dtype, *shape, *bytes) = (Dtype::I8, vec![outputs, count], zeros);
    }
    assert!(logits(&load(&coded, None, Quantize::Auto).expect("sound")) == want);
}
