//! Which bug is on.

use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<&'static str> = const { Cell::new("") };
}

/// Whether this thread's engines have this bug.
pub fn on(name: &str) -> bool {
    CURRENT.get() == name
}

/// Gives this thread's engines a bug; the empty name none.
pub fn switch(name: &'static str) {
    CURRENT.set(name);
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));
