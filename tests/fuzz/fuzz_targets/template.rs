//! Feeds bytes to `edges::template`, which renders in WebAssembly without coverage. So the native build of the renderer also
//! compiles the templates. It doesn't render them, because nothing limits the cost there.
#![no_main]

use infer_chat_guest::{Context, Renderer};

/// The parser recurses with the length of a template; longer ones only run in the sandbox.
const COMPILED_BYTES: usize = 4_096;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(&bytes[..bytes.len().min(COMPILED_BYTES)]) {
        let _ = Renderer::new(text.to_owned(), Context::new());
    }
    infer_server::edges::template(bytes);
});
