//! The adapters of an executor, some of which may come and go while it runs.

use std::sync::Arc;

use infer_core::AdapterId;

use super::Adapter;

/// Adapters, by their numbers in ascending order.
#[derive(Default)]
pub(crate) struct Loaded {
    ids: Vec<AdapterId>,
    adapters: Vec<Arc<Adapter>>,
}

impl Loaded {
    /// Adapters whose numbers are their places, from 1 on.
    pub(crate) fn numbered(adapters: Vec<Arc<Adapter>>) -> Self {
        Self { ids: (1..).map(AdapterId).take(adapters.len()).collect(), adapters }
    }

    /// Their numbers.
    pub(crate) fn ids(&self) -> &[AdapterId] {
        &self.ids
    }

    /// In the order of their numbers.
    pub(crate) fn all(&self) -> &[Arc<Adapter>] {
        &self.adapters
    }

    /// Whether a row may have this adapter, or none.
    pub(crate) fn has(&self, id: AdapterId) -> bool {
        id == AdapterId::NONE || self.ids.binary_search(&id).is_ok()
    }

    /// Adds an adapter in place of one with its number, if there is one.
    pub(crate) fn insert(&mut self, id: AdapterId, adapter: Arc<Adapter>) {
        match self.ids.binary_search(&id) {
            Ok(place) => self.adapters[place] = adapter,
            Err(place) => {
                self.ids.insert(place, id);
                self.adapters.insert(place, adapter);
            }
        }
    }

    /// Takes an adapter out.
    pub(crate) fn remove(&mut self, id: AdapterId) -> Option<Arc<Adapter>> {
        let place = self.ids.binary_search(&id).ok()?;
        self.ids.remove(place);
        Some(self.adapters.remove(place))
    }
}
