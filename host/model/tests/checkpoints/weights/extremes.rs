//! Numbers of checkpoints that can't be computed with: refused when they are loaded, with the tensor and the place there.

use std::ops::ControlFlow;

use infer_model::{DType, LoadOptions, Model, ModelError, Source};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::read;

/// Loads the small gpt-oss with some bytes of a tensor of its third layer replaced.
fn load(tensor: &str, at: usize, bytes: &[u8], dtype: Option<DType>) -> Result<(), ModelError> {
    let [config, whole] = ["config.json", "model.safetensors"].map(|file| read("gptoss-mxfp4", file));
    let tensors = SafeTensors::deserialize(&whole).expect("sound").tensors();
    let name = format!("model.layers.2.{tensor}");
    let (_, view) = tensors.iter().find(|(other, _)| *other == name).expect("it is there");
    let mut changed = view.data().to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    let views = tensors.iter().map(|(other, view)| {
        let data = if *other == name { &changed[..] } else { view.data() };
        let view = TensorView::new(view.dtype(), view.shape().to_vec(), data);
        (other.clone(), view.expect("the same size"))
    });
    let weights = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("names are unique");
    let files: [(&str, &[u8]); 2] = [("config.json", &config), ("model.safetensors", &weights)];
    let options = LoadOptions { dtype, ..LoadOptions::default() };
    Model::load_with(&Source::Embedded(&files), &options, &mut |_| ControlFlow::Continue(())).map(drop)
}

#[test]
fn blocks_whose_exponents_overflow_or_are_none_are_refused() {
    for (exponent, dtype) in [(240, None), (255, None), (254, Some(DType::F32)), (255, Some(DType::Bf16))] {
        // Of each of eight experts, 64 rows of two blocks, and 128.
        for (tensor, rows, row) in [("down_proj", 64, 5), ("gate_up_proj", 128, 6), ("gate_up_proj", 128, 7)]
        {
            let at = (3 * rows + row) * 2 + 1;
            let error =
                load(&format!("mlp.experts.{tensor}_scales"), at, &[exponent], dtype).expect_err(tensor);
            let named =
                format!("tensor model.layers.2.mlp.experts.{tensor}_blocks[3]: block 1 of row {row} ");
            assert!(error.message.contains(&named), "{error}");
            assert!(error.message.contains(&format!("has the exponent {exponent}")), "{error}");
        }
    }
    load("mlp.experts.down_proj_scales", 9, &[239], None).expect("it can be computed with");
}

#[test]
fn sinks_above_all_scores_are_refused() {
    // As bf16.
    let sink = |number: f32| load("self_attn.sinks", 6, &number.to_le_bytes()[2..], None);
    for number in [f32::INFINITY, f32::NAN] {
        let error = sink(number).expect_err("no score");
        let named = "tensor model.layers.2.self_attn.sinks: the sink of head 3 is ";
        assert!(error.message.contains(named), "{error}");
    }
    for number in [f32::NEG_INFINITY, 3e38, -3e38] {
        sink(number).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
}
