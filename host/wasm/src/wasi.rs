//! Runs a program compiled to wasm32-wasip2, for `cargo test --target wasm32-wasip2`: standard streams,
//! arguments and environment are passed on, and its exit code becomes the caller's. Tests print what they print, and
//! capture nothing. No files, no network. A program that never ends, such as a test of a policy that loops, is ended
//! after a limit of processor time.
//!
//! It exists so that policy tests run as Wasm without installing a runtime. Policies themselves never get
//! WASI; the loader has nothing to do with this.

use std::time::Duration;

use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Error, Store, Trap};
use wasmtime_wasi::p2::bindings::sync::Command;
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

use crate::deadline::Deadline;
use crate::fault::innermost_function;
use crate::ticker::Ticker;

/// Processor time of a program if nobody says otherwise. All tests of a policy take about a second.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The program was ended by its limit, as `timeout` reports it.
const OUT_OF_TIME: u8 = 124;
/// The program could not be run at all, as a shell reports it.
const CANNOT_RUN: u8 = 126;
/// The program trapped, with a shell's code for an aborted process. Panics end like this: they abort in Wasm.
const ABORTED: u8 = 134;

/// A failed test is the end of the program, because panics abort in Wasm, so the test harness never gets to show what it
/// captured.
const UNCAPTURED: (&str, &str) = ("RUST_TEST_NOCAPTURE", "1");

/// Runs a program to its end, or for as much of the thread's processor time as the limit says. The first argument is its
/// file; it sees all of them, as a native one would. Returns the exit code; what keeps it from running, or ends it early,
/// is printed to standard error.
pub fn run(arguments: &[String], limit: Duration) -> u8 {
    let Some(program) = arguments.first() else {
        eprintln!("name the program to run: PROGRAM.wasm [ARGUMENT]...");
        return CANNOT_RUN;
    };
    let end = prepare(arguments, limit).and_then(|(store, ticker)| execute(store, &ticker, program));
    let (code, why) =
        end.unwrap_or_else(|error| (CANNOT_RUN, Some(format!("{program} can't be run: {error:#}"))));
    if let Some(why) = why {
        eprintln!("{why}");
    }
    code
}

struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
    deadline: Deadline,
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// A store with its limit, and what makes the time pass.
fn prepare(arguments: &[String], limit: Duration) -> wasmtime::Result<(Store<Host>, Ticker)> {
    let engine = Engine::new(&config())?;
    let wasi = WasiCtx::builder()
        .inherit_stdio()
        .inherit_env()
        // Of two variables with a name the program sees the first, so the caller's counts.
        .env(UNCAPTURED.0, UNCAPTURED.1)
        .args(arguments)
        .allow_blocking_current_thread(true)
        .build();
    let host = Host { wasi, table: ResourceTable::new(), deadline: Deadline::new(limit) };
    let mut store = Store::new(&engine, host);
    store.epoch_deadline_callback(|mut store| Ok(store.data_mut().deadline.on_tick()));
    Ok((store, Ticker::start(engine)?))
}

/// No garbage collector is compiled in, so what would need one is off.
fn config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .gc_support(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false);
    config
}

/// Runs it: the exit code, and why it was ended, if it was. An error if it can't begin.
fn execute(mut store: Store<Host>, ticker: &Ticker, program: &str) -> wasmtime::Result<(u8, Option<String>)> {
    let component = Component::from_file(store.engine(), program)?;
    let mut linker = Linker::new(store.engine());
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
    store.data_mut().deadline.arm();
    store.set_epoch_deadline(1);
    let _running = ticker.enter();
    let command = Command::instantiate(&mut store, &component, &linker)?;
    Ok(match command.wasi_cli_run().call_run(&mut store) {
        Ok(Ok(())) => (0, None),
        Ok(Err(())) => (1, None),
        Err(error) => match error.downcast_ref::<I32Exit>() {
            // A code that doesn't fit a process's exit code is a failure all the same.
            Some(exit) => (u8::try_from(exit.0).unwrap_or(u8::MAX), None),
            None if error.downcast_ref::<Trap>() == Some(&Trap::Interrupt) => {
                (OUT_OF_TIME, Some(out_of_time(&error, store.data().deadline.limit())))
            }
            None => (ABORTED, Some(format!("the program was aborted: {error:#}"))),
        },
    })
}

/// With every function that was active: the test that called it is among them.
fn out_of_time(error: &Error, limit: Duration) -> String {
    let place = innermost_function(error).map(|name| format!(", in `{name}`")).unwrap_or_default();
    let seconds = limit.as_secs();
    format!("the program was ended after {seconds} s of processor time{place}: does it end?\n{error:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_never_ends_is_ended_where_it_loops() {
        let endless = r#"(component
            (core module $m
                (func $spin (export "run") (result i32) (loop $again (br $again)) (i32.const 0)))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $exports (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $exports)))"#;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("program.wasm");
        std::fs::write(&path, wat::parse_str(endless).unwrap()).unwrap();
        let program = path.to_str().unwrap();
        let (store, ticker) = prepare(&[program.to_owned()], Duration::ZERO).unwrap();
        let (code, why) = execute(store, &ticker, program).unwrap();
        let why = why.unwrap();
        assert_eq!(code, OUT_OF_TIME, "{why}");
        assert!(why.starts_with("the program was ended after 0 s of processor time, in `spin`"), "{why}");
    }
}
