//! Runs a program compiled to wasm32-wasip2, for `cargo test --target wasm32-wasip2`: standard streams,
//! arguments and environment are passed on, and its exit code becomes ours. No files, no network.
//!
//! It exists so that policy tests run as Wasm without installing a runtime. Policies themselves never
//! get WASI; the loader is the library's.

use std::process::ExitCode;

use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::p2::bindings::sync::Command;
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

/// The program could not be run at all, as a shell reports it.
const CANNOT_RUN: u8 = 126;
/// The program trapped, as a shell reports an aborted one. A panic ends so: it aborts in Wasm.
const ABORTED: u8 = 134;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        eprintln!("usage: wasi-runner PROGRAM.wasm [ARGUMENT]...");
        return ExitCode::from(CANNOT_RUN);
    }
    match prepare(&arguments) {
        Ok((store, command)) => run(store, &command),
        Err(error) => {
            eprintln!("wasi-runner: {} can't be run: {error:#}", arguments[0]);
            ExitCode::from(CANNOT_RUN)
        }
    }
}

struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// The first argument is the program; it sees all of them, as a native one would.
fn prepare(arguments: &[String]) -> wasmtime::Result<(Store<Host>, Command)> {
    let engine = Engine::new(&config())?;
    let component = Component::from_file(&engine, &arguments[0])?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
    let wasi = WasiCtx::builder()
        .inherit_stdio()
        .inherit_env()
        .args(arguments)
        .allow_blocking_current_thread(true)
        .build();
    let mut store = Store::new(&engine, Host { wasi, table: ResourceTable::new() });
    let command = Command::instantiate(&mut store, &component, &linker)?;
    Ok((store, command))
}

/// No garbage collector is compiled in, so what would need one is off.
fn config() -> Config {
    let mut config = Config::new();
    config
        .concurrency_support(false)
        .gc_support(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false);
    config
}

fn run(mut store: Store<Host>, command: &Command) -> ExitCode {
    match command.wasi_cli_run().call_run(&mut store) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(())) => ExitCode::FAILURE,
        Err(error) => match error.downcast_ref::<I32Exit>() {
            // A code that doesn't fit a process's is a failure all the same.
            Some(exit) => ExitCode::from(u8::try_from(exit.0).unwrap_or(u8::MAX)),
            None => {
                eprintln!("wasi-runner: the program was aborted: {error:#}");
                ExitCode::from(ABORTED)
            }
        },
    }
}
