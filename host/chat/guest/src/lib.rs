//! The renderer of chat templates: Jinja as Hugging Face's renderer reads it.
//!
//! It is compiled to a core WebAssembly module without imports, which `infer-chat` runs within limits. Natively
//! this crate is the oracle of that crate's tests and benchmark, and no part of the host. A component would add
//! types, generated code and checks of text to an interface that is bytes in and text out.
#![deny(unsafe_code)]

mod date;
#[cfg(target_arch = "wasm32")]
mod exports;
mod generation;
mod json;
mod renderer;
pub mod wire;

pub use renderer::{Context, Renderer};
