//! The adapters beside the model: which ones requests may name, and how others come and go while the host runs.
//!
//! An adapter is found, read, checked and packed off the engine thread, which gets it ready between two steps. Only then may
//! requests name it. One that goes can't be named from that moment on, and leaves the device once no request holds it. Each
//! load has a number of its own, by which the engine knows the blocks that were computed with it, so that an adapter never
//! finds what an earlier one of its name left; what goes also takes its blocks along.

mod error;
mod served;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use infer_api::admin::{AdapterList, AdapterRow};
use infer_core::AdapterId;
use infer_core::engine::Emptied;
use infer_model::{AdapterFiles, AdapterLoader, AdapterSize};

use crate::config::parse::model_name;
use crate::engine::{EngineHandle, EngineStopped, NewAdapter};
use crate::startup::adapters::locate;

pub use error::{AdapterError, Remedy};
pub use served::{AdapterHold, Names, ServedAdapter};

/// The file of an adapter may be so much larger than what is made of it: numbers of twice the width, and their names.
const FILE_FACTOR: u64 = 2;
const FILE_EXTRA: u64 = 1 << 20;

/// Bounds of all adapters together, those of the start included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterBounds {
    /// How many.
    pub count: usize,
    /// Bytes of their matrices.
    pub bytes: u64,
}

/// An adapter to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOrder {
    /// Its name in requests.
    pub name: String,
    /// A directory, or `ORG/NAME` if that is in the Hugging Face cache.
    pub place: String,
}

/// An adapter that was loaded.
#[derive(Debug)]
pub struct LoadedAdapter {
    /// What operators see of it.
    pub row: AdapterRow,
    /// How long it held up the engine thread, in microseconds.
    pub pause_us: u64,
}

/// The adapters of a host.
pub struct Adapters {
    engine: EngineHandle,
    loader: Arc<AdapterLoader>,
    /// Names of the model itself.
    own: Vec<String>,
    bounds: AdapterBounds,
    table: Mutex<Table>,
    /// Held while an adapter is read and packed, for the sake of memory and processors.
    one_at_a_time: tokio::sync::Mutex<()>,
}

/// All that take memory, or will.
struct Table {
    /// Those that requests may name.
    served: Arc<Vec<Arc<ServedAdapter>>>,
    loading: Vec<Loading>,
    unloading: Vec<Arc<ServedAdapter>>,
    /// The number of the last one.
    last: u32,
}

/// One that is on its way.
struct Loading {
    id: AdapterId,
    names: Names,
    size: AdapterSize,
}

impl Table {
    fn lock(table: &Mutex<Self>) -> MutexGuard<'_, Self> {
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the adapter of a name, if there is one.
    fn state(&self, name: &str) -> Option<&'static str> {
        let is_served = self.served.iter().any(|adapter| adapter.name() == name);
        let is_loading = self.loading.iter().any(|loading| loading.names.name == name);
        let is_unloading = self.unloading.iter().any(|adapter| adapter.name() == name);
        let states = [("loaded", is_served), ("loading", is_loading), ("unloading", is_unloading)];
        states.into_iter().find(|(_, is)| *is).map(|(state, _)| state)
    }

    fn sizes(&self) -> impl Iterator<Item = (AdapterId, AdapterSize)> {
        let there = self.served.iter().chain(&self.unloading).map(|adapter| (adapter.id, adapter.size));
        there.chain(self.loading.iter().map(|loading| (loading.id, loading.size)))
    }
}

impl Adapters {
    /// Those that a host has from its start, beside a model of these names. `loader` makes others ready.
    pub fn new(
        engine: EngineHandle,
        loader: AdapterLoader,
        own: Vec<String>,
        bounds: AdapterBounds,
        served: Vec<ServedAdapter>,
    ) -> Self {
        let last = served.iter().map(|adapter| adapter.id.0).max().unwrap_or(0);
        let served = Arc::new(served.into_iter().map(Arc::new).collect());
        let table = Mutex::new(Table { served, loading: Vec::new(), unloading: Vec::new(), last });
        let (loader, one_at_a_time) = (Arc::new(loader), tokio::sync::Mutex::default());
        Self { engine, loader, own, bounds, table, one_at_a_time }
    }

    /// Those that requests may name now, in the order in which they came.
    pub fn current(&self) -> Arc<Vec<Arc<ServedAdapter>>> {
        Arc::clone(&Table::lock(&self.table).served)
    }

    /// What operators see.
    pub fn list(&self) -> AdapterList {
        let table = Table::lock(&self.table);
        let served = table.served.iter().map(|adapter| row(adapter, "loaded"));
        let unloading = table.unloading.iter().map(|adapter| row(adapter, "unloading"));
        let loading = table.loading.iter().map(|Loading { names, size, .. }| AdapterRow {
            rank: size.rank,
            bytes: size.bytes,
            ..named(names, "loading")
        });
        AdapterList {
            adapters: served.chain(loading).chain(unloading).collect(),
            bytes: table.sizes().map(|(_, size)| size.bytes).sum(),
            max_adapters: u32::try_from(self.bounds.count).unwrap_or(u32::MAX),
            max_bytes: self.bounds.bytes,
        }
    }

