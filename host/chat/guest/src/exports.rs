//! What the host calls, beside the protocol's own exports: `load` once, then `render` for each conversation.
#![allow(unsafe_code, reason = "a name that is exported as it stands is an unsafe attribute")]

use std::cell::RefCell;

use infer_sandbox_guest::answer;

use crate::renderer::Renderer;
use crate::wire::Reader;

thread_local! {
    static RENDERER: RefCell<Option<Renderer>> = RefCell::default();
}

/// Takes the template in the request: its text, then its special tokens.
#[unsafe(no_mangle)]
extern "C" fn load() -> u64 {
    answer(|request| {
        let mut reader = Reader::new(&request);
        let parts = reader.text().and_then(|template| Ok((template.to_owned(), reader.context()?)));
        let (template, special) = parts.map_err(|malformed| format!("{malformed:?}"))?;
        RENDERER.set(Some(Renderer::new(template, special)?));
        Ok(String::new())
    })
}

/// Renders the context in the request.
#[unsafe(no_mangle)]
extern "C" fn render() -> u64 {
    answer(|request| {
        let context = Reader::new(&request).context().map_err(|malformed| format!("{malformed:?}"))?;
        let request_bytes = request.len();
        // Its values are copies: rendering may have the memory.
        drop(request);
        RENDERER.with_borrow(|renderer| match renderer {
            Some(renderer) => renderer.render(context, request_bytes),
            None => Err("there is no template".to_owned()),
        })
    })
}
