//! The runner's exit code is the program's, and a program that traps or can't be run fails.

use std::process::Command;

/// A command component whose `run` does `body`.
fn program(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
            (core module $m (func (export "run") (result i32) {body}))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $exports (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $exports)))"#
    );
    wat::parse_str(text).expect("well-formed text")
}

#[test]
fn the_exit_code_tells_how_the_program_ended() {
    let home = tempfile::tempdir().expect("a directory");
    let cases = [
        ("ok", program("(i32.const 0)"), 0),
        ("an error", program("(i32.const 1)"), 1),
        ("a trap", program("unreachable"), 134),
        ("no program", b"text".to_vec(), 126),
    ];
    for (what, bytes, code) in cases {
        let path = home.path().join("program.wasm");
        std::fs::write(&path, bytes).expect("it is ours");
        let output = Command::new(env!("CARGO_BIN_EXE_wasi-runner")).arg(&path).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{what}: {output:?}");
    }
}
