//! What happens when a live policy fails: the fault's kind, and what a restart restores.

use std::thread;
use std::time::Duration;

use crate::support::{Guest, SPIN, TAKE_MEMORY, TRIGGER, fuel_loader, loader, patient, scheduler, view};
use infer_core::ids::{Micros, SequenceId};
use infer_core::policy::{FaultKind, PolicyFault, SchedulerPolicy};
use infer_wasm::{LoaderConfig, PolicyLoader};

/// A plan whose `run` starts at 4096 and has this many rows.
fn long_run(rows: u32) -> String {
    format!(
        "(drop (memory.grow (i32.const 900)))
         (i32.store (i32.const 1104) (i32.const 4096)) (i32.store (i32.const 1108) (i32.const {rows}))
         (return (i32.const 1104))"
    )
}

/// Writes that many lines of that many bytes.
fn log_lines(lines: u32, bytes: u32) -> String {
    format!(
        "(loop $on
            (call $log (i32.const 1) (i32.const 1104) (i32.const {bytes}))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $on (i32.lt_u (local.get $i) (i32.const {lines}))))"
    )
}

fn fail(policy: &mut dyn SchedulerPolicy) -> PolicyFault {
    policy.schedule(&view(TRIGGER, 2, 2)).expect_err("it fails in this step")
}

#[test]
fn each_way_to_fail_has_its_kind_and_a_restart_brings_the_policy_back() {
    let too_long = long_run((8 << 20) / 8 + 1);
    let cases = [
        ("unreachable", "unreachable", FaultKind::Trap, "in `schedule`"),
        ("a load out of bounds", "(drop (i32.load (i32.const -8)))", FaultKind::Trap, "out of bounds"),
        ("endless recursion", "(drop (call $recurse))", FaultKind::Trap, "call stack"),
        ("an endless loop", SPIN, FaultKind::Deadline, "fuel"),
        ("more memory than allowed", TAKE_MEMORY, FaultKind::Memory, "but the limit is 67108864"),
        (
            "a plan outside its memory",
            "(return (i32.const -64))",
            FaultKind::InvalidDecision,
            "can't be read",
        ),
        (
            "a plan of a million rows and one",
            &too_long,
            FaultKind::InvalidDecision,
            "schedule() returned an answer larger than the limit of 8388608 bytes",
        ),
        (
            "a line of nine megabytes",
            "(drop (memory.grow (i32.const 900)))
             (call $log (i32.const 1) (i32.const 4096) (i32.const 9000000))",
            FaultKind::InvalidDecision,
            "schedule() passed the host a text larger than the limit of 8388608 bytes",
        ),
        (
            "more log than a call may write",
            &log_lines(400, 3_000),
            FaultKind::Trap,
            "of log and gauges to the host in one call",
        ),
        (
            "lines without text and without end",
            &log_lines(20_000, 0),
            FaultKind::Trap,
            "of log and gauges to the host in one call",
        ),
        (
            "a panic with a message",
            "(call $log (i32.const 3) (i32.const 800) (i32.const 4)) unreachable",
            FaultKind::Trap,
            "its last error line: text",
        ),
    ];
    let loader = fuel_loader();
    for (what, body, kind, message) in cases {
        let mut policy = scheduler(&loader, &Guest::failing_with(body).component()).expect(what);
        policy.schedule(&view(1, 2, 2)).expect(what);
        let fault = fail(&mut *policy);
        assert_eq!(fault.kind, kind, "{what}: {fault}");
        assert!(fault.message.contains(message), "{what}: {fault}");

        let dead = policy.schedule(&view(1, 2, 2)).expect_err("its instance is gone");
        assert_eq!(dead.kind, FaultKind::Setup, "{what}: {dead}");
        policy.restart().expect(what);
        policy.schedule(&view(1, 2, 2)).expect(what);
    }
}

#[test]
fn a_fault_names_the_function_of_the_policy_that_led_to_it() {
    let guest = Guest::failing_with("(call $look_up)");
    let more = r#"
        (func $look_up (@name "_RNvCs1234_4mine7look_up") (call $panic_fmt))
        (func $panic_fmt (@name "_ZN4core9panicking9panic_fmt17h0123456789abcdefE") (call $abort))
        (func $abort (@name "_RNvCsfLfy6EI15iL_7___rustc12___rust_abort") unreachable)"#;
    let mut policy = scheduler(&fuel_loader(), &guest.component_for(str::to_owned, more)).expect("it loads");
    let fault = fail(&mut *policy);
    assert!(fault.message.ends_with(", in `mine::look_up`"), "{fault}");
}

