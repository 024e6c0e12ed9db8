//! Feeds bytes to `edges::events`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::events(bytes));
