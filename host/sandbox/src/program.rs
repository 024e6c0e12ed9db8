//! A module, compiled: once for a process, or taken from a cache of compiled code.

use std::path::Path;
use std::sync::Arc;

use wasmtime::{Config, Engine, InstancePre, Linker, OptLevel};

use crate::bounds::{Bounds, Limits};

/// A program that instances run. Clones share the compiled code.
#[derive(Clone)]
pub struct Program(pub(crate) Arc<Compiled>);

pub(crate) struct Compiled {
    pub(crate) name: &'static str,
    pub(crate) bounds: Bounds,
    pub(crate) pre: InstancePre<Limits>,
}

/// The machine refuses what wasmtime needs, or the module isn't one that can run here.
#[derive(Debug, thiserror::Error)]
#[error("the {name} can't be set up: {why}")]
pub struct SetupError {
    name: &'static str,
    why: String,
}

impl Program {
    /// Compiles `module`, or finds it in `cache_dir`, which must be private to this user. Blocks: compiling takes from
    /// some hundred milliseconds to seconds. `name` says in errors what the program is ("renderer").
    ///
    /// # Errors
    /// The machine refuses what wasmtime needs.
    pub fn new(
        name: &'static str,
        module: &[u8],
        bounds: Bounds,
        cache_dir: Option<&Path>,
    ) -> Result<Self, SetupError> {
        let pre = Engine::new(&engine_config(&bounds)).and_then(|engine| {
            let module = infer_wasm::compile_module(&engine, module, cache_dir)?;
            Linker::new(&engine).instantiate_pre(&module)
        });
        match pre {
            Ok(pre) => Ok(Self(Arc::new(Compiled { name, bounds, pre }))),
            Err(error) => Err(SetupError { name, why: format!("{error:#}") }),
        }
    }
}

fn engine_config(bounds: &Bounds) -> Config {
    let mut config = infer_wasm::bare_config();
    config
        .consume_fuel(true)
        // The module is optimized already: Cranelift's part makes calls 5 % quicker and takes a third more time.
        .cranelift_opt_level(OptLevel::None)
        .max_wasm_stack(bounds.stack_bytes)
        // Instances are made where none is idle, so their memory comes on demand and begins as a copy: an image to
        // map would save nothing and count as a file where files are limited.
        .memory_init_cow(false);
    config
}