#[test]
fn the_largest_allowed_plan_is_read() {
    let rows = 1_000_000;
    let guest = Guest::failing_with(&long_run(rows));
    let mut policy = scheduler(&fuel_loader(), &guest.component()).expect("it loads");
    let plan = policy.schedule(&view(TRIGGER, 0, 0)).expect("within the bound");
    assert_eq!(plan.run.len(), rows as usize);
}

#[test]
fn a_restarted_policy_is_blank_until_it_imports_a_state() {
    let mut policy =
        scheduler(&fuel_loader(), &Guest::failing_with("unreachable").component()).expect("it loads");
    assert_eq!(policy.export_state(), Ok(vec![0, 0, 0, 0]), "the self-test left no trace");
    for _ in 0..3 {
        policy.schedule(&view(1, 1, 1)).expect("a plan");
    }
    assert_eq!(policy.export_state(), Ok(vec![3, 0, 0, 0]));
    policy.schedule(&view(1, 1, 1)).expect("a plan");
    fail(&mut *policy);
    policy.restart().expect("a fresh instance");
    assert_eq!(policy.export_state(), Ok(vec![0, 0, 0, 0]));
    policy.import_state(&[3, 0, 0, 0]).expect("what it exported");
    assert_eq!(policy.export_state(), Ok(vec![3, 0, 0, 0]));
    assert_eq!(policy.stats().calls, 5, "failed calls count, exports don't");
}

#[test]
fn a_refused_state_leaves_the_policy_unchanged() {
    let mut policy = scheduler(&fuel_loader(), &Guest::default().component()).expect("it loads");
    policy.import_state(&[7, 0, 0, 0]).expect("it takes four bytes");
    let refused = policy.import_state(&[1]).expect_err("it takes nothing else");
    assert_eq!((refused.is_refusal(), refused.message.as_str()), (true, "text"));
    assert_eq!(policy.export_state(), Ok(vec![7, 0, 0, 0]));
}

#[test]
fn a_policy_failing_on_import_restarts_cold() {
    let guest = Guest { misfit: "unreachable".into(), ..Guest::default() };
    let mut policy = scheduler(&fuel_loader(), &guest.component()).expect("it loads");
    policy.import_state(&[7, 0, 0, 0]).expect("it takes four bytes");
    let fault = policy.import_state(&[1]).expect_err("it fails over anything else");
    assert!(fault.kind == FaultKind::Trap && !fault.is_refusal(), "{fault}");
    policy.schedule(&view(1, 1, 1)).expect_err("its instance is gone");
    policy.restart().expect("a fresh instance");
    policy.schedule(&view(1, 1, 1)).expect("it answers");
    assert_eq!(policy.export_state(), Ok(vec![1, 0, 0, 0]), "nothing of the state before is left");
}

#[test]
fn a_spinning_policy_hits_its_deadline_and_a_busy_one_beside_it_does_not() {
    // A few milliseconds of work see ticks come and go, far below the limit, whatever the system takes of a call's time.
    let loader = loader(LoaderConfig { deadline: Duration::from_secs(2), ..LoaderConfig::default() });
    let busy = "(loop $on
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $on (i32.lt_u (local.get $i) (i32.const 3000000))))
        (i32.const 1024)";
    let busy = Guest { schedule: busy.into(), ..Guest::default() }.component();
    let mut busy = scheduler(&loader, &busy).expect("it loads");
    let mut spinning = scheduler(&loader, &Guest::failing_with(SPIN).component()).expect("it loads");

    let fault = thread::scope(|scope| {
        let spinning = scope.spawn(|| fail(&mut *spinning));
        while !spinning.is_finished() {
            busy.schedule(&view(1, 2, 2)).expect("it stays within its own limit");
        }
        spinning.join().expect("no panic")
    });
    assert_eq!(fault.kind, FaultKind::Deadline, "{fault}");
    assert!(fault.message.contains("ran longer than 2s"), "{fault}");
}

