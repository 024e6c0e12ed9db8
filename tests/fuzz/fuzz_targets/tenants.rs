//! Feeds bytes to `edges::tenants`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::tenants(bytes));
