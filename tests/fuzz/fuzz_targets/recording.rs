//! Feeds bytes to `edges::recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::recording(bytes));
