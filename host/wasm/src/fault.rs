//! From wasmtime's errors to the engine's faults.

use infer_core::policy::{FaultKind, PolicyFault};
use wasmtime::{Error, Trap, WasmBacktrace};

use crate::room::Full;
use crate::runtime::{HostState, MAX_ANSWER_BYTES};
use crate::text::clip;

const MAX_MESSAGE_BYTES: usize = 2_048;
const MAX_NAME_BYTES: usize = 160;

/// The fault of a call of `function`. The store is dropped after this.
pub(crate) fn from_error(error: &Error, function: &str, state: &mut HostState) -> PolicyFault {
    let (kind, what) = classify(error, state);
    let mut message = format!("{function}() {what}");
    if let Some(name) = innermost_function(error) {
        message.push_str(&format!(", in `{}`", clip(&name, MAX_NAME_BYTES)));
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
    if let Some(full) = error.downcast_ref::<Full>() {
        return (FaultKind::Trap, full.to_string());
    }
    match trap {
        Some(trap) => (FaultKind::Trap, format!("trapped: {trap}")),
        None => {
            if let Some(lack) = lack(error) {
                return (FaultKind::Memory, format!("was refused by the machine: {lack}"));
            }
            // Any other failed call comes from reading what it passed to the host: bounds, UTF-8, unknown cases, size.
            // Guest functions are active only while it calls the host, with a line or a gauge's name.
            let inside = error.downcast_ref::<WasmBacktrace>().is_some();
            let passed = if inside { "passed the host a text" } else { "returned an answer" };
            let cause = error.root_cause().to_string();
            let why = if cause.contains(TOO_LARGE) {
                format!("larger than the limit of {MAX_ANSWER_BYTES} bytes")
            } else {
                format!("that can't be read: {cause}")
            };
            (FaultKind::InvalidDecision, format!("{passed} {why}"))
        }
    }
}

/// In wasmtime's words, whose type is private.
const TOO_LARGE: &str = "fuel allocated for hostcalls has been exhausted";

/// In wasmtime's words: the memory of an instance is reserved whole, whatever it will use.
const RESERVES: &str = "failed to reserve";

/// What the operating system refused, if that is what went wrong. It says nothing about the code that was to run, and may
/// be over at another moment.
pub fn lack(error: &Error) -> Option<String> {
    let refusal =
        error.chain().find(|cause| cause.is::<std::io::Error>() || cause.is::<rustix::io::Errno>())?;
    Some(if error.chain().any(|cause| cause.to_string().contains(RESERVES)) {
        format!(
            "this machine refuses the 4 GiB of address space that the memory of an instance reserves ({refusal}); raise the \
             limit (ulimit -v), or remove it"
        )
    } else {
        format!("this machine refuses what it needs: {error:#}")
    })
}

/// The guest function that failed, demangled: the innermost that is neither the panic machinery nor the library of
/// the language.
pub(crate) fn innermost_function(error: &Error) -> Option<String> {
    let backtrace = error.downcast_ref::<WasmBacktrace>()?;
    let mut names = backtrace.frames().iter().filter_map(|frame| {
        let name = frame.symbols().iter().find_map(|symbol| symbol.name()).or_else(|| frame.func_name())?;
        Some(format!("{:#}", rustc_demangle::demangle(name)))
    });
    let first = names.next()?;
    if !is_machinery(&first) {
        return Some(first);
    }
    Some(names.find(|name| !is_machinery(name)).unwrap_or(first))
}

/// Where every Rust guest ends when it panics or runs out of memory, which says nothing about the cause.
fn is_machinery(name: &str) -> bool {
    const CRATES: [&str; 7] =
        ["__rustc", "alloc", "compiler_builtins", "core", "dlmalloc", "hashbrown", "std"];
    const SYMBOLS: [&str; 5] = ["__rdl_", "__rg_", "__rust_", "abort", "rust_"];
    // `<alloc::vec::Vec<T> as core::ops::Index<I>>::index` belongs to the crate of its first path.
    match name.split_once("::") {
        Some((before, _)) => {
            let of = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
            of.is_some_and(|of| CRATES.contains(&of))
        }
        None => SYMBOLS.iter().any(|symbol| name.starts_with(symbol)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_refuses_is_told_from_faults() {
        let refused = |what: &'static str| Error::new(rustix::io::Errno::NOMEM).context(what);
        let reserving = lack(&refused("mmap failed to reserve 0x104000000 bytes")).unwrap();
        assert!(reserving.contains("4 GiB of address space"), "{reserving}");
        assert!(!reserving.contains("0x"), "{reserving}");
        let other = lack(&refused("mmap failed to allocate 0x10000 bytes").context("a memory")).unwrap();
        assert!(other.contains("a memory: mmap failed to allocate 0x10000 bytes: "), "{other}");
        assert_eq!(lack(&Error::from(Trap::UnreachableCodeReached)), None);
        assert_eq!(lack(&Error::msg("failed to reserve a table")), None);
    }

    #[test]
    fn the_machinery_is_told_from_the_policy() {
        for (name, machinery) in [
            ("__rustc::rust_begin_unwind", true),
            ("__rust_start_panic", true),
            ("core::panicking::panic_bounds_check", true),
            ("core::slice::sort::unstable::quicksort::<mine::Row, mine::by_age>", true),
            ("<alloc::vec::Vec<mine::Row> as core::ops::index::Index<usize>>::index", true),
            ("<usize as core::slice::index::SliceIndex<[mine::Row]>>::index", true),
            ("<mine::Mine as infer_policy_sdk::Scheduler>::schedule", false),
            ("<mine::Row as core::cmp::Ord>::cmp", false),
            ("mine::on_panic::{closure#0}", false),
            ("infer:policy/scheduler@0.1.0#schedule", false),
            ("look_up", false),
        ] {
            assert_eq!(is_machinery(name), machinery, "{name}");
        }
    }
}