#[test]
fn spent_time_is_the_sum_of_calls_and_zero_under_fuel() {
    let component = Guest::failing_with("unreachable").component();
    let spent_by = |loader: PolicyLoader| {
        let mut policy = scheduler(&loader, &component).expect("it loads");
        assert_eq!(policy.spent(), Micros::ZERO, "the self-test is not charged");
        for _ in 0..1_000 {
            policy.schedule(&view(1, 32, 1_000)).expect("a plan");
        }
        let before = policy.spent();
        fail(&mut *policy);
        policy.restart().expect("a fresh instance");
        assert!(policy.spent() >= before, "a restart forgets nothing of it");
        before
    };
    assert!(spent_by(loader(patient())) > Micros::ZERO);
    assert_eq!(spent_by(fuel_loader()), Micros::ZERO);
}

#[test]
fn fuel_ends_a_call_at_the_same_instruction_every_time() {
    // It reports its progress as a letter, so two ends at different places have different messages.
    let count = "(loop $on
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (i32.store8 (i32.const 800) (i32.add (i32.const 65) (i32.rem_u (local.get $i) (i32.const 26))))
        (call $log (i32.const 3) (i32.const 800) (i32.const 1))
        (br $on))";
    let guest = Guest {
        schedule: format!(
            "(if (i64.eq (i64.load offset=8 (local.get $step)) (i64.const {TRIGGER}))
               (then {})) (i32.const 1024)",
            count
        ),
        ..Guest::default()
    };
    let loader = loader(LoaderConfig { fuel: Some(20_000), ..LoaderConfig::default() });
    let mut policy = scheduler(&loader, &guest.component()).expect("it loads");
    let first = fail(&mut *policy);
    assert!(first.message.contains("its last error line"), "{first}");
    for _ in 0..3 {
        policy.restart().expect("a fresh instance");
        assert_eq!(fail(&mut *policy), first);
    }
}

#[test]
fn every_column_arrives_unswapped() {
    // Steps from 1000 on return a column: `tokens` is that column of the running rows, `run` their ids,
    // `preempt` the waiting ids, `wake` the duration of the last step.
    let echo = "        (if (i64.lt_u (i64.load offset=8 (local.get $step)) (i64.const 1000)) (then (return (i32.const 1024))))
        (local.set $i (i32.add (local.get $step)
            (i32.mul (i32.const 8) (i32.sub (i32.wrap_i64 (i64.load offset=8 (local.get $step))) (i32.const 1000)))))
        (i64.store (i32.const 1104) (i64.load offset=84 (local.get $step)))
        (i64.store (i32.const 1112) (i64.load offset=84 (local.get $i)))
        (i64.store (i32.const 1120) (i64.load offset=212 (local.get $step)))
        (i64.store (i32.const 1128) (i64.load offset=16 (local.get $step)))
        (i32.const 1104)";
    let guest = Guest { schedule: echo.into(), ..Guest::default() };
    let mut policy = scheduler(&fuel_loader(), &guest.component()).expect("it loads");
    let ids = |ids: &[u64]| ids.iter().copied().map(SequenceId).collect::<Vec<_>>();
    for rows in [(0, 0), (1, 3), (256, 1_000), (1_000, 10_000)] {
        let mut view = view(1_000, rows.0, rows.1);
        let running = view.running.clone();
        let narrow = [
            (1, running.tenant),
            (6, running.prompt_tokens),
            (7, running.computed_tokens),
            (8, running.pending_tokens),
            (9, running.idle_blocks),
            (10, running.generated_tokens),
            (11, running.max_new_tokens),
            (12, running.expected_tokens),
            (13, running.blocks),
            (14, running.freeable_blocks),
            (15, running.preemptions),
        ];
        for (column, want) in narrow {
            view.number = 1_000 + column;
            let plan = policy.schedule(&view).expect("an echo");
            assert_eq!(plan.tokens, want, "column {column} of {rows:?}");
            assert_eq!(plan.run, ids(&view.running.id));
            assert_eq!(plan.preempt, ids(&view.waiting.id));
            assert_eq!(plan.wake, view.last_step);
        }
    }
}

#[test]
fn each_call_may_log_its_burst() {
    let mut policy = scheduler(&fuel_loader(), &Guest::failing_with(&log_lines(300, 3_000)).component())
        .expect("it loads");
    for _ in 0..3 {
        policy.schedule(&view(TRIGGER, 0, 0)).expect("within the bound");
    }
}
