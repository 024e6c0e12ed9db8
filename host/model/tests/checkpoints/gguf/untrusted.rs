//! Broken and malicious files: what they claim is checked, and nothing panics.

use candle_core::quantized::GgmlDType;
use infer_model::{DType, Model, ModelConfig, ModelError, Source, Tokenizer};
use proptest::prelude::*;

use crate::{convert, read};

fn mixed() -> Vec<u8> {
    read("gguf-mixed", "model.gguf")
}

/// Runs everything that reads a GGUF file.
fn load(bytes: &[u8]) -> Result<(), ModelError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("it can be written");
    let source = Source::gguf(file.path())?;
    ModelConfig::load(&source)?;
    Tokenizer::load(&source)?;
    source.read("tokenizer_config.json")?;
    Model::load(&source, Some(DType::F32)).map(drop)
}

/// The file with the bytes at `offset` after the first `needle` replaced.
fn with(needle: &str, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = mixed();
    let at = file.windows(needle.len()).position(|part| part == needle.as_bytes()).expect("it is there");
    let start = at + needle.len() + offset;
    file[start..start + bytes.len()].copy_from_slice(bytes);
    file
}

fn renamed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    with(from, 0, &[]);
    let mut file = mixed();
    let at = file.windows(from.len()).position(|part| part == from.as_bytes()).expect("it is there");
    file[at..at + to.len()].copy_from_slice(to.as_bytes());
    file
}

/// The file with 8,192 more bytes, a multiple of the tensors' alignment, in the last token before two fillers.
fn with_a_long_token() -> Vec<u8> {
    let (mut file, key) = (mixed(), b"tokenizer.ggml.tokens");
    let number = |file: &[u8], at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let key = file.windows(key.len()).position(|part| part == key).expect("it is there") + key.len();
    // The array's type, its elements' and their number; each text follows its length.
    let (tokens, mut at) = (number(&file, key + 8), key + 16);
    for _ in 3..tokens {
        at += 8 + number(&file, at) as usize;
    }
    let longer = number(&file, at) + 8_192;
    file[at..at + 8].copy_from_slice(&longer.to_le_bytes());
    file.splice(at + 8..at + 8, std::iter::repeat_n(b'a', 8_192));
    file
}

/// The file with the width of the feed-forward layers as an array of halves, 32 bytes longer.
fn with_half_a_width() -> Vec<u8> {
    let (mut file, key) = (mixed(), b"llama.feed_forward_length");
    let at = file.windows(key.len()).position(|part| part == key).expect("it is there") + key.len();
    let (array, f32s, count) = (9_u32.to_le_bytes(), 6_u32.to_le_bytes(), 6_u64.to_le_bytes());
    let value = [&array[..], &f32s, &count, &176.5_f32.to_le_bytes().repeat(6)].concat();
    file.splice(at..at + 8, value);
    file
}

