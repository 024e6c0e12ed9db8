//! `infer sim` as a process: its output depends only on the arguments and the seed, and errors name the bad argument.

mod capacity;
mod errors;
mod files;
mod formats;
mod hosts;
mod recordings;
mod reports;
mod traces;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use infer_api::trace;
use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).output().expect("infer starts")
}

/// The results of a command that must succeed, one per run.
fn results(arguments: &[&str]) -> Vec<Value> {
    let output = sim(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("UTF-8")
}

/// The rows of CSV as maps from the names of the columns.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.expect("a row")).collect()
}

/// Writes a recording of a host with so many blocks and requests. Returns its path.
pub fn recording(dir: &Path, name: &str, total_blocks: u32, requests: u64) -> String {
    recording_with(dir, name, total_blocks, requests, Vec::new())
}

/// The same with terms of tenants; all requests belong to tenant 0.
fn recording_with(
    dir: &Path,
    name: &str,
    total_blocks: u32,
    requests: u64,
    tenants: Vec<trace::Tenant>,
) -> String {
    let engine = trace::Settings {
        block_size: 16,
        total_blocks,
        max_seq_len: 1_024,
        max_batch_tokens: 512,
        max_batch_size: 8,
        prefill_chunk: 256,
        max_prefill_requests: 8,
        max_prefill_tokens: 512,
        max_waiting_requests: 100,
        ..trace::Settings::default()
    };
    let (model, device) = ("demo".to_owned(), "cpu".to_owned());
    let head =
        trace::Head { format: trace::FORMAT, model, device, engine, tenants, ..trace::Head::default() };
    let request = |id| trace::Request { id, prompt: 8, max: 4, ..trace::Request::default() };
    let lines = std::iter::once(trace::Line::Head(Box::new(head)))
        .chain((1..=requests).map(|id| trace::Line::Request(request(id))));
    let text: String = lines.map(|line| serde_json::to_string(&line).expect("JSON") + "\n").collect();
    let path = dir.join(name);
    std::fs::write(&path, text).expect("it can be written");
    path.to_str().expect("UTF-8").to_owned()
}

/// A load as admission policies see it, with `each` in every count.
pub fn load(memory: &Value, each: u32) -> Value {
    let mut load = serde_json::json!({"now": 9, "memory": memory});
    for name in [
        "max_running",
        "running",
        "max_waiting",
        "waiting",
        "waiting_tokens",
        "waiting_prompt_tokens",
        "expected_output_tokens",
        "prefill_tokens_per_second",
        "output_tokens_per_second",
        "promised_blocks",
        "tenant_running",
        "tenant_waiting",
        "tenant_weight_permille",
        "tenant_rate_per_minute",
        "tenant_burst",
        "tenant_prompt_tokens_served",
        "tenant_output_tokens_served",
    ] {
        load[name] = each.into();
    }
    load
}
