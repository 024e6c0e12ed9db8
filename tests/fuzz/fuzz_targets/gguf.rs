//! Feeds bytes to `edges::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::gguf(bytes));
