//! Feeds bytes to `edges::template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::template(bytes));
