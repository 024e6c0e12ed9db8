//! Feeds bytes to `edges::grammar`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // The host catches panics of a library here; those that reach the fuzzer still end it.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| infer_server::edges::grammar(bytes)
);
