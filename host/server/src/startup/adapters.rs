//! Finds the adapters that `--lora` names, checks them, and loads them beside the model. Every error names the adapter.

use infer_model::{Model, ModelConfig, Source};

use super::checkpoint::{self, CheckpointError, FoundAdapter, Hub};
use crate::config::{AdapterChoice, Config, ConfigError};
use crate::serve::StartError;

/// An adapter that was found.
pub struct Adapter {
    /// Its name in requests.
    pub name: String,
    /// Its own name: that of its directory, or `ORG/NAME`.
    pub root: String,
    source: Source<'static>,
}

/// All adapters; downloads those of `hub` that are not in its cache.
pub fn find(config: &Config, hub: &Hub) -> Result<Vec<Adapter>, StartError> {
    let mut all = Vec::with_capacity(config.lora.len());
    for choice in &config.lora {
        let adapter = match local(choice)? {
            Some(adapter) => adapter,
            None => {
                let found = checkpoint::find_adapter(&choice.place, hub);
                let source = Source::Directory(found.map_err(|error| named(choice, error))?);
                Adapter { name: choice.name.clone(), root: choice.place.clone(), source }
            }
        };
        all.push(adapter);
    }
    Ok(all)
}

/// Those that are on this machine; of the others only the names are known.
pub fn find_local(config: &Config) -> Result<Vec<Adapter>, StartError> {
    config.lora.iter().filter_map(|choice| local(choice).transpose()).collect()
}

/// The adapter, if it is a directory and not one of the hub.
fn local(choice: &AdapterChoice) -> Result<Option<Adapter>, StartError> {
    let found = checkpoint::locate_adapter(&choice.place).map_err(|error| named(choice, error))?;
    let FoundAdapter::Directory(directory) = found else { return Ok(None) };
    let root = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Adapter { name: choice.name.clone(), root, source: Source::Directory(directory) }))
}

/// Checks that adapters fit a model of this shape, before its weights are read.
pub fn check(adapters: &[Adapter], model: &ModelConfig) -> Result<(), StartError> {
    for Adapter { name, source, .. } in adapters {
        Model::check_adapter(source, model).map_err(|error| StartError::Adapter(name.clone(), error))?;
    }
    Ok(())
}

/// Loads adapters beside a model, in this order.
pub fn load(adapters: &[Adapter], model: &mut Model) -> Result<(), StartError> {
    for Adapter { name, source, .. } in adapters {
        model.add_adapter(source).map_err(|error| StartError::Adapter(name.clone(), error))?;
    }
    Ok(())
}

fn named(choice: &AdapterChoice, error: CheckpointError) -> StartError {
    let name = &choice.name;
    match error {
        CheckpointError::Wrong(why) => ConfigError(format!("--lora: {name}: {why}")).into(),
        CheckpointError::Failed(why) => StartError::Machine(format!("--lora: {name}: {why}")),
    }
}
