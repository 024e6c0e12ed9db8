//! Typed bindings of the three worlds, generated from `wit/` at compile time.
//!
//! Parameters borrow (`&[u64]`, `&str`), so that the engine's columns are copied once, straight into the
//! guest's memory. The worlds share one `host` import and one set of types; the `lifecycle` export is
//! generated once per world, and `World` unifies the three.
#![allow(missing_docs, reason = "generated from wit/, which documents everything")]

pub(crate) mod scheduler {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "scheduler-policy",
        ownership: Borrowing { duplicate_if_necessary: true },
        imports: { "infer:policy/host@0.1.0": trappable },
    });
}

pub(crate) mod admission {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "admission-policy",
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "infer:policy/types@0.1.0": super::scheduler::infer::policy::types,
            "infer:policy/host@0.1.0": super::scheduler::infer::policy::host,
        },
    });
}

pub(crate) mod prefix_cache {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "prefix-cache-policy",
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "infer:policy/types@0.1.0": super::scheduler::infer::policy::types,
            "infer:policy/host@0.1.0": super::scheduler::infer::policy::host,
        },
    });
}
