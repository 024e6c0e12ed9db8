//! Finds the adapters that `--lora` names, checks them, and loads them beside the model. Every error names the adapter. Also
//! finds those that are loaded later (`crate::adapters`).

use std::path::{Path, PathBuf};

use infer_model::{Model, ModelConfig, Source};

use super::checkpoint::{self, CheckpointError, FoundAdapter, Hub};
use crate::adapters::Names;
use crate::config::{AdapterChoice, Config, ConfigError};
use crate::serve::StartError;

/// An adapter that was found.
pub struct Adapter {
    /// What it is called.
    pub names: Names,
    source: Source<'static>,
}

impl Adapter {
    fn new(choice: &AdapterChoice, root: String, directory: PathBuf) -> Self {
        let names = Names { name: choice.name.clone(), root, place: choice.place.clone() };
        Self { names, source: Source::Directory(directory) }
    }
}

/// All adapters; downloads those of `hub` that are not in its cache.
pub fn find(config: &Config, hub: &Hub) -> Result<Vec<Adapter>, StartError> {
    let mut all = Vec::with_capacity(config.lora.len());
    for choice in &config.lora {
        let adapter = match local(choice)? {
            Some(adapter) => adapter,
            None => {
                let found = checkpoint::find_adapter(&choice.place, hub);
                let directory = found.map_err(|error| named(choice, error))?;
                Adapter::new(choice, choice.place.clone(), directory)
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
    Ok(Some(Adapter::new(choice, own_name(&directory), directory)))
}

/// Finds an adapter without using the network. Returns its directory and its own name.
///
/// # Errors
/// What to do about it.
pub fn locate(place: &str) -> Result<(PathBuf, String), String> {
    let found = checkpoint::locate_adapter(place).map_err(|error| match error {
        CheckpointError::Wrong(why) | CheckpointError::Failed(why) => why,
    })?;
    if let FoundAdapter::Directory(directory) = found {
        let name = own_name(&directory);
        return Ok((directory, name));
    }
    let cached = Hub { offline: true, ..Hub::from_env() };
    let directory = checkpoint::find_adapter(place, &cached).map_err(|_| {
        format!(
            "{place} is neither a directory nor an adapter in the Hugging Face cache; download it there first (`hf \
             download {place}`)"
        )
    })?;
    Ok((directory, place.to_owned()))
}

fn own_name(directory: &Path) -> String {
    directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks that adapters fit a model of this shape, before its weights are read.
pub fn check(adapters: &[Adapter], model: &ModelConfig) -> Result<(), StartError> {
    for Adapter { names, source } in adapters {
        let failed = |error| StartError::Adapter(names.name.clone(), error);
        Model::check_adapter(source, model).map_err(failed)?;
    }
    Ok(())
}

/// Loads adapters beside a model, in this order.
pub fn load(adapters: &[Adapter], model: &mut Model) -> Result<(), StartError> {
    for Adapter { names, source } in adapters {
        model.add_adapter(source).map_err(|error| StartError::Adapter(names.name.clone(), error))?;
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
