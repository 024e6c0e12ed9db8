//! Feeds bytes to `edges::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::messages(bytes));
