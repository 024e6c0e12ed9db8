//! Seeds of the upload fuzzer: a small policy for each slot, whose answers are in its data, so that a changed
//! byte is another policy or another answer. Bytes that never were a component don't get past the header.
//!
//! `WRITE_SEEDS=1` rewrites the files, after a change of `wit/` or of the encoder.

use std::path::Path;

use crate::support::{componentize, fuel_loader};
use infer_core::policy::PolicyKind;

/// Exports of a slot. 1024 holds zeros, which is a harmless answer to every call.
const SLOTS: [(PolicyKind, &str); 3] = [
    (
        PolicyKind::Scheduler,
        r#"(func (export "infer:policy/scheduler@0.1.0#schedule") (param i32) (result i32) (i32.const 1024))"#,
    ),
    (
        PolicyKind::Admission,
        r#"(func (export "infer:policy/admission@0.1.0#admit") (param i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/admission@0.1.0#measure") (param i32) (result i32) (i32.const 1024))"#,
    ),
    (
        PolicyKind::PrefixCache,
        r#"(func (export "infer:policy/prefix-cache@0.1.0#reuse")
      (param i64 i64 i32 i64 i32 i32 i32) (result i32) (i32.const 0))
  (func (export "infer:policy/prefix-cache@0.1.0#retain")
      (param i64 i64 i32 i64 i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/prefix-cache@0.1.0#observe") (param i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/prefix-cache@0.1.0#evict") (param i64 i32) (result i32) (i32.const 1024))"#,
    ),
];

/// 512 holds `info`, whose name and version are at 600 and whose texts are empty. Memory for arguments is
/// handed out from 4096 on, again and again.
fn text(exports: &str) -> String {
    format!(
        r#"(module
  (import "infer:policy/host@0.1.0" "log" (func $log (param i32 i32 i32)))
  (memory (export "memory") 2)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
  (func (export "infer:policy/lifecycle@0.1.0#describe") (result i32) (i32.const 512))
  (func (export "infer:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32)
    (call $log (i32.const 1) (i32.const 600) (i32.const 4))
    (i32.const 1024))
  (func (export "infer:policy/lifecycle@0.1.0#export-state") (result i32) (i32.const 1024))
  (func (export "infer:policy/lifecycle@0.1.0#import-state") (param i32 i32) (result i32) (i32.const 1024))
  {exports}
  (data (i32.const 512) "\58\02\00\00\04\00\00\00\5c\02\00\00\05\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 600) "seed0.1.0")
  (data (i32.const 1024) "\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00"))"#
    )
}

#[test]
fn upload_fuzzing_seeds_are_policies_that_load() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/component");
    for (kind, exports) in SLOTS {
        let module = wat::parse_str(text(exports)).expect("well-formed text");
        let made = componentize(&module, &format!("{kind}-policy"));
        let file = corpus.join(format!("{kind}.wasm"));
        if std::env::var_os("WRITE_SEEDS").is_some() {
            std::fs::write(&file, &made).expect("the corpus can be written");
        }
        let kept = std::fs::read(&file).expect("the corpus has one for each slot");
        assert!(kept == made, "{} is another than is made here; WRITE_SEEDS=1 writes it", file.display());
        fuel_loader().load(kind, &kept, "{}").unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}
