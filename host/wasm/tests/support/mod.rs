//! Guests written by hand in WebAssembly text, so that each test shows the one thing its guest does.
//!
//! A `Guest` is a core module with a bump allocator and harmless answers; a test replaces one of them.
//! Encoding it against `wit/` gives the same kind of component that the plugins build.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use infer_core::config::Limits;
use infer_core::ids::Micros;
use infer_core::policy::{
    AnyPolicy, Memory, PolicyKind, SchedulerPolicy, SequenceColumns, StepView, TenantColumns,
};
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Collects what a subscriber writes.
#[derive(Clone, Default)]
pub struct Lines(pub Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const WIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");

/// Number of a step at which a guest under test misbehaves. Self-tests use small ones.
pub const TRIGGER: u64 = 99;

/// Never ends.
pub const SPIN: &str = "(loop $forever (br $forever))";
/// Grows until it is refused, then traps as Rust's allocator does.
pub const TAKE_MEMORY: &str =
    "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 64)) (i32.const -1)))) unreachable";

/// A scheduler in WebAssembly text. The bodies may use `$counter` (a global), `$i` (a local), `$log`
/// and `$gauge`.
pub struct Guest {
    pub name: &'static str,
    /// Runs at instantiation.
    pub start: String,
    /// Returns the address of a `result<_, string>`; 1024 holds an Ok, 1080 an Err.
    pub configure: String,
    /// Runs if `import-state` gets other than four bytes; 1080 is a refusal.
    pub misfit: String,
    /// `$step` is the address of the view; returns the address of a plan. 1024 holds an empty one.
    pub schedule: String,
    /// What `info.name` points to, in place of `name`.
    pub describe: String,
    /// Four bytes at 800, as a WebAssembly string: its description, and what it may log or call a gauge.
    pub text: &'static str,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            name: "hand-written",
            start: String::new(),
            configure: "(i32.const 1024)".into(),
            misfit: "(return (i32.const 1080))".into(),
            schedule: "(i32.const 1024)".into(),
            describe: "(i32.const 512)".into(),
            text: "text",
        }
    }
}

impl Guest {
    /// A guest that does `body` in the step `TRIGGER` and returns an empty plan otherwise.
    pub fn failing_with(body: &str) -> Self {
        Self {
            schedule: format!(
                "(if (i64.eq (i64.load offset=8 (local.get $step)) (i64.const {TRIGGER})) (then {body})) (i32.const 1024)"
            ),
            ..Self::default()
        }
    }

    pub fn component(&self) -> Vec<u8> {
        self.component_for(str::to_owned, "")
    }

    /// For a copy of `wit/` in which `edit` has changed each file, with further functions in the module. The names of
    /// what the guest imports and exports are edited, too.
    pub fn component_for(&self, edit: impl Fn(&str) -> String, more: &str) -> Vec<u8> {
        let text = self.text();
        let text = format!("{}{more})", text.strip_suffix(')').expect("it ends with the module"));
        let module = wat::parse_str(edit(&text)).expect("the guest is well-formed text");
        let copy = tempfile::tempdir().expect("a directory");
        for file in std::fs::read_dir(WIT).expect("wit/ can be read") {
            let file = file.expect("wit/ can be read");
            if file.path().extension().is_some_and(|extension| extension == "wit") {
                let text = std::fs::read_to_string(file.path()).expect("it is text");
                std::fs::write(copy.path().join(file.file_name()), edit(&text)).expect("it can be written");
            }
        }
        componentize_in(copy.path(), &module, "scheduler-policy")
    }

