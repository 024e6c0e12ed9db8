//! Who asks: API keys, what each tenant is granted, what it used.
//!
//! Keys stand in a file as digests alone. A tenant keeps its number for as long as the host runs, whatever
//! happens to the file: its prefix cache, its sessions and its counters hang on it. Deliberately absent:
//! the admin plane, which no key of a tenant opens.

mod book;
mod file;
mod key;
mod usage;

pub use book::{Tenant, Tenants};
pub use file::{Grant, MAX_KEYS, MAX_TENANTS, check_name, grants, read};
pub use key::{KeyDigest, check_strength, fresh};
pub use usage::{Usage, UsageSnapshot};
