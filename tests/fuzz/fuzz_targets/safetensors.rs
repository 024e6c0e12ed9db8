//! Feeds bytes to `edges::safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::safetensors(bytes));
