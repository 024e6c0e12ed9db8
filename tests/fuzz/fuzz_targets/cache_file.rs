//! Feeds bytes to `edges::cache_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::cache_file(bytes));
