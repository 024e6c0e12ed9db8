//! Feeds bytes to `edges::policy_state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| infer_server::edges::policy_state(bytes));