#[test]
fn what_a_file_claims_is_checked_and_the_key_or_tensor_is_named() {
    load(&mixed()).expect("the file itself is sound");
    let huge = u64::MAX.to_le_bytes();
    let mut tensors = mixed();
    tensors[8..16].copy_from_slice(&huge);
    let mut keys = mixed();
    keys[16..24].copy_from_slice(&(1_u64 << 13).to_le_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("GGUF", b"GGUX".to_vec()),
        ("truncated", b"GGUF\x03".to_vec()),
        ("version 7", [b"GGUF".as_slice(), &7_u32.to_le_bytes(), &[0; 16]].concat()),
        ("18446744073709551615 tensors", tensors),
        ("a name of a metadata key", keys),
        // A key's value begins with its type; a text and an array follow with their lengths.
        ("general.architecture", with("general.architecture", 4, &huge)),
        ("value type 99", with("llama.block_count", 0, &99_u32.to_le_bytes())),
        ("llama.block_count", with("llama.block_count", 4, &0_u32.to_le_bytes())),
        ("llama.block_count", with("llama.block_count", 4, &u32::MAX.to_le_bytes())),
        ("llama.attention.head_count", with("llama.attention.head_count", 4, &0_u32.to_le_bytes())),
        ("llama.attention.value_length", with("llama.attention.value_length", 4, &16_u32.to_le_bytes())),
        ("tokenizer.ggml.tokens", with("tokenizer.ggml.tokens", 8, &huge)),
        ("tokenizer.ggml.tokens", with("tokenizer.ggml.tokens", 8, &(1_u64 << 20).to_le_bytes())),
        ("bytes, more than 256", with_a_long_token()),
        ("176.5", with_half_a_width()),
        ("tokenizer.ggml.bos_token_id", with("tokenizer.ggml.bos_token_id", 4, &77_u32.to_le_bytes())),
        ("tokenizer.ggml.scores", renamed("tokenizer.ggml.scores", "tokenizer.ggml.xxxxxx")),
        // A tensor's name is followed by the number of its dimensions, these, its type and its offset.
        ("9 dimensions", with("token_embd.weight", 0, &9_u32.to_le_bytes())),
        ("impossible shape", with("token_embd.weight", 4, &huge)),
        ("impossible shape", with("token_embd.weight", 4, &0_u64.to_le_bytes())),
        ("which Q6K can't hold", with("token_embd.weight", 4, &100_u64.to_le_bytes())),
        ("beyond the end", with("token_embd.weight", 12, &(1_u64 << 30).to_le_bytes())),
        ("ggml type 77", with("token_embd.weight", 20, &77_u32.to_le_bytes())),
        ("beyond the end", with("token_embd.weight", 24, &(u64::MAX - 7).to_le_bytes())),
        ("not a multiple of 32", with("token_embd.weight", 24, &8_u64.to_le_bytes())),
        ("blk.1.ffn_up.weight is missing", renamed("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight")),
        ("appears twice", renamed("blk.1.ffn_up.weight", "blk.0.ffn_up.weight")),
        ("has shape [32, 256]", with("llama.feed_forward_length", 4, &64_u32.to_le_bytes())),
    ];
    for (named, bytes) in cases {
        let error = load(&bytes).err().unwrap_or_else(|| panic!("{named} was taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
    let error = load(&mixed()[..100_000]).expect_err("half the file").message;
    assert!(error.contains("tensor ") && error.contains("truncated"), "{error}");
}

#[test]
fn missing_or_misshapen_experts_of_a_file_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = convert::convert("qwen3moe-bf16", GgmlDType::Q8_0, directory.path());
    let sound = std::fs::read(&path).expect("it is there");
    // A key's value begins with its type; the last letter of a tensor's name precedes its dimensions.
    for (needle, offset, bytes, named) in [
        ("qwen3moe.expert_count", 4, 4_u32.to_le_bytes(), "ffn_gate_inp.weight has shape [8, 64]"),
        (
            "qwen3moe.expert_feed_forward_length",
            4,
            64_u32.to_le_bytes(),
            "blk.0.ffn_gate_exps.weight has shape [8, 32, 64], the metadata requires [8, 64, 64]",
        ),
        ("blk.2.ffn_up_exps.", 0, *b"xeig", "blk.2.ffn_up_exps.weight is missing"),
        ("blk.3.ffn_gate_inp.", 0, *b"xeig", "blk.3.ffn_gate_inp.weight is missing"),
    ] {
        let mut file = sound.clone();
        let at = file.windows(needle.len()).position(|part| part == needle.as_bytes()).expect("it is there");
        file[at + needle.len() + offset..][..4].copy_from_slice(&bytes);
        std::fs::write(&path, file).expect("it can be written");
        let loaded = Source::gguf(&path).and_then(|source| Model::load(&source, None));
        let error = loaded.err().unwrap_or_else(|| panic!("{needle}: taken"));
        assert!(error.message.contains(named), "{named}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn broken_files_are_refused_or_load_and_never_panic(
        changes in prop::collection::vec((0_usize..5_000, any::<u8>()), 1..4),
        cut in prop::option::of(0_usize..171_776),
    ) {
        let mut file = mixed();
        for (at, byte) in changes {
            file[at] = byte;
        }
        file.truncate(cut.unwrap_or(file.len()));
        let _ = load(&file);
    }
}