    /// Loads an adapter; requests may name it once this returns.
    ///
    /// # Errors
    /// Why not. Everything is as it was then.
    pub async fn load(&self, order: LoadOrder) -> Result<LoadedAdapter, AdapterError> {
        let coming = self.expect(order)?;
        let _turn = self.one_at_a_time.lock().await;
        let (place, most) = (coming.place.clone(), self.bounds.bytes);
        let for_reading = Arc::clone(&self.loader);
        let found: Found = blocking(move || find(&for_reading, &place, most)).await?;
        self.admit(&coming, found.size)?;
        let for_loading = Arc::clone(&self.loader);
        let (weights, size) = blocking(move || for_loading.load(&found.files)).await?;
        self.admit(&coming, size)?;
        let name = coming.name.clone();
        let adapter = NewAdapter { id: coming.id, name, weights };
        let pause = self.engine.load_adapter(adapter).await?.map_err(AdapterError::Device)?;
        let names = Names { name: coming.name.clone(), root: found.root, place: coming.place.clone() };
        let served = Arc::new(ServedAdapter::new(coming.id, names, size));
        let row = row(&served, "loaded");
        coming.has_come(served);
        Ok(LoadedAdapter { row, pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX) })
    }

    /// Makes an adapter unknown to requests. It must be removed then.
    ///
    /// # Errors
    /// There is none of this name that can go. Everything is as it was then.
    pub fn retire(&self, name: &str) -> Result<Arc<ServedAdapter>, AdapterError> {
        let mut table = Table::lock(&self.table);
        let Some(place) = table.served.iter().position(|adapter| adapter.name() == name) else {
            return Err(match table.state(name) {
                Some(state) => AdapterError::Moving(name.to_owned(), state),
                None => AdapterError::Unknown(name.to_owned()),
            });
        };
        let adapter = Arc::make_mut(&mut table.served).remove(place);
        // Whoever looked the name up before still finds it, but can't hold it.
        adapter.close();
        table.unloading.push(Arc::clone(&adapter));
        Ok(adapter)
    }

    /// Removes an adapter that is retired, once the requests that hold it have ended. Returns what it was, and what was
    /// cached of it.
    ///
    /// # Errors
    /// If the engine has ended.
    pub async fn remove(&self, retired: &ServedAdapter) -> Result<(AdapterRow, Emptied), AdapterError> {
        // An engine that ends takes all requests along, but whoever doesn't read its response may hold the adapter for longer.
        tokio::select! {
            biased;
            () = retired.unused() => {}
            () = self.engine.stopped() => return Err(EngineStopped.into()),
        }
        let forgotten = self.engine.unload_adapter(retired.id).await?;
        Table::lock(&self.table).unloading.retain(|other| other.id != retired.id);
        Ok((row(retired, "unloaded"), forgotten))
    }

    /// Takes a name, a number and a place for an adapter to come.
    fn expect(&self, LoadOrder { name, place }: LoadOrder) -> Result<Coming<'_>, AdapterError> {
        let name = model_name(&name).map_err(AdapterError::Name)?;
        if self.own.contains(&name) {
            return Err(AdapterError::NameOfModel(name));
        }
        let mut table = Table::lock(&self.table);
        if let Some(state) = table.state(&name) {
            return Err(AdapterError::NameTaken(name, state));
        }
        if table.sizes().count() >= self.bounds.count {
            return Err(AdapterError::TooMany(self.bounds.count));
        }
        table.last += 1;
        let id = AdapterId(table.last);
        let names = Names { name: name.clone(), root: String::new(), place: place.clone() };
        table.loading.push(Loading { id, names, size: AdapterSize::default() });
        drop(table);
        Ok(Coming { table: &self.table, id, name, place })
    }

    /// Counts what an adapter takes, if there is room for it.
    fn admit(&self, coming: &Coming<'_>, size: AdapterSize) -> Result<(), AdapterError> {
        let mut table = Table::lock(&self.table);
        let others: u64 = table.sizes().filter(|(id, _)| *id != coming.id).map(|(_, size)| size.bytes).sum();
        let (bytes, most) = (size.bytes, self.bounds.bytes);
        let left = most.saturating_sub(others);
        if bytes > left {
            return Err(AdapterError::TooLarge { bytes, left, most });
        }
        if let Some(loading) = table.loading.iter_mut().find(|loading| loading.id == coming.id) {
            loading.size = size;
        }
        Ok(())
    }
}

/// An adapter's name, number and place in the table, which are free again if this is dropped before it has come.
struct Coming<'a> {
    table: &'a Mutex<Table>,
    id: AdapterId,
    name: String,
    place: String,
}

impl Coming<'_> {
    /// Lets requests name it.
    fn has_come(self, adapter: Arc<ServedAdapter>) {
        let mut table = Table::lock(self.table);
        Arc::make_mut(&mut table.served).push(adapter);
        table.loading.retain(|loading| loading.id != self.id);
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        Table::lock(self.table).loading.retain(|loading| loading.id != self.id);
    }
}

/// An adapter's files.
struct Found {
    root: String,
    files: AdapterFiles,
    size: AdapterSize,
}

/// Finds an adapter on this machine, and reads it if adapters may take so many bytes. Blocks.
fn find(loader: &AdapterLoader, place: &str, most: u64) -> Result<Found, AdapterError> {
    let (directory, root): (PathBuf, String) = locate(place).map_err(AdapterError::Place)?;
    let files = loader.read(&directory, most.saturating_mul(FILE_FACTOR).saturating_add(FILE_EXTRA))?;
    let size = loader.measure(&files)?;
    Ok(Found { root, files, size })
}

fn row(adapter: &ServedAdapter, state: &str) -> AdapterRow {
    AdapterRow {
        rank: adapter.size.rank,
        bytes: adapter.size.bytes,
        requests: adapter.requests.load(Ordering::Relaxed),
        live: adapter.live() as u64,
        ..named(&adapter.names, state)
    }
}

fn named(Names { name, root, place }: &Names, state: &str) -> AdapterRow {
    AdapterRow {
        name: name.clone(),
        root: root.clone(),
        path: place.clone(),
        state: state.to_owned(),
        ..AdapterRow::default()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
}
