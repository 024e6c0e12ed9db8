//! Runs a program compiled to wasm32-wasip2, for `cargo test --target wasm32-wasip2`: standard streams,
//! arguments and environment are passed on, and its exit code becomes the caller's. Tests print what they print, and
//! capture nothing. No files, no network.
//!
//! It exists so that policy tests run as Wasm without installing a runtime. Policies themselves never get
//! WASI; the loader has nothing to do with this.

use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::p2::bindings::sync::Command;
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

/// The program could not be run at all, as a shell reports it.
const CANNOT_RUN: u8 = 126;
/// The program trapped, with a shell's code for an aborted process. Panics end like this: they abort in Wasm.
const ABORTED: u8 = 134;

/// A failed test is the end of the program, because panics abort in Wasm, so the test harness never gets to show what it
/// captured.
const UNCAPTURED: (&str, &str) = ("RUST_TEST_NOCAPTURE", "1");

/// Runs a program to its end. The first argument is its file; it sees all of them, as a native one would.
/// Returns the exit code; what keeps it from running, or aborts it, is printed to standard error.
pub fn run(arguments: &[String]) -> u8 {
    let Some(program) = arguments.first() else {
        eprintln!("name the program to run: PROGRAM.wasm [ARGUMENT]...");
        return CANNOT_RUN;
    };
    match prepare(program, arguments) {
        Ok((store, command)) => call(store, &command),
        Err(error) => {
            eprintln!("{program} can't be run: {error:#}");
            CANNOT_RUN
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

fn prepare(program: &str, arguments: &[String]) -> wasmtime::Result<(Store<Host>, Command)> {
    let engine = Engine::new(&config())?;
    let component = Component::from_file(&engine, program)?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
    let wasi = WasiCtx::builder()
        .inherit_stdio()
        .inherit_env()
        // Of two variables with a name the program sees the first, so the caller's counts.
        .env(UNCAPTURED.0, UNCAPTURED.1)
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

fn call(mut store: Store<Host>, command: &Command) -> u8 {
    match command.wasi_cli_run().call_run(&mut store) {
        Ok(Ok(())) => 0,
        Ok(Err(())) => 1,
        Err(error) => match error.downcast_ref::<I32Exit>() {
            // A code that doesn't fit a process's exit code is a failure all the same.
            Some(exit) => u8::try_from(exit.0).unwrap_or(u8::MAX),
            None => {
                eprintln!("the program was aborted: {error:#}");
                ABORTED
            }
        },
    }
}
