//! Builds the compiler of grammars to the module that `src/lib.rs` includes.

fn main() -> anyhow::Result<()> {
    let sources = ["host/grammar/guest", "host/grammar/clockless", "host/sandbox/guest"];
    infer_policy_build::include_module("infer-grammar-guest", &sources, "compiler.wasm")
}
