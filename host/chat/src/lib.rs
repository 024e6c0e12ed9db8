//! A checkpoint's chat template: messages to one prompt, in a sandbox.
//!
//! Templates are Jinja programs that come with a model, so they are untrusted input. The renderer
//! (`host/chat/guest`) bounds a template's instructions and its prompt, but one instruction may double a value or
//! recurse, and the memory and the stack that this takes are the host's where the renderer is. So it is a
//! WebAssembly module without imports: memory, stack and time of a render end at limits, and a render that reaches
//! one costs its instance and nothing else.
//!
//! Deliberately absent: what the host makes of the answer (`infer-server`), tokens (`infer-model`).
#![forbid(unsafe_code)]

mod sandbox;
mod template;
mod wire;

pub use sandbox::Sandbox;
pub use template::{ChatTemplate, Reads, Tools};
