//! How many blocks a prefix cache may name: an answer has room for millions, a pool has fewer.

mod support;

use infer_core::ids::Micros;
use infer_core::policy::{AnyPolicy, CacheEvents, FaultKind, Memory, PolicyKind, PrefixCachePolicy};
use support::{componentize, fuel_loader};

/// Answers an `observe` of 99 rows with as many names as their first depth says, and an `evict` with as many as it is
/// asked for. All of them are block 0. 512 holds `info`, 1024 zeros, 1040 the answer, 2048 what it is told, whose columns
/// all lie at 4096.
const NAMING: &str = r#"(module
  (memory (export "memory") 2)
  (func $names (param $count i32) (result i32)
    (i32.store (i32.const 1040) (i32.const 65536))
    (i32.store (i32.const 1044) (local.get $count))
    (i32.const 1040))
  (func (export "cabi_realloc") (param i32) (param i32) (param i32) (param $bytes i32) (result i32)
    (select (i32.const 2048) (i32.const 4096) (i32.eq (local.get $bytes) (i32.const 72))))
  (func (export "infer:policy/lifecycle@0.1.0#describe") (result i32) (i32.const 512))
  (func (export "infer:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/lifecycle@0.1.0#export-state") (result i32) (i32.const 1024))
  (func (export "infer:policy/lifecycle@0.1.0#import-state") (param i32 i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/prefix-cache@0.1.0#reuse")
      (param i64 i64 i32 i64 i32 i32 i32) (result i32) (i32.const 0))
  (func (export "infer:policy/prefix-cache@0.1.0#retain")
      (param i64 i64 i32 i64 i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 1024))
  (func (export "infer:policy/prefix-cache@0.1.0#observe") (param $events i32) (result i32)
    (if (i32.ne (i32.load offset=20 (local.get $events)) (i32.const 99)) (then (return (i32.const 1024))))
    (call $names (i32.load (i32.load offset=48 (local.get $events)))))
  (func (export "infer:policy/prefix-cache@0.1.0#evict") (param i64 i32) (result i32)
    (call $names (local.get 1)))
  (data (i32.const 512) "\58\02\00\00\06\00\00\00\5e\02\00\00\05\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00")
  (data (i32.const 600) "naming0.1.0"))"#;

const POOL_BLOCKS: u32 = 1_000;

fn naming() -> Box<dyn PrefixCachePolicy> {
    let component = componentize(&wat::parse_str(NAMING).expect("well-formed text"), "prefix-cache-policy");
    match fuel_loader().load(PolicyKind::PrefixCache, &component, "{}") {
        Ok(AnyPolicy::PrefixCache(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

/// 99 rows, all of whose columns begin alike, for the guest has them in one place.
fn asking_for(names: u32) -> CacheEvents {
    let rows = 99;
    CacheEvents {
        memory: Memory { total_blocks: POOL_BLOCKS, ..Memory::default() },
        at: vec![u64::from(names); rows],
        kind: vec![0; rows],
        block: vec![names; rows],
        parent: vec![names; rows],
        depth: vec![names; rows],
        tenant: vec![names; rows],
        session: vec![u64::from(names); rows],
    }
}

#[test]
fn an_answer_names_as_many_blocks_as_the_pool_has_and_no_more() {
    let mut policy = naming();
    for (names, fine) in [(0, true), (POOL_BLOCKS, true), (POOL_BLOCKS + 1, false), (16_000, false)] {
        let answers = [policy.observe(&asking_for(names)), policy.evict(Micros(1), names)];
        for answer in answers {
            match answer {
                Ok(blocks) => assert!(fine && blocks.len() == names as usize, "{names} were named"),
                Err(fault) => {
                    assert!(!fine && fault.kind == FaultKind::InvalidDecision, "{names}: {fault}");
                    assert!(fault.message.contains("of a pool of 1000"), "{fault}");
                }
            }
        }
    }
}
