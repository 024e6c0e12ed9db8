//! What the automata of live requests may take together. A request has copies of its own from before it is submitted to
//! its end, so a queue of requests whose shapes are large would need far more memory than their bodies have bytes.
//!
//! Memory is counted as the sandbox measured it, whose pointers are half as wide as the host's.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::ApiError;

/// Memory that all automata share.
pub(super) const LIVE_BYTES: usize = 1 << 30;
/// Bytes of each automaton that this doesn't count, so that large shapes can't block ordinary ones. The queue bounds
/// their sum.
pub(super) const FREE_BYTES: usize = 2 << 20;
/// Bytes per permit.
const UNIT: usize = 1 << 10;

/// The memory that automata share.
pub(super) struct Room(Arc<Semaphore>);

/// A request's part of it, until the last clone is dropped.
#[derive(Clone)]
pub struct Share {
    _permits: Arc<[OwnedSemaphorePermit]>,
}

impl Room {
    /// All of it.
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(LIVE_BYTES / UNIT)))
    }

    /// Takes the memory of `copies` automata of `bytes` each.
    ///
    /// # Errors
    /// 422 for `field` if that is more than there ever is, 503 if other requests have it.
    pub(super) fn take(
        &self,
        field: &str,
        bytes: usize,
        copies: usize,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT).saturating_mul(copies);
        let units = u32::try_from(units).ok().filter(|&units| units as usize <= LIVE_BYTES / UNIT);
        let units = units.ok_or_else(|| {
            let message = format!(
                "it takes {} MiB, and the choices of this request need {copies} copies of it; make it simpler, or ask \
                 for fewer choices at once",
                bytes.div_ceil(1 << 20)
            );
            ApiError::invalid(field, message)
        })?;
        Arc::clone(&self.0).try_acquire_many_owned(units).map_err(|_| {
            let message = "the forms of other requests take all the memory they may; retry later";
            ApiError::unavailable("busy", message)
        })
    }
}

impl Share {
    /// What was taken for one request.
    pub(super) fn of(permits: Vec<OwnedSemaphorePermit>) -> Self {
        Self { _permits: permits.into() }
    }
}
