//! Tenants: their API keys, their limits and their usage.
//!
//! The tenants file holds only digests of keys. A tenant keeps its number while the host runs, however the
//! file changes, because its prefix cache, sessions and counters are bound to it, and over restarts if what
//! policies know of it is kept, too. Deliberately absent: the admin plane, which no tenant's key opens.

mod book;
mod file;
mod key;
mod models;
mod requests;
mod usage;

pub(crate) use book::MAX_NAMES;
pub use book::{Numbering, Tenant, Tenants, VARIABLE};
pub use file::{Grant, MAX_KEYS, MAX_TENANTS, check_name, grants, read, weight_of};
pub(crate) use file::{check_form, digests};
pub use key::{KeyDigest, check_strength, fresh, is_short};
pub use models::ModelList;
pub use requests::Requests;
pub use usage::{Latencies, Usage, UsageSnapshot};
