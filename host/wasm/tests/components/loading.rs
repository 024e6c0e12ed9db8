//! What is refused, by which check, and whether its message says what to do.

use crate::support::{Guest, SPIN, TAKE_MEMORY, fuel_loader, loader, patient, scheduler};
use infer_core::policy::PolicyKind;
use infer_wasm::{LoadError, LoaderConfig};

/// An empty instance under each of the names.
fn exporting(names: &[&str]) -> Vec<u8> {
    let exports: String = names.iter().map(|name| format!(r#"(export "{name}" (instance $i))"#)).collect();
    wat::parse_str(format!("(component (instance $i) {exports})")).expect("well-formed text")
}

#[test]
fn files_that_are_no_policy_are_refused_before_compilation() {
    const LIFECYCLE: &str = "infer:policy/lifecycle@0.1.0";
    const SCHEDULER: &str = "infer:policy/scheduler@0.1.0";
    const ADMISSION: &str = "infer:policy/admission@0.1.0";
    let good = Guest::default().component();
    let import =
        |name: &str| wat::parse_str(format!(r#"(component (import "{name}" (instance)))"#)).expect("text");
    let cases: [(&str, Vec<u8>, &str, &str); 13] = [
        ("nothing", Vec::new(), "format", "not a WebAssembly file"),
        ("some text", b"#!/bin/sh\n".to_vec(), "format", "not a WebAssembly file"),
        ("a core module", wat::parse_str("(module)").expect("text"), "format", "wasm-tools component new"),
        ("half a file", good[..good.len() / 2].to_vec(), "format", "damaged"),
        ("all but the last byte", good[..good.len() - 1].to_vec(), "format", "damaged"),
        ("a WASI program", import("wasi:cli/environment@0.2.0"), "imports", "`wasi:cli/environment@0.2.0`"),
        ("another host's plugin", import("acme:host/api"), "imports", "`acme:host/api`"),
        ("another version", import("infer:policy/host@9.0.0"), "imports", "`infer:policy/host@9.0.0`"),
        (
            "another interface",
            import("infer:policy/clock@0.1.0"),
            "imports",
            "another version of the interface",
        ),
        ("no exports", exporting(&[]), "world", "exports nothing"),
        ("no lifecycle", exporting(&[SCHEDULER]), "world", "no lifecycle"),
        ("two slots", exporting(&[LIFECYCLE, SCHEDULER, ADMISSION]), "world", "one component per slot"),
        ("the names without the functions", exporting(&[LIFECYCLE, SCHEDULER]), "interface", "rebuild it"),
    ];
    let loader = fuel_loader();
    for (what, component, check, message) in cases {
        expect_refusal(what, loader.load(PolicyKind::Scheduler, &component, "{}").map(drop), check, message);
        expect_refusal(what, loader.describe(&component).map(drop), check, message);
    }
}

/// What `wit/README.md` says about versions and additions.
#[test]
fn a_host_takes_its_own_version_with_its_own_types_and_ignores_further_exports() {
    type Edit = fn(&str) -> String;
    /// What it is about, the edit of the interface, further exports, and the refusal if there is one.
    type Case = (&'static str, Edit, &'static str, Option<(&'static str, &'static str)>);
    const PING: &str = r#"(func (export "infer:policy/lifecycle@0.1.0#ping"))"#;
    const CALLS_LATER: &str = r#"(func (export "infer:policy/lifecycle@0.1.0#ping") (call $later))"#;
    let ping: Edit = |text| text.replace("describe: func", "ping: func();\n    describe: func");
    let offered: Edit = |text| text.replace("log: func", "later: func();\n    log: func");
    let cases: [Case; 9] = [
        ("these files", str::to_owned, "", None),
        ("a later version", |text| text.replace("@0.1.0", "@0.1.1"), "", Some(("imports", "@0.1.1`"))),
        ("an earlier version", |text| text.replace("@0.1.0", "@0.0.9"), "", Some(("imports", "@0.0.9`"))),
        (
            "a record of the view has another field",
            |text| text.replace("prefill-chunk: u32,", "prefill-chunk: u32,\n        more: u32,"),
            "",
            Some(("interface", "rebuild it")),
        ),
        (
            "a record of the view lacks a field",
            |text| text.replace("starvation-bound: micros,", ""),
            "",
            Some(("interface", "rebuild it")),
        ),
        (
            "an enum has another case",
            |text| text.replace("enum level { debug,", "enum level { trace, debug,"),
            "",
            Some(("interface", "rebuild it")),
        ),
        ("it exports more", ping, PING, None),
        ("the host is expected to offer more", offered, "", None),
        (
            "it calls what the host does not offer",
            |text| {
                let text = text.replace("log: func", "later: func();\n    log: func");
                let text = text.replace("describe: func", "ping: func();\n    describe: func");
                let import = r#"(module (import "infer:policy/host@0.1.0" "later" (func $later))"#;
                text.replacen("(module", import, 1)
            },
            CALLS_LATER,
            Some(("interface", "rebuild it")),
        ),
    ];
    let loader = fuel_loader();
    for (what, edit, more, refused) in cases {
        let component = Guest::default().component_for(edit, more);
        let loaded = scheduler(&loader, &component).map(drop);
        match refused {
            None => loaded.unwrap_or_else(|error| panic!("{what}: {error}")),
            Some((check, message)) => expect_refusal(what, loaded, check, message),
        }
    }
}

#[test]
fn a_component_over_the_size_limit_is_refused_and_one_at_the_limit_is_not() {
    let component = Guest::default().component();
    let with_limit = |max_component_bytes| loader(LoaderConfig { max_component_bytes, ..patient() });
    let refused = scheduler(&with_limit(component.len() - 1), &component).map(drop);
    expect_refusal("one byte over", refused, "size", "release mode");
    scheduler(&with_limit(component.len()), &component).expect("at the limit");
}

#[test]
fn a_policy_of_another_slot_is_refused_with_both_names() {
    let loaded = fuel_loader().load(PolicyKind::Admission, &Guest::default().component(), "{}").map(drop);
    expect_refusal(
        "a scheduler for admission",
        loaded,
        "world",
        "is a scheduler policy and does not fit the admission slot",
    );
}

#[test]
fn guests_that_fail_during_setup_are_refused() {
    let guest = |change: fn(&mut Guest)| {
        let mut guest = Guest::default();
        change(&mut guest);
        guest
    };
    let cases = [
        ("start traps", guest(|g| g.start = "unreachable".into()), "instantiate", "trap"),
        ("start spins", guest(|g| g.start = SPIN.into()), "instantiate", "deadline"),
        ("start takes memory", guest(|g| g.start = TAKE_MEMORY.into()), "instantiate", "memory"),
        ("describe traps", guest(|g| g.describe = "unreachable".into()), "describe", "trap"),
        ("a name with a slash", guest(|g| g.name = "../etc"), "describe", "its name must be"),
        (
            "describe points nowhere",
            guest(|g| g.describe = "(i32.const -8)".into()),
            "describe",
            "can't be read",
        ),
        (
            "configure spins",
            guest(|g| g.configure = format!("{SPIN} (i32.const 0)")),
            "configure",
            "deadline",
        ),
        ("configure traps", guest(|g| g.configure = "unreachable".into()), "configure", "`configure`"),
        (
            "configure refuses",
            guest(|g| g.configure = "(i32.const 1080)".into()),
            "configure",
            "refused its configuration: text",
        ),
        ("schedule traps", guest(|g| g.schedule = "unreachable".into()), "self-test", "`nothing to do`"),
        ("schedule spins", guest(|g| g.schedule = format!("{SPIN} (i32.const 0)")), "self-test", "deadline"),
        (
            "the plan has a sequence and no tokens",
            guest(|g| g.schedule = RUN_FIRST_WITHOUT_TOKENS.into()),
            "self-test",
            "`one running`",
        ),
    ];
    let loader = fuel_loader();
    for (what, guest, check, message) in cases {
        expect_refusal(what, scheduler(&loader, &guest.component()).map(drop), check, message);
    }
}

/// `run` is the view's list of running ids, the other lists are empty.
const RUN_FIRST_WITHOUT_TOKENS: &str =
    "(i64.store (i32.const 1104) (i64.load offset=84 (local.get $step))) (i32.const 1104)";

#[test]
fn describe_tells_kind_name_version_and_digest() {
    let component = Guest::default().component();
    let (kind, info) = loader(patient()).describe(&component).expect("it is a good component");
    assert_eq!(kind, PolicyKind::Scheduler);
    assert_eq!((info.name.as_str(), info.version.as_str()), ("hand-written", "1.2.3"));
    assert_eq!((info.description.as_str(), info.config_schema.as_str()), ("text", ""));
    assert_eq!(info.digest.len(), 64);
}

#[test]
fn descriptions_are_one_line_without_control_codes() {
    let guest = Guest { text: "\\1b[1\\0a", ..Guest::default() };
    let (_, info) = fuel_loader().describe(&guest.component()).expect("it is a good component");
    assert_eq!(info.description, "\u{fffd}[1 ");
}

/// A scheduler's outline around `inside`.
fn outline(inside: &str) -> Vec<u8> {
    let text = format!(
        r#"(component {inside} (instance $i)
            (export "infer:policy/lifecycle@0.1.0" (instance $i))
            (export "infer:policy/scheduler@0.1.0" (instance $i)))"#
    );
    wat::parse_str(text).expect("well-formed text")
}

/// A module with one function, of this type and body.
fn function(signature: &str, body: &str) -> String {
    format!("(core module (func {signature} {body}))")
}

#[test]
fn components_that_take_gigabytes_to_compile_are_refused() {
    let made = |count: usize, of: &str| format!("(instance (instantiate {of}))").repeat(count);
    // A thousand bytes, of which wasmtime would make a hundred million instances.
    let tower = format!(
        "(component $a) (component $b (alias outer 1 0 (component $a)) {}) {}",
        made(100, "$a"),
        made(1, "$b")
    );
    let deep = format!("{}{}", "(component ".repeat(30), ")".repeat(30));
    let working = |inside: &str| format!("(component {inside})");
    let sum = |results: usize| {
        function(&format!("(result {})", "i32 ".repeat(results)), &"(i32.const 0)".repeat(results))
    };
    let branches = |locals: usize, branches: usize| {
        let text = format!("(local {}) {}", "i32 ".repeat(locals), "(block)".repeat(branches));
        function("", &text)
    };
    let module = |body: &str| {
        format!(
            r#"(core module (memory 1) (table 1 funcref) (func $f) (elem $e func $f) (data $d "") (func {body}))"#
        )
    };
    let calls = |calls: usize| module(&"(call $f)".repeat(calls));
    let cases: [(&str, String, &str); 18] = [
        ("a tower of instances", tower, "contains a component with modules"),
        ("components in components", deep, "contains a component with modules"),
        ("a module below", working("(core module)"), "contains a component with modules"),
        (
            "a function below",
            working(r#"(import "f" (func $f)) (core func (canon lower (func $f)))"#),
            "contains a component with modules",
        ),
        ("names below", working(r#"(import "f" (func $f)) (export "g" (func $f))"#), "rebuild it"),
        ("16 of a component", format!("(component $a) {}", made(16, "$a")), "rebuild it"),
        (
            "17 of a component",
            format!("(component $a) {}", made(17, "$a")),
            "17 instantiations, but the limit is 16",
        ),
        ("17 modules", "(core module)".repeat(17), "17 core modules"),
        ("32 parameters", function(&format!("(param {})", "i64 ".repeat(32)), ""), "rebuild it"),
        ("33 parameters", function(&format!("(param {})", "i64 ".repeat(33)), ""), "33 parameters"),
        ("4 results", sum(4), "rebuild it"),
        ("5 results", sum(5), "5 results"),
        ("900,000 locals at branches", branches(868, 999), "rebuild it"),
        ("over a million locals at branches", branches(968, 1_000), "units of code in one function"),
        ("29,000 calls in a function", calls(29_000), "rebuild it"),
        ("30,000 calls in a function", calls(30_000), "units of code in one function"),
        ("5 functions of 900,000", branches(868, 999).repeat(5), "units of code, but the limit is 4000000"),
        (
            "more types than a policy has",
            "(type (tuple u8 u8 u8 u8 u8 u8 u8 u8))".repeat(30_000),
            "bytes of types",
        ),
    ];
    // What the host does for a guest takes a call, however little the code says so.
    let as_calls = [
        "(call_indirect (i32.const 0))",
        "(return_call $f)",
        "(return_call_indirect (i32.const 0))",
        "(drop (ref.func $f))",
        "(elem.drop $e)",
        "(data.drop $d)",
        "(drop (table.get (i32.const 0)))",
        "(drop (memory.grow (i32.const 0)))",
        "(memory.fill (i32.const 0) (i32.const 0) (i32.const 0))",
    ];
    let hidden = as_calls.map(|call| (call, module(&call.repeat(30_000)), "units of code in one function"));
    let loader = fuel_loader();
    for (what, inside, message) in cases.into_iter().chain(hidden) {
        let check = if message == "rebuild it" { "interface" } else { "size" };
        expect_refusal(what, loader.describe(&outline(&inside)).map(drop), check, message);
    }
}

fn expect_refusal(what: &str, loaded: Result<(), LoadError>, check: &str, message: &str) {
    let error = loaded.expect_err(what);
    assert_eq!(error.check(), check, "{what}: {error}");
    assert!(error.to_string().contains(message), "{what}: {error}");
}
