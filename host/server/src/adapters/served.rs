//! An adapter that requests may name, and their holds on it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use infer_core::AdapterId;
use infer_model::AdapterSize;
use tokio::sync::watch;

/// What an adapter is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// In requests and responses.
    pub name: String,
    /// Its own name: that of its directory, or `ORG/NAME`.
    pub root: String,
    /// Where it was found: a directory, or `ORG/NAME`, as somebody gave it.
    pub place: String,
}

/// An adapter beside the model.
#[derive(Debug)]
pub struct ServedAdapter {
    /// Its number in the engine's requests. No other has it as long as this process lives.
    pub id: AdapterId,
    /// What it is called.
    pub names: Names,
    /// What it takes.
    pub size: AdapterSize,
    /// Requests for it that the engine took.
    pub requests: AtomicU64,
    uses: watch::Sender<Uses>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    holds: usize,
    /// No more are granted.
    closed: bool,
}

impl ServedAdapter {
    /// An adapter that nobody uses yet.
    pub fn new(id: AdapterId, names: Names, size: AdapterSize) -> Self {
        let uses = watch::Sender::new(Uses::default());
        Self { id, names, size, requests: AtomicU64::new(0), uses }
    }

    /// Its name in requests.
    pub fn name(&self) -> &str {
        &self.names.name
    }

    /// Holds it for a request. `None` if it is being unloaded: then it is as if it were gone.
    pub fn hold(self: &Arc<Self>) -> Option<Arc<AdapterHold>> {
        let mut granted = false;
        self.uses.send_if_modified(|uses| {
            granted = !uses.closed;
            uses.holds += usize::from(granted);
            granted
        });
        granted.then(|| Arc::new(AdapterHold { adapter: Arc::clone(self) }))
    }

    /// Requests that hold it.
    pub fn live(&self) -> usize {
        self.uses.borrow().holds
    }

    /// Grants no more holds.
    pub(super) fn close(&self) {
        self.uses.send_modify(|uses| uses.closed = true);
    }

    /// Completes when no request holds it.
    pub(super) async fn unused(&self) {
        let mut uses = self.uses.subscribe();
        // Fails only if the sender is gone, which `self` has.
        let _ = uses.wait_for(|uses| uses.holds == 0).await;
    }
}

/// A request's hold on an adapter, which is not unloaded before that is dropped. The engine thread has it, too, for as long
/// as the request has a sequence.
#[derive(Debug)]
pub struct AdapterHold {
    adapter: Arc<ServedAdapter>,
}

impl Deref for AdapterHold {
    type Target = ServedAdapter;

    fn deref(&self) -> &ServedAdapter {
        &self.adapter
    }
}

impl PartialEq for AdapterHold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.adapter, &other.adapter)
    }
}

impl Drop for AdapterHold {
    fn drop(&mut self) {
        self.adapter.uses.send_modify(|uses| uses.holds -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(name: &str) -> Arc<ServedAdapter> {
        let names = Names { name: name.to_owned(), root: name.to_owned(), place: name.to_owned() };
        Arc::new(ServedAdapter::new(AdapterId(1), names, AdapterSize::default()))
    }

    #[tokio::test]
    async fn adapter_is_unused_once_all_holds_are_dropped_and_a_closed_one_grants_none() {
        let adapter = adapter("sql");
        let holds = [adapter.hold().unwrap(), adapter.hold().unwrap()];
        assert_eq!(adapter.live(), 2);
        adapter.close();
        assert!(adapter.hold().is_none());
        let mut unused = std::pin::pin!(adapter.unused());
        assert!(futures_util::poll!(unused.as_mut()).is_pending());
        // A second owner of a hold is not a second hold.
        let same = Arc::clone(&holds[1]);
        assert_eq!(adapter.live(), 2);
        drop(holds);
        assert!(futures_util::poll!(unused.as_mut()).is_pending());
        drop(same);
        unused.await;
        assert_eq!(adapter.live(), 0);
    }
}
