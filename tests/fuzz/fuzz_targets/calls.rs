//! Feeds bytes to `edges::calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::calls(bytes));
