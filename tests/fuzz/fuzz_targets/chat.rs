//! Feeds bytes to `edges::chat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::chat(bytes));
