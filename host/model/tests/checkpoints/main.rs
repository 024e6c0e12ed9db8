//! What the files of a checkpoint become: a configuration, weights, adapters, a tokenizer and its streams; and what must be
//! refused, since nobody vouches for them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gguf.rs"]
mod convert;
#[path = "../common/forms.rs"]
mod forms;
#[path = "../common/tensors.rs"]
mod tensors;

mod checksum;
mod config;
mod gguf;
mod lora;
mod text;
mod weights;

use serde_json::Value;

use common::golden;

/// A file of a golden checkpoint.
fn read(name: &str, file: &str) -> Vec<u8> {
    std::fs::read(golden(name).join(file)).expect("golden files are there")
}

/// The results that are stored beside a golden checkpoint.
fn expected(name: &str) -> Value {
    serde_json::from_slice(&read(name, "golden.json")).expect("JSON")
}

fn ids(json: &Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids are numbers")
}

/// The object with some keys replaced.
fn with(mut object: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().expect("an object") {
        object[key] = value.clone();
    }
    object
}
