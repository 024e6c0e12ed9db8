//! Policies swapped over the admin plane while tokens stream: by name, by bytes, rolled back, refused.

mod configured;
mod overtaken;
mod refused;
mod swaps;
mod trials;

use serde_json::Value;

use crate::common::Host;

fn slot<'a>(policies: &'a Value, kind: &str) -> &'a Value {
    policies["slots"].as_array().unwrap().iter().find(|s| s["kind"] == kind).unwrap()
}

/// A slot as the host shows it now.
async fn slot_of(host: &Host, kind: &str) -> Value {
    slot(&host.admin_get("/admin/policies").await, kind).clone()
}
