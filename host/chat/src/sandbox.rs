//! Where templates are rendered, and what one render may take.

use std::path::Path;

use infer_model::ModelError;
use infer_sandbox::{Bounds, Failure, Function, Instance, Program};

const RENDERER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/renderer.wasm"));

/// Honest renders are far from all of it; `tests/memory.rs` measures their memory. The part per byte of a request is for
/// its values, the prompt, and what filters make on the way. The fuel is a few tenths of a second.
const BOUNDS: Bounds = Bounds {
    memory_bytes: 64 << 20,
    memory_per_byte: 8,
    fuel: 2_000_000_000,
    fuel_per_byte: 2_000,
    // The threads that render have 2 MiB.
    stack_bytes: 512 << 10,
};

/// Where templates are rendered. Clones share the compiled renderer.
#[derive(Clone)]
pub struct Sandbox(Program);

impl Sandbox {
    /// Compiles the renderer, or finds it in `cache_dir`, which must be private to this user. Blocks: compiling
    /// takes some hundred milliseconds.
    ///
    /// # Errors
    /// The machine refuses what wasmtime needs.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, ModelError> {
        let program = Program::new("renderer", RENDERER, BOUNDS, cache_dir);
        program.map(Self).map_err(|error| ModelError::machine(error.to_string()))
    }
}

/// An instance of the renderer with one template in it.
pub(crate) struct Renderer {
    instance: Instance,
    render: Function,
}

impl Renderer {
    /// A renderer that has taken the template in `request`.
    pub(crate) fn new(sandbox: &Sandbox, request: &[u8]) -> Result<Self, Failure> {
        let mut instance = Instance::new(&sandbox.0)?;
        let load = instance.function("load")?;
        let render = instance.function("render")?;
        instance.call(&load, request)?;
        Ok(Self { instance, render })
    }

    /// The prompt for the context in `request`. Of further use only after success and `Failure::Refused`.
    pub(crate) fn render(&mut self, request: &[u8]) -> Result<String, Failure> {
        self.instance.call(&self.render, request)
    }

    /// Memory that it holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.instance.memory_bytes()
    }
}
