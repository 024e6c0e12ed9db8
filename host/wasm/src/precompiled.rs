//! The crate's only unsafe code: making machine code from the cache executable.
#![allow(unsafe_code, reason = "wasmtime can't check precompiled code, so loading it is unsafe")]

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::cache::TrustedArtifact;

/// Loads what `Engine::precompile_component` made earlier. Wasmtime itself refuses another version or configuration.
pub(crate) fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must come from wasmtime's own compiler, unchanged. A `TrustedArtifact` was read
    // from a file that this user owns and nobody else can write (0600, in a 0700 directory, checked
    // on the open file, symbolic links refused), and a SHA-256 at its end shows that it is whole.
    // Who can forge that can replace this program as well. It is read into memory before it is checked.
    unsafe { Component::deserialize(engine, artifact.bytes()) }
}
