//! Feeds bytes to `edges::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::trace(bytes));
