//! Feeds bytes to `edges::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::request(bytes));
