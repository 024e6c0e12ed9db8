//! Loads policies and model, and starts the engine thread with them, while the planes already answer health checks.
//!
//! Deliberately absent: how a checkpoint becomes a model (`startup::load`).

use std::collections::hash_map::RandomState;
use std::sync::Arc;
use std::time::Instant;

use infer_core::engine::Policies;
use infer_core::{AdapterId, Engine, EngineConfig, Executor};
use infer_wasm::PolicyLoader;

use super::StartError;
use crate::adapters::{AdapterBounds, Adapters, ServedAdapter};
use crate::app::{App, Seeds, Served};
use crate::cache_file::{self, Keeper};
use crate::config::{Config, MaxSeqLen};
use crate::data::{Compiler, Embeds, GivenTemplate, PendingTemplate};
use crate::engine::{self, AtEnd, ChannelBounds, EngineHandle, EngineThread};
use crate::faults::{self, FaultRecorder};
use crate::offload;
use crate::policies::{self, Choices, Origins, PolicyManager};
use crate::policy_state::Found;
use crate::reload;
use crate::startup::load::{LoadedModel, model_names};
use crate::texts::Turns;

/// Creates the executor that computes batches.
pub type MakeExecutor = Box<dyn FnOnce(&EngineConfig) -> Box<dyn Executor + Send> + Send>;

/// Loads everything on a thread that may block; from then on the app serves.
pub(super) async fn start_engine(
    app: &Arc<App>,
    saved: Option<Found>,
    executor: Option<MakeExecutor>,
) -> Result<EngineThread, StartError> {
    let for_loading = Arc::clone(app);
    let (engine, served) = tokio::task::spawn_blocking(move || load(&for_loading, saved, executor))
        .await
        .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?;
    engine.handle.set_tenants(app.tenants.terms())?;
    app.set_served(served);
    // A reload in between found no engine to tell.
    reload::tell_terms(app).await?;
    Ok(engine)
}

fn load(
    app: &Arc<App>,
    saved: Option<Found>,
    executor: Option<MakeExecutor>,
) -> Result<(EngineThread, Served), StartError> {
    let config = &app.config;
    let loading = Instant::now();
    // Policies and the template first, so that a fault in them is found before gigabytes are downloaded.
    let loader = policies::loader_with(&config.policy_limits)?;
    let (slots, origins) = initial_policies(&loader, &app.reload.choices())?;
    let origins = Arc::new(origins);
    let recorder = fault_recorder(config, &origins)?;
    let mut restored = saved.map(|saved| saved.load(&loader, &origins, app.clock));
    let template = GivenTemplate::open(config)?;
    cache_file::check(config)?;
    offload::check(config)?;
    let loaded = LoadedModel::load(config)?;
    let mut engine_config = loaded.engine_config(config, hash_key()?);
    let settings = crate::trace::settings(&engine_config);
    let executor = match executor {
        Some(make) => make(&engine_config),
        None => loaded.executor(config)?,
    };
    let mut executor = offload::add(config, &mut engine_config, executor, loaded.pool_bytes())?;
    // After the policies, so that they don't compete for the compiler's threads.
    let chat = PendingTemplate::begin(&loaded.source, template)
        .map_err(|e| StartError::Io("can't start a thread for the chat template", e))?;
    let mut engine = Engine::new(engine_config, slots);
    if let Some(restored) = &mut restored {
        restored.bring_in(&mut engine, app.clock);
    }
    let at_end = keep_cache(app, &loaded, &mut engine, executor.as_mut());
    let bounds = ChannelBounds {
        max_waiting: config.max_waiting_requests,
        max_running: config.max_batch_size,
        stream_events: config.bounds.stream_events,
    };
    let thread = engine::spawn(engine, executor, app.clock, bounds, at_end)
        .map_err(|e| StartError::Io("can't start the engine thread", e))?;
    if let Some(recorder) = recorder {
        thread.handle.observer().write_faults(recorder);
    }
    let mut policies = PolicyManager::new(loader, thread.handle.clone(), Arc::clone(&origins));
    if let Some(restored) = restored {
        let configured = restored.configured();
        let keeper = restored
            .keep(&thread.handle, &origins, &app.tenants)
            .map_err(|e| StartError::Io("can't start a thread for the state of policies", e))?;
        policies = policies.keeping(configured, keeper);
    }
    log_loaded(config, &loaded, loading);
    let names = model_names(config, &loaded.names);
    let adapters = adapters(config, &loaded, &thread.handle, &names)?;
    let device = loaded.device().to_owned();
    let vocab_size = loaded.model.vocab_size();
    let stop_tokens = loaded.stop_tokens;
    let shape = &loaded.model.config;
    let embeds = Embeds::of(config.pooling, shape.pooling.as_ref(), shape.hidden);
    let served = Served {
        engine: thread.handle.clone(),
        policies,
        compiler: Compiler::new(loaded.tokenizer.clone(), vocab_size, Arc::clone(&stop_tokens)),
        tokenizer: loaded.tokenizer,
        checkpoint: loaded.names[0].clone(),
        model_names: names,
        adapters,
        weights: loaded.model.weight_type.to_string(),
        stop_tokens,
        sampling: loaded.sampling,
        embeds,
        vocab_size,
        max_seq_len: loaded.sizing.max_seq_len,
        block_bytes: loaded.sizing.block_bytes,
        block_size: config.block_size,
        total_blocks: loaded.sizing.total_blocks,
        settings,
        device,
        seeds: Seeds::new(config.seed),
        chat,
        keys: RandomState::new(),
        turns: Turns::new(config.threads),
    };
    Ok((thread, served))
}

