//! `infer policy inspect`: describes a component without swapping it in.

use std::path::PathBuf;

use clap::Args;
use infer_wasm::{LoaderConfig, PolicyLoader};
use serde::Serialize;
use serde_json::Value;

use super::{print_json, read_component};
use crate::cli::Failure;
use crate::cli::policy::show::schema;

/// Which component.
#[derive(Args)]
pub struct InspectArgs {
    /// A component, the directory of a policy crate, which is built first, or the name of a bundled policy
    #[arg(value_name = "FILE|DIR|NAME", default_value = ".")]
    source: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Inspection {
    kind: &'static str,
    name: String,
    version: String,
    description: String,
    config_schema: String,
    imports: Vec<String>,
    exports: Vec<String>,
    interface: String,
    bytes: usize,
    sha256: String,
    memory_at_start_bytes: usize,
    limits: Limits,
}

/// The limits that a host sets for it.
#[derive(Serialize)]
struct Limits {
    component_bytes: usize,
    memory_bytes: usize,
    call_ms: u128,
}

pub(super) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let component = read_component(&args.source)?;
    let config = LoaderConfig::default();
    // A loader of its own, so that it counts only this component's memory.
    let loader = PolicyLoader::new(config.clone()).map_err(Failure::failed)?;
    let (kind, info) = loader.describe(&component).map_err(Failure::failed)?;
    let outline =
        infer_policy_build::outline(&component).map_err(|error| Failure::Failed(format!("{error:#}")))?;
    let version = outline.exports.iter().find_map(|name| name.rsplit_once('@'));
    let inspection = Inspection {
        kind: kind.name(),
        name: info.name,
        version: info.version,
        description: info.description,
        config_schema: info.config_schema,
        interface: version.map(|(_, version)| format!("infer:policy@{version}")).unwrap_or_default(),
        imports: outline.imports,
        exports: outline.exports,
        bytes: component.len(),
        sha256: info.digest,
        memory_at_start_bytes: loader.usage().memory_bytes,
        limits: Limits {
            component_bytes: config.max_component_bytes,
            memory_bytes: config.max_memory_bytes,
            call_ms: config.deadline.as_millis(),
        },
    };
    if args.json {
        return print_json(&inspection);
    }
    show(&inspection);
    Ok(())
}

fn show(inspection: &Inspection) {
    let limits = &inspection.limits;
    println!("{} {}, {}", inspection.name, inspection.version, inspection.kind);
    println!("  {}", inspection.description);
    println!("  interface  {}", inspection.interface);
    println!("  imports    {}", inspection.imports.join(", "));
    println!("  exports    {}", inspection.exports.join(", "));
    println!("  size       {} bytes of at most {}", inspection.bytes, limits.component_bytes);
    println!("  sha256     {}", inspection.sha256);
    println!(
        "  memory     {} KiB at start, at most {} KiB",
        inspection.memory_at_start_bytes >> 10,
        limits.memory_bytes >> 10
    );
    println!("  time       at most {} ms of processor time a call", limits.call_ms);
    // The loader accepts a schema that isn't JSON.
    let text = &inspection.config_schema;
    schema(&serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())));
}
