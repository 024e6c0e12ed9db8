//! Feeds bytes to `edges::adapter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::adapter(bytes));
