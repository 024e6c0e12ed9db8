//! Feeds bytes to `edges::tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::tokenizer(bytes));
