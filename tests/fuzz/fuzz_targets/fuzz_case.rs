//! Feeds bytes to `edges::fuzz_case`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::fuzz_case(bytes));
