//! Compiled code: from the cache where that holds it, else by compiling. A cache that fails only costs time.

use std::path::Path;

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::cache::{Cache, TrustedArtifact};
use crate::{check, precompiled};

/// What wasmtime compiles, in the ways that it can be had.
pub(crate) trait Code: Sized {
    fn compile(engine: &Engine, source: &[u8]) -> wasmtime::Result<Self>;
    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self>;
    fn serialize(&self) -> wasmtime::Result<Vec<u8>>;
}

/// Compiles a core module of the host's own for an engine of the caller's. Compiled code is kept in `cache_dir`,
/// which must be private to this user.
///
/// # Errors
/// It is no module, or uses what the engine has switched off.
pub fn compile_module(engine: &Engine, module: &[u8], cache_dir: Option<&Path>) -> wasmtime::Result<Module> {
    let cache = cache_dir.and_then(|dir| cache(dir, engine));
    from_cache_or_source(engine, cache.as_ref(), module, &check::digest(module))
}

/// Opens a cache directory. One that can't be used is reported in the log and left alone.
pub(crate) fn cache(dir: &Path, engine: &Engine) -> Option<Cache> {
    Cache::open(dir, engine)
        .inspect_err(|error| {
            let dir = dir.display();
            tracing::warn!("compiled code is not kept: the cache directory {dir} {error}");
        })
        .ok()
}

pub(crate) fn from_cache_or_source<C: Code>(
    engine: &Engine,
    cache: Option<&Cache>,
    source: &[u8],
    digest: &str,
) -> wasmtime::Result<C> {
    let Some(cache) = cache else { return C::compile(engine, source) };
    match cache.get(digest).and_then(|artifact| {
        artifact.map(|artifact| C::load(engine, &artifact).map_err(std::io::Error::other)).transpose()
    }) {
        Ok(Some(compiled)) => return Ok(compiled),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!("the compiled code {digest} is not used, it is compiled again: {error}");
        }
    }
    let compiled = C::compile(engine, source)?;
    let kept =
        compiled.serialize().map_err(std::io::Error::other).and_then(|bytes| cache.put(digest, &bytes));
    if let Err(error) = kept {
        tracing::warn!("the compiled code {digest} could not be kept: {error}");
    }
    Ok(compiled)
}

impl Code for Component {
    fn compile(engine: &Engine, source: &[u8]) -> wasmtime::Result<Self> {
        Self::from_binary(engine, source)
    }

    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self> {
        precompiled::component(engine, artifact)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Self::serialize(self)
    }
}

impl Code for Module {
    fn compile(engine: &Engine, source: &[u8]) -> wasmtime::Result<Self> {
        Self::from_binary(engine, source)
    }

    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self> {
        precompiled::module(engine, artifact)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Self::serialize(self)
    }
}
