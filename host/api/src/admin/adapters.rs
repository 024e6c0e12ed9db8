//! The adapters beside the model.

use serde::{Deserialize, Serialize};

/// Response of `GET /admin/adapters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterList {
    /// Those that requests may name, then those that are being loaded, then those that are being unloaded.
    pub adapters: Vec<AdapterRow>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many there may be.
    pub max_adapters: u32,
    /// Bytes that they may take.
    pub max_bytes: u64,
}

/// An adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterRow {
    /// Its name in requests.
    pub name: String,
    /// Where it was loaded from, as it was given: a directory of the host's machine, or `ORG/NAME`.
    pub path: String,
    /// Its own name, as `/v1/models` has it: that of its directory, or `ORG/NAME`. Empty while it is being loaded.
    pub root: String,
    /// The highest rank of its matrices; 0 until it was read.
    pub rank: u32,
    /// Bytes of its matrices; 0 until it was read.
    pub bytes: u64,
    /// Requests for it that the engine took.
    pub requests: u64,
    /// Requests that use it at the moment.
    pub live: u64,
    /// `loaded`, `loading`, `unloading`, or `unloaded` in the response to that.
    pub state: String,
}

/// JSON body of `POST /admin/adapters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterOrder {
    /// Its name in requests.
    pub name: String,
    /// A directory of the host's machine, or `ORG/NAME` of the Hugging Face hub if that is in its cache.
    pub path: String,
}

/// Response of `DELETE /admin/adapters/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterUnloaded {
    /// The adapter, as it was.
    pub adapter: AdapterRow,
    /// Cached blocks that it left.
    pub dropped_blocks: u32,
    /// Those of the second level.
    pub dropped_offloaded_blocks: u32,
}
