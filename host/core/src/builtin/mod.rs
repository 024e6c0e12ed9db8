//! The native built-ins, which answer when a policy can't. Minimal, and not copies of shipped policies.

mod admission;
mod prefix_cache;
mod scheduler;

pub use admission::AcceptWhatFits;
pub use prefix_cache::KeepAll;
pub use scheduler::FirstComeFirstServed;

use std::sync::Arc;

use crate::policy::PolicyInfo;

fn info(name: &str, description: &str) -> Arc<PolicyInfo> {
    Arc::new(PolicyInfo {
        name: name.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        description: description.into(),
        config_schema: "{}".into(),
        ..PolicyInfo::default()
    })
}
