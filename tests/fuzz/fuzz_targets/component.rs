//! Feeds bytes to `edges::component`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::component(bytes));
