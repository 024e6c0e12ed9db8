//! A policy written in C: built, checked and run like any other.
//!
//! Needs a C compiler for WebAssembly. `cargo xtask test` provides one and sets `INFER_ZIG`; without that variable and
//! without zig on the path, the tests are skipped and say so.

use std::sync::OnceLock;
use std::time::Duration;

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_core::{EngineConfig, config::Limits};
use infer_tests::{Driver, Ended, load, request, tokenizer};
use infer_wasm::{LoaderConfig, PolicyLoader};

/// Built once: the tests run at the same time, and a build writes to a folder.
fn component() -> Option<&'static [u8]> {
    static BUILT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<Vec<u8>> {
    let Some(zig) = first_come_c::Zig::find() else {
        assert!(
            std::env::var_os(first_come_c::ZIG_VARIABLE).is_none(),
            "the compiler that INFER_ZIG names exists"
        );
        eprintln!("skipped: no C compiler for WebAssembly (zig) was found");
        return None;
    };
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("first-come-c");
    std::fs::create_dir_all(&out).expect("a folder to build in");
    Some(first_come_c::build(&zig, &out).unwrap_or_else(|error| panic!("{error:#}")))
}

fn streams(policies: Policies, total_blocks: u32) -> Driver {
    let limits = Limits { max_running: 6, prefill_chunk: 64, ..EngineConfig::default().limits };
    let config = EngineConfig { limits, total_blocks, max_seq_len: 512, ..EngineConfig::default() };
    let mut driver = Driver::new(config, policies);
    let tokenizer = tokenizer();
    let text = "What is a prefix cache? How does continuous batching work? ";
    for at in 0..12 {
        let prompt = tokenizer.encode(&text.repeat(1 + at % 4)[at..], true).expect("encodes");
        driver.submit(request(prompt, 30 + 5 * at as u32)).expect("admitted");
    }
    driver.run();
    driver
}

#[test]
fn scheduler_in_c_serves_like_one_in_rust() {
    let Some(component) = component() else { return };
    for total_blocks in [400, 24] {
        let AnyPolicy::Scheduler(scheduler) = load(PolicyKind::Scheduler, component, "{}") else {
            unreachable!("the component is a scheduler")
        };
        let mut in_c = streams(Policies { scheduler, ..Policies::builtin() }, total_blocks);
        let in_rust = streams(Policies::builtin(), total_blocks);
        assert_eq!(in_c.streams(), in_rust.streams(), "a policy may delay tokens, never change them");
        assert!(in_c.faults().is_empty(), "{:?}", in_c.faults());
        assert!(in_c.ended.values().all(|(end, _)| matches!(end, Ended::Finished(_))));
        assert_eq!(in_c.engine.snapshot(in_c.now).policies[0].policy.name, "first-come-c");
    }
}

#[test]
fn rejected_configuration_is_explained() {
    let Some(component) = component() else { return };
    let limits = LoaderConfig { deadline: Duration::from_secs(3_600), ..LoaderConfig::default() };
    let loader = PolicyLoader::new(limits).expect("the sandbox starts");
    let refused = loader.load(PolicyKind::Scheduler, component, r#"{"speed": 11}"#).expect_err("no such key");
    assert!(refused.to_string().contains("takes no configuration"), "{refused}");
}
