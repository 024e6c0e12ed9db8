//! GGUF files: golden checkpoints written as GGUF compute and tokenize like their safetensors; every type of block is read as
//! by another implementation; and files are never trusted.

mod computed;
mod config;
mod tokenizer;
mod untrusted;

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use infer_model::Source;

/// Types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// A llama file with a SentencePiece vocabulary (texts and token types) and no weights but the embedding's rows, which is
/// enough for configuration and tokenizer. `more` are further keys, or other values of these.
fn made(tokens: &[(String, i32)], more: &[(&str, Value)]) -> Source<'static> {
    made_with(tokens, more, &[])
}

/// The same with further tensors of one row.
fn made_with(tokens: &[(String, i32)], more: &[(&str, Value)], rows: &[(&str, &[f32])]) -> Source<'static> {
    let number = |key: &str, number: u32| (format!("llama.{key}"), Value::U32(number));
    let array = |values: Vec<Value>| Value::Array(values);
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String("llama".to_owned())),
        number("block_count", 1),
        number("context_length", 128),
        number("embedding_length", 8),
        number("feed_forward_length", 8),
        number("attention.head_count", 2),
        ("tokenizer.ggml.model".to_owned(), Value::String("llama".to_owned())),
    ];
    let texts = tokens.iter().map(|(text, _)| Value::String(text.clone())).collect();
    let scores = (0..tokens.len()).map(|id| Value::F32(-(id as f32))).collect();
    metadata.push(("tokenizer.ggml.tokens".to_owned(), array(texts)));
    metadata.push(("tokenizer.ggml.scores".to_owned(), array(scores)));
    let kinds = tokens.iter().map(|(_, kind)| Value::I32(*kind)).collect();
    metadata.push(("tokenizer.ggml.token_type".to_owned(), array(kinds)));
    metadata.retain(|(key, _)| more.iter().all(|(other, _)| other != key));
    metadata.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let stored = |tensor: Tensor| QTensor::quantize(&tensor, GgmlDType::F32).expect("numbers");
    let embedding = Tensor::zeros((tokens.len(), 1), candle_core::DType::F32, &Device::Cpu);
    let mut tensors = vec![("token_embd.weight", stored(embedding.expect("zeros")))];
    for (name, row) in rows {
        tensors.push((*name, stored(Tensor::new(*row, &Device::Cpu).expect("numbers"))));
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    write(&mut file, &metadata, &tensors).expect("candle writes GGUF");
    Source::gguf(file.path()).expect("a sound file")
}

fn tokens(of: &[(&str, i32)]) -> Vec<(String, i32)> {
    of.iter().map(|(text, kind)| ((*text).to_owned(), *kind)).collect()
}
