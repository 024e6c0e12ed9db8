//! The crate's only unsafe code: making machine code from the cache executable.
#![allow(unsafe_code, reason = "wasmtime can't check precompiled code, so loading it is unsafe")]

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::cache::TrustedArtifact;

/// Loads what wasmtime made of a component earlier. Wasmtime itself refuses another version or configuration.
pub(crate) fn component(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must come from wasmtime's own compiler, unchanged. A `TrustedArtifact` was read from
    // a file that this user owns and no other user can write (0600, in a 0700 directory, checked on the open
    // file, symbolic links refused), and a SHA-256 at its end shows that it is complete. An attacker who can
    // forge that can replace this program as well. It is read into memory before it is checked.
    unsafe { Component::deserialize(engine, artifact.bytes()) }
}

/// Loads what wasmtime made of a core module earlier.
pub(crate) fn module(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Module> {
    // SAFETY: as for a component.
    unsafe { Module::deserialize(engine, artifact.bytes()) }
}
