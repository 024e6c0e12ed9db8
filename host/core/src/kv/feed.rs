//! Changes of the content index, for those that mirror it: routers that send a prompt to the host that has
//! its prefix.
//!
//! Reports exactly the blocks that `Kv::watch` could find. Off unless there is a listener.

use super::index::{Content, Scope};
use crate::ids::{AdapterId, TenantId};

/// A change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A full block can be found from now on.
    Stored(KvBlock),
    /// It can't be any more.
    Removed {
        /// Its name.
        hash: u64,
    },
}

/// A block of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBlock {
    /// Identifies its tokens, everything before them, tenant, salt and adapter, for the life of this process.
    pub hash: u64,
    /// The preceding block; `None` for a first one.
    pub parent: Option<u64>,
    /// What it holds, `block_size` tokens.
    pub tokens: Box<[u32]>,
    /// The tenant whose cache it is part of.
    pub tenant: TenantId,
    /// Separates caches of one tenant; 0 for none.
    pub salt: u64,
    /// The adapter that it was computed with.
    pub adapter: AdapterId,
}

impl KvBlock {
    pub(super) fn new(content: &Content<'_>, parent: Option<u64>) -> Self {
        let Scope { tenant, salt, adapter } = content.scope;
        Self { hash: content.hash, parent, tokens: content.tokens.into(), tenant, salt, adapter }
    }
}
