//! `infer policy new|build|check|test|inspect|bench`: tools for authors of policies, which work in any
//! directory and without a host. The SDK and the interface are embedded; only a Rust toolchain must be
//! installed.

mod bench;
mod build;
mod check;
mod inspect;
mod new;
mod package;
mod test;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use infer_core::policy::PolicyInfo;

use super::read_config;
use crate::cli::Failure;
use package::Package;

/// Commands for authors of policies.
#[derive(Subcommand)]
pub enum AuthorCommand {
    /// Creates a policy crate that builds and passes its tests
    New(new::NewArgs),
    /// Builds a policy crate into a component
    Build(CrateArgs),
    /// Checks a component against everything that a host requires
    Check(check::CheckArgs),
    /// Runs a policy crate's tests as WebAssembly
    Test(test::TestArgs),
    /// Shows a component's metadata, imports, exports and the limits that a host sets
    Inspect(inspect::InspectArgs),
    /// Measures a component's calls beside those of the native built-in
    Bench(bench::BenchArgs),
    /// Runs a program compiled to wasm32-wasip2, for `infer policy test`
    #[command(hide = true)]
    RunWasi {
        /// Seconds of processor time after which it is ended
        #[arg(long, value_name = "SECONDS")]
        limit: u64,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        program: Vec<String>,
    },
}

/// A policy crate.
#[derive(Args)]
pub struct CrateArgs {
    /// Directory of the crate
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
}

/// A component and its configuration.
#[derive(Args)]
pub struct ComponentArgs {
    /// A component, the directory of a policy crate, which is built first, or the name of a bundled policy
    #[arg(value_name = "FILE|DIR|NAME", default_value = ".")]
    source: PathBuf,
    /// Its configuration: a JSON object, or a file that contains one
    #[arg(long, value_name = "JSON|FILE", default_value = "{}")]
    config: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ComponentArgs {
    /// The component's bytes.
    fn component(&self) -> Result<Vec<u8>, Failure> {
        read_component(&self.source)
    }

    /// The configuration as JSON.
    fn config(&self) -> Result<String, Failure> {
        Ok(read_config(&self.config)?.to_string())
    }
}

/// Runs a command.
pub fn run(command: AuthorCommand) -> Result<(), Failure> {
    match command {
        AuthorCommand::New(args) => new::run(&args),
        AuthorCommand::Build(args) => build::run(&args.folder),
        AuthorCommand::Check(args) => check::run(&args),
        AuthorCommand::Test(args) => test::run(&args),
        AuthorCommand::Inspect(args) => inspect::run(&args),
        AuthorCommand::Bench(args) => bench::run(&args),
        AuthorCommand::RunWasi { limit, program } => {
            // This process exits with the program's code.
            std::process::exit(i32::from(infer_wasm::wasi::run(&program, Duration::from_secs(limit))))
        }
    }
}

/// The component of a file, a crate or, where there is neither, of the bundled policy with this name.
fn read_component(source: &Path) -> Result<Vec<u8>, Failure> {
    if source.is_dir() {
        return Ok(build::component(&Package::open(source)?)?.1);
    }
    let bundled = infer_bundle::POLICIES.iter().find(|policy| Path::new(policy.name) == source);
    if let Some(bundled) = bundled.filter(|_| !source.exists()) {
        return Ok(bundled.component.to_vec());
    }
    std::fs::read(source).map_err(|e| {
        let source = source.display();
        Failure::Usage(format!(
            "can't read {source}: {e}; give a .wasm file, the directory of a policy crate, or the name of a bundled \
             policy (`infer policy list --bundled`)"
        ))
    })
}

/// Name, version and digest in one line.
fn title(kind: impl std::fmt::Display, info: &PolicyInfo, bytes: usize) -> String {
    format!("{} {}, {kind}, {bytes} bytes, sha256 {}", info.name, info.version, info.digest)
}

fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Failure::failed)?);
    Ok(())
}
