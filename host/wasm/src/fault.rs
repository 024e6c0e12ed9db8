//! From wasmtime's errors to the engine's faults.

use infer_core::policy::{FaultKind, PolicyFault};
use wasmtime::{Error, Trap, WasmBacktrace};

use crate::log::LogFull;
use crate::runtime::HostState;
use crate::text::clip;

const MAX_MESSAGE_BYTES: usize = 2_048;

/// The fault of a call of `function`. The store is dropped after this.
pub(crate) fn from_error(error: &Error, function: &str, state: &mut HostState) -> PolicyFault {
    let (kind, what) = classify(error, state);
    let mut message = format!("{function}() {what}");
    if let Some(name) = innermost_function(error) {
        message.push_str(&format!(", in `{name}`"));
    }
    if let Some(words) = state.log.take_last_error() {
        message.push_str(&format!("; its last error line: {words}"));
    }
    PolicyFault::new(kind, clip(&message, MAX_MESSAGE_BYTES))
}

fn classify(error: &Error, state: &mut HostState) -> (FaultKind, String) {
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::Interrupt) {
        return (FaultKind::Deadline, format!("ran longer than {:?}", state.deadline.limit()));
    }
    if trap == Some(&Trap::OutOfFuel) {
        return (FaultKind::Deadline, format!("used more than {} units of fuel", state.fuel.unwrap_or(0)));
    }
    if let Some(bytes) = state.limits.take_refused() {
        let limit = state.limits.max_memory_bytes();
        return (FaultKind::Memory, format!("asked for {bytes} bytes of memory, but the limit is {limit}"));
    }
    if let Some(full) = error.downcast_ref::<LogFull>() {
        return (FaultKind::Trap, full.to_string());
    }
    match trap {
        Some(trap) => (FaultKind::Trap, format!("trapped: {trap}")),
        None if is_of_the_machine(error) => (
            FaultKind::Memory,
            format!("could not have the memory that an instance needs from this machine: {error:#}"),
        ),
        // Any other failed call comes from reading its answer: bounds, UTF-8, unknown cases, size.
        None => (
            FaultKind::InvalidDecision,
            format!("returned an answer that can't be read: {}", error.root_cause()),
        ),
    }
}

/// Whether the operating system refused something, which says nothing about the component.
fn is_of_the_machine(error: &Error) -> bool {
    error.chain().any(|cause| cause.is::<std::io::Error>() || cause.is::<rustix::io::Errno>())
}

/// The guest function that failed: the innermost that is not the panic machinery.
fn innermost_function(error: &Error) -> Option<String> {
    let backtrace = error.downcast_ref::<WasmBacktrace>()?;
    let mut names = backtrace.frames().iter().filter_map(|frame| {
        let name = frame.symbols().iter().find_map(|symbol| symbol.name()).or_else(|| frame.func_name())?;
        Some(name.to_owned())
    });
    let first = names.next()?;
    if !is_machinery(&first) {
        return Some(first);
    }
    Some(names.find(|name| !is_machinery(name)).unwrap_or(first))
}

/// Where every Rust guest ends when it panics or runs out of memory, which says nothing about the cause.
fn is_machinery(name: &str) -> bool {
    [
        "panic", "alloc::", "__rust", "abort", "core::", "std::", "dlmalloc", "_$LT$", "<alloc::", "<core::",
        "<std::",
    ]
    .iter()
    .any(|part| name.starts_with(part) || name.contains("panic"))
}
