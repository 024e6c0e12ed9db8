//! Compiled code: from the cache if possible, else by compiling. A cache that fails only costs time.

use std::path::Path;

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::cache::{Cache, TrustedArtifact};
use crate::{check, precompiled};

/// What wasmtime compiles, and how it is kept.
pub(crate) trait Code: Sized {
    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self>;
    fn serialize(&self) -> wasmtime::Result<Vec<u8>>;
}

/// Compiles a core module of the host's own for a given engine. Compiled code is kept in `cache_dir`, which
/// must be private to this user; one that can't be used isn't, and only the loader of policies warns of it.
///
/// # Errors
/// It is no module, or uses features that the engine has disabled.
pub fn compile_module(engine: &Engine, module: &[u8], cache_dir: Option<&Path>) -> wasmtime::Result<Module> {
    let cache = cache_dir.and_then(|dir| Cache::open(dir, engine).ok());
    let compile = || Module::from_binary(engine, module);
    let compiled = from_cache_or(engine, cache.as_ref(), check::digest(module), compile)?;
    compiled.keep(cache.as_ref());
    Ok(compiled.code)
}

/// Compiled code that isn't kept until its owner asks for it: keeping refused components would evict accepted
/// ones.
pub(crate) struct Compiled<C> {
    pub(crate) code: C,
    digest: String,
    from_cache: bool,
}

impl<C: Code> Compiled<C> {
    /// Keeps it in the cache.
    pub(crate) fn keep(&self, cache: Option<&Cache>) {
        let Some(cache) = cache.filter(|_| !self.from_cache) else { return };
        let serialized = self.code.serialize().map_err(std::io::Error::other);
        if let Err(error) = serialized.and_then(|bytes| cache.put(&self.digest, &bytes)) {
            tracing::warn!("the compiled code {} could not be kept: {error}", self.digest);
        }
    }
}

/// Opens a cache directory. One that can't be used is logged and not used.
pub(crate) fn cache(dir: &Path, engine: &Engine) -> Option<Cache> {
    Cache::open(dir, engine)
        .inspect_err(|error| {
            tracing::warn!("compiled code is not kept: the cache directory {}: {error}", dir.display());
        })
        .ok()
}

pub(crate) fn from_cache_or<C: Code, E>(
    engine: &Engine,
    cache: Option<&Cache>,
    digest: String,
    compile: impl FnOnce() -> Result<C, E>,
) -> Result<Compiled<C>, E> {
    let found = cache.map_or(Ok(None), |cache| cache.get(&digest)).and_then(|artifact| {
        artifact.map(|artifact| C::load(engine, &artifact).map_err(std::io::Error::other)).transpose()
    });
    let code = found.unwrap_or_else(|error| {
        tracing::warn!("the compiled code {digest} is not used, it is compiled again: {error}");
        None
    });
    let from_cache = code.is_some();
    let code = code.map_or_else(compile, Ok)?;
    Ok(Compiled { code, digest, from_cache })
}

impl Code for Component {
    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self> {
        precompiled::component(engine, artifact)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Self::serialize(self)
    }
}

impl Code for Module {
    fn load(engine: &Engine, artifact: &TrustedArtifact) -> wasmtime::Result<Self> {
        precompiled::module(engine, artifact)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Self::serialize(self)
    }
}
