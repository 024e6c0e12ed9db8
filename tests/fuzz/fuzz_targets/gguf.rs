//! Feeds bytes to `edges::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    // The host catches panics of a library here; an uncaught one still ends the fuzzer.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| infer_server::edges::gguf(bytes)
);
