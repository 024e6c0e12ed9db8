//! Runs policies as WebAssembly components.
