//! The renderer, compiled: once for a process, or taken from a cache of compiled code.
//!
//! Calls end by fuel and not by a clock, so whether a template renders depends on the template and the messages
//! alone. Instances are made where none is idle, so their memory comes on demand and begins as a copy: an image
//! to map would save nothing and count as a file where files are limited.

use std::path::Path;

use infer_model::ModelError;
use wasmtime::{Config, Engine, InstancePre, Linker, OptLevel};

use crate::limits::Limits;

const RENDERER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/renderer.wasm"));

/// Stack of a call. The threads that render have 2 MiB.
const STACK_BYTES: usize = 512 << 10;

/// Where templates are rendered. Clones share the compiled renderer.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) pre: InstancePre<Limits>,
}

impl Sandbox {
    /// Compiles the renderer, or finds it in `cache_dir`, which must be private to this user. Blocks: compiling
    /// takes some hundred milliseconds.
    ///
    /// # Errors
    /// The machine refuses what wasmtime needs.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, ModelError> {
        let pre = Engine::new(&engine_config()).and_then(|engine| {
            let module = infer_wasm::compile_module(&engine, RENDERER, cache_dir)?;
            Linker::new(&engine).instantiate_pre(&module)
        });
        pre.map(|pre| Self { pre })
            .map_err(|error| ModelError::template(format!("the renderer can't be set up: {error:#}")))
    }
}

fn engine_config() -> Config {
    let mut config = infer_wasm::bare_config();
    config
        .consume_fuel(true)
        // The module is optimized already: what Cranelift adds makes renders 5 % quicker and compiling takes a third
        // longer by it.
        .cranelift_opt_level(OptLevel::None)
        .max_wasm_stack(STACK_BYTES)
        .memory_init_cow(false);
    config
}
