//! Feeds bytes to `edges::model_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::model_config(bytes));
