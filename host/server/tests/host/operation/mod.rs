//! The host under disconnects, full queues, slow readers, device faults, drains and operators' commands.

mod admin;
mod clients;
mod commands;
mod devices;
mod drain;

use serde_json::{Value, json};

/// Fields of a request that runs until it is cancelled.
fn endless() -> Value {
    json!({"ignore_eos": true, "max_tokens": 1_500})
}