    fn text(&self) -> String {
        let Self { name, start, configure, misfit, schedule, describe, text } = self;
        let name_len = name.len();
        // Below 4096: 512 the record `info`, 600 its name, 700 a version, 800 text, 1024 zeros,
        // 1080 a refusal, 1104 room for a plan, 1200 an exported state (list at 1200, bytes at 1208).
        format!(
            r#"(module
  (import "infer:policy/host@0.1.0" "log" (func $log (param i32 i32 i32)))
  (import "infer:policy/host@0.1.0" "gauge" (func $gauge (param i32 i32 f64)))
  (memory (export "memory") 1)
  (global $counter (mut i32) (i32.const 0))
  (global $next (mut i32) (i32.const 4096))
  (func $allocate (export "cabi_realloc")
      (param $old i32) (param $old_bytes i32) (param $align i32) (param $bytes i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get $bytes)))
    (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow (i32.add (i32.shr_u (local.get $bytes) (i32.const 16)) (i32.const 1))))))
    (local.get $at))
  (func $recurse (result i32) (i32.add (call $recurse) (i32.const 1)))
  (func $begin {start})
  (start $begin)
  (func (export "infer:policy/lifecycle@0.1.0#describe") (result i32) {describe})
  (func $configure (export "infer:policy/lifecycle@0.1.0#configure") (param $config i32) (param $len i32) (result i32)
    {configure})
  (func (export "infer:policy/lifecycle@0.1.0#export-state") (result i32)
    (i32.store (i32.const 1200) (i32.const 1208))
    (i32.store (i32.const 1204) (i32.const 4))
    (i32.store (i32.const 1208) (global.get $counter))
    (i32.const 1200))
  (func (export "infer:policy/lifecycle@0.1.0#import-state") (param $state i32) (param $len i32) (result i32)
    (if (i32.ne (local.get $len) (i32.const 4)) (then {misfit}))
    (global.set $counter (i32.load (local.get $state)))
    (i32.const 1024))
  (func $schedule (export "infer:policy/scheduler@0.1.0#schedule") (param $step i32) (result i32)
    (local $i i32)
    (global.set $counter (i32.add (global.get $counter) (i32.const 1)))
    {schedule})
  (func (export "cabi_post_infer:policy/scheduler@0.1.0#schedule") (param i32)
    (global.set $next (i32.const 4096)))
  (data (i32.const 512) "\58\02\00\00\{name_len:02x}\00\00\00\bc\02\00\00\05\00\00\00\20\03\00\00\04\00\00\00\bc\02\00\00\00\00\00\00")
  (data (i32.const 600) "{name}")
  (data (i32.const 700) "1.2.3")
  (data (i32.const 800) "{text}")
  (data (i32.const 1080) "\01\00\00\00\20\03\00\00\04\00\00\00"))"#
        )
    }
}

/// Wraps a core module into a component of `world`.
pub fn componentize(module: &[u8], world: &str) -> Vec<u8> {
    componentize_in(Path::new(WIT), module, world)
}

fn componentize_in(wit: &Path, module: &[u8], world: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit).expect("wit/ parses");
    let world = resolve.select_world(&[package], Some(world)).expect("the world exists");
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata fits");
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(&module).expect("the module fits its world");
    encoder.encode().expect("the component encodes")
}

/// Fuel instead of a deadline: what runs too long does so on every machine alike.
pub fn fuel_loader() -> PolicyLoader {
    loader(LoaderConfig { fuel: Some(10_000_000), ..LoaderConfig::default() })
}

/// A live host's limits, but all the time in the world: a call also pays for what the system does meanwhile, such as
/// finding memory on a machine that has none left.
pub fn patient() -> LoaderConfig {
    LoaderConfig { deadline: Duration::from_secs(3_600), ..LoaderConfig::default() }
}

pub fn loader(config: LoaderConfig) -> PolicyLoader {
    PolicyLoader::new(config).expect("the engine is set up")
}

pub fn scheduler(loader: &PolicyLoader, component: &[u8]) -> Result<Box<dyn SchedulerPolicy>, LoadError> {
    match loader.load(PolicyKind::Scheduler, component, "{}")? {
        AnyPolicy::Scheduler(policy) => Ok(policy),
        other => panic!("asked for a scheduler, got {other:?}"),
    }
}

/// A view with this many rows, where each cell of a column differs from every other.
pub fn view(number: u64, running: usize, waiting: usize) -> StepView {
    StepView {
        now: Micros(1_000_000),
        number,
        last_step: Micros(20_000),
        last_prefill_tokens: 0,
        last_decodes: 0,
        idle_since: Micros::NEVER,
        starvation_bound: Micros(5_000_000),
        limits: Limits {
            max_batch_tokens: 2_048,
            max_running: 256,
            prefill_chunk: 512,
            max_prefill_sequences: 8,
            max_prefill_tokens: 4_096,
        },
        memory: Memory { block_size: 16, total_blocks: 1_024, free_blocks: 512, cached_blocks: 128 },
        running: columns(running, 1),
        waiting: columns(waiting, 1_000_000),
        tenants: TenantColumns::default(),
    }
}

fn columns(rows: usize, first: u64) -> SequenceColumns {
    let wide = |column: u64| (first + column * 10_000_000..).take(rows).collect::<Vec<u64>>();
    let narrow = |column: u32| (first as u32 + column * 10_000_000..).take(rows).collect::<Vec<u32>>();
    SequenceColumns {
        id: wide(0),
        tenant: narrow(1),
        session: wide(2),
        priority: narrow(3).into_iter().map(|value| value as i32).collect(),
        arrived: wide(4),
        deadline: wide(5),
        prompt_tokens: narrow(6),
        computed_tokens: narrow(7),
        pending_tokens: narrow(8),
        idle_blocks: narrow(9),
        generated_tokens: narrow(10),
        max_new_tokens: narrow(11),
        expected_tokens: narrow(12),
        blocks: narrow(13),
        freeable_blocks: narrow(14),
        preemptions: narrow(15),
    }
}
