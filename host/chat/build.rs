//! Builds the renderer to the module that `src/sandbox.rs` includes.

fn main() -> anyhow::Result<()> {
    let sources = ["host/chat/guest", "host/sandbox/guest"];
    infer_policy_build::include_module("infer-chat-guest", &sources, "renderer.wasm")
}
