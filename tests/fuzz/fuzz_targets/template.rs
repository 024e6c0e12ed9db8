//! Feeds bytes to `edges::template`, whose renderer libFuzzer can't see into: it is WebAssembly. So templates are also
//! compiled by the same renderer, natively. They aren't rendered there, where nothing bounds what that takes.
#![no_main]

use infer_chat_guest::{Context, Renderer};

/// Parsing recurses with some of a template's length; longer ones are the sandbox's.
const COMPILED_BYTES: usize = 4_096;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(&bytes[..bytes.len().min(COMPILED_BYTES)]) {
        let _ = Renderer::new(text.to_owned(), Context::new());
    }
    infer_server::edges::template(bytes);
});
