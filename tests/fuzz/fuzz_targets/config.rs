//! Feeds bytes to `edges::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::config(bytes));