/// The adapters of the start, and what loads others. Tells the engine thread their names.
fn adapters(
    config: &Config,
    loaded: &LoadedModel,
    engine: &EngineHandle,
    names: &[String],
) -> Result<Adapters, StartError> {
    let all = (1..).map(AdapterId).zip(&loaded.adapters).zip(loaded.adapter_sizes());
    let served: Vec<_> =
        all.map(|((id, adapter), size)| ServedAdapter::new(id, adapter.names.clone(), size)).collect();
    engine.name_adapters(served.iter().map(|adapter| (adapter.id, adapter.name().to_owned())).collect())?;
    let bytes: u64 = served.iter().map(|adapter| adapter.size.bytes).sum();
    let bounds = AdapterBounds {
        count: config.most_adapters(),
        // Those that were given at the start are served however large they are.
        bytes: config.max_adapter_memory_bytes.max(bytes),
    };
    Ok(Adapters::new(engine.clone(), loaded.adapter_loader(), names.to_owned(), bounds, served))
}

/// Restores the prefix cache, if there is a file for it, and returns what saves it.
fn keep_cache(
    app: &Arc<App>,
    loaded: &LoadedModel,
    engine: &mut Engine,
    executor: &mut dyn Executor,
) -> Option<AtEnd> {
    let config = &app.config;
    let mut keeper = Keeper::new(config, executor, || loaded.probed(config))?;
    keeper.restore(engine, executor, &app.tenants, app.clock.now());
    let app = Arc::clone(app);
    Some(Box::new(move |engine, executor| {
        app.set_saving(true);
        keeper.save(engine, executor, &app.tenants, app.clock.now());
        app.set_saving(false);
    }))
}

/// A random key for the prefix index.
fn hash_key() -> Result<[u64; 2], StartError> {
    let mut key = [0u8; 16];
    getrandom::fill(&mut key)
        .map_err(|e| StartError::Io("can't get random bytes", std::io::Error::other(e.to_string())))?;
    let key = u128::from_ne_bytes(key);
    Ok([key as u64, (key >> 64) as u64])
}

/// Says in the log what was loaded.
fn log_loaded(config: &Config, loaded: &LoadedModel, loading: Instant) {
    let adapter_bytes: u64 = loaded.adapter_sizes().iter().map(|size| size.bytes).sum();
    tracing::info!(
        model = loaded.names[0],
        weights = %loaded.model.weight_type,
        weight_bytes = loaded.weight_bytes(),
        adapters = (!loaded.adapters.is_empty()).then_some(loaded.adapters.len()),
        adapter_bytes = Some(adapter_bytes).filter(|bytes| *bytes > 0),
        load_ms = loading.elapsed().as_millis() as u64,
        max_seq_len = loaded.sizing.max_seq_len,
        blocks = loaded.sizing.total_blocks,
        kv_bytes = u64::from(loaded.sizing.total_blocks) * loaded.sizing.block_bytes,
        threads = config.threads,
        "model loaded"
    );
    let (limit, context) = (loaded.sizing.max_seq_len, loaded.model.config.context_length());
    if config.max_seq_len == MaxSeqLen::Usual && limit < context {
        tracing::info!(
            "prompt and output may have {limit} tokens, of the {context} of the model's context; --max-seq-len sets \
             another limit, `auto` as many as the KV pool holds"
        );
    }
}

/// Loads the configured policies.
pub fn initial_policies(loader: &PolicyLoader, choices: &Choices) -> Result<(Policies, Origins), StartError> {
    policies::load_initial(loader, choices).map_err(|(kind, error)| StartError::Policy(kind.name(), error))
}

/// Starts recording policy faults. If the usual directory can't be used, the host runs without these records; one that was
/// asked for must be usable, because faults can't be recorded later.
fn fault_recorder(config: &Config, origins: &Arc<Origins>) -> Result<Option<FaultRecorder>, StartError> {
    let Some(dir) = config.fault_dir.clone().or_else(faults::default_dir) else { return Ok(None) };
    match FaultRecorder::start(&dir, Arc::clone(origins)) {
        Ok(recorder) => Ok(Some(recorder)),
        Err(error) if config.fault_dir.is_some() => Err(faults::wrong_place(&dir, &error).into()),
        Err(error) => {
            tracing::warn!("policy faults are not recorded: {}: {error}; see --fault-dir", dir.display());
            Ok(None)
        }
    }
}
