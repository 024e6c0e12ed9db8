//! Support of the cross-crate tests: the demo model, a driver that steps its engine in virtual time, and policy
//! components, shipped and misbehaving.
//!
//! Components, sandbox and model are the real ones. Only the clock is virtual, so that a test's outcome does not
//! depend on the machine.
#![forbid(unsafe_code)]

mod driver;
mod policies;

pub use driver::{Driver, Ended, request};
pub use policies::{
    FAULTY_ADMISSION, FAULTY_PREFIX_CACHE, FAULTY_SCHEDULER, TEMPLATE_ADMISSION, TEMPLATE_PREFIX_CACHE,
    TEMPLATE_SCHEDULER, bundled, faulty, load,
};

use std::sync::OnceLock;

use infer_model::{DType, ExecutorOptions, KvCacheKind, Model, ModelExecutor, Source, Tokenizer};

/// The demo model, loaded once.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load(&source(), None).expect("the demo checkpoint loads"))
}

/// The demo model with its weights and caches widened to f32, loaded once.
pub fn model_f32() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load(&source(), Some(DType::F32)).expect("the demo checkpoint loads"))
}

/// The demo model's tokenizer.
pub fn tokenizer() -> Tokenizer {
    Tokenizer::load(&source()).expect("the demo tokenizer loads")
}

fn source() -> Source<'static> {
    Source::Embedded(infer_demo::FILES)
}

/// An executor over `model` whose pool fits `config`.
pub fn executor(model: &Model, config: &infer_core::EngineConfig, kv_cache: KvCacheKind) -> ModelExecutor {
    let options = ExecutorOptions {
        kv_cache,
        block_size: config.block_size,
        total_blocks: config.total_blocks,
        max_running: config.limits.max_running,
        max_seq_len: config.max_seq_len,
        prompt_cache_entries: config.prompt_cache_entries,
        threads: 2,
    };
    model.executor(options).expect("the executor fits this machine")
}
