//! Generated bindings of the world `admission-policy`, reached through `infer-policy-sdk` alone.
//!
//! A crate of its own because the generated export macros are at a crate's root, where those of two worlds
//! that export the same interface would collide. Empty unless a component is built.
#![cfg(all(target_arch = "wasm32", target_os = "unknown"))]
#![allow(missing_docs, reason = "generated")]

wit_bindgen::generate!({ path: "../../../../wit", world: "admission-policy", pub_export_macro: true });
