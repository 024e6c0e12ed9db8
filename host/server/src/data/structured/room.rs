//! What the automata of live requests may take together. A request has copies of its own from before it is submitted to
//! its end, so a queue of requests whose shapes are large would need far more memory than their bodies have bytes. Tenants
//! share it by the rule of `shares`, in which no number of such requests of one tenant keeps out all others.
//!
//! Memory is counted as the sandbox measured it, whose pointers are half as wide as the host's.

use std::sync::Arc;

use crate::http::ApiError;
use crate::shares::{Budget, Full, Holder, Part};

/// Memory that all automata share.
pub(super) const LIVE_BYTES: usize = 1 << 30;
/// Bytes of each automaton that this doesn't count, so that large shapes can't block ordinary ones. The queue bounds
/// their sum.
pub(super) const FREE_BYTES: usize = 2 << 20;

/// The memory that automata share.
pub(super) struct Room(Budget);

/// A request's part of it, until the last clone is dropped.
#[derive(Clone)]
pub struct Share {
    _parts: Arc<[Part]>,
}

impl Room {
    /// All of it.
    pub(super) fn new() -> Self {
        Self(Budget::new(LIVE_BYTES))
    }

    /// Takes the memory of `copies` automata of `bytes` each.
    ///
    /// # Errors
    /// 422 for `field` if that is more than the holder may ever have, 503 if other requests have it.
    pub(super) fn take(
        &self,
        holder: Holder,
        field: &str,
        bytes: usize,
        copies: usize,
    ) -> Result<Part, ApiError> {
        let wanted = bytes.saturating_sub(FREE_BYTES).saturating_mul(copies);
        if wanted > self.0.most(holder) {
            let message = format!(
                "it takes {} MiB, and the choices of this request need {copies} copies of it; make it simpler, or ask \
                 for fewer choices at once",
                bytes.div_ceil(1 << 20)
            );
            return Err(ApiError::invalid(field, message));
        }
        let mut part = self.0.part(holder);
        part.grow(wanted, 0).map_err(|full| {
            let message = match full {
                Full::Budget => "the forms of other requests take all the memory they may; retry later",
                Full::Share => {
                    "the forms of this tenant's requests take its share of the memory for them; retry later"
                }
            };
            ApiError::unavailable("busy", message)
        })?;
        Ok(part)
    }
}

impl Share {
    /// What was taken for one request.
    pub(super) fn of(parts: Vec<Part>) -> Self {
        Self { _parts: parts.into() }
    }
}
