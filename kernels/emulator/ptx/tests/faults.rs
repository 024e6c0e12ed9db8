//! What is refused: programs that aren't understood, launches that don't fit, and what kernels must not do.

mod common;

use common::{FIRST, Memory, faults, launch, parse, run};
use infer_ptx::{Machine, Module};

/// Checks that a body fails with every order of threads, on a line of the body, counted from 0.
fn fails(target: u32, body: &str, threads: u32, line: u32, said: &str) {
    let found = faults(target, body, threads);
    let place = format!("line {}", FIRST + line);
    let right = found.iter().all(|fault| fault.contains(&place) && fault.contains(said));
    assert!(found.len() == 8 && right, "{body}\nwants {place}, {said}: {found:#?}");
}

fn passes(target: u32, body: &str, threads: u32) {
    assert_eq!(faults(target, body, threads), [""; 0], "{body}");
}

#[test]
fn unknown_text_is_an_error_with_its_line() {
    for (body, said) in [
        ("add.sat.s32 %r1, %r2, %r3;", "an unknown instruction: add.sat.s32 %r1 , %r2 , %r3"),
        ("ld.volatile.global.u32 %r1, [%d30];", "an unknown instruction"),
        ("ld.global.cv.u32 %r1, [%d30];", "an unknown instruction"),
        (
            "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, \
          {%f0,%f1,%f2,%f3};",
            "an unknown instruction",
        ),
        ("cp.async.ca.shared.global.L2::128B [%r1], [%d1], 12, %r2;", "copies of 12 bytes don't exist"),
        ("cp.async.cg.shared.global.L2::256B [%r1], [%d1], 16, %r2;", "an unknown instruction"),
        ("cp.async.cg.shared.global.L2::128B [%r1], [%d1], %r2, 16;", "a number of bytes"),
        ("shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;", "an unknown instruction"),
        ("bar.sync 1;", "an unknown instruction"),
        ("add.s32 %r1, %r2;", "another number of operands"),
        ("add.s32 %r1, %d2, %r3;", "`%d2` has another width"),
        ("add.s32 %d1, %r2, %r3;", "`%d1` has another width"),
        ("add.s32 %r1, %r2, %r99;", "unknown operand `%r99`"),
        ("add.s32 %r1, %r2, 4294967296;", "unknown operand `4294967296`"),
        ("mov.u32 %r1, %clock;", "unknown operand `%clock`"),
        ("bra $nowhere;", "no label `$nowhere`"),
        (".local .align 4 .b8 stack[16];", "`,` is missing"),
    ] {
        let error = parse(80, body).expect_err(body).message;
        assert!(error.starts_with(&format!("line {FIRST}: ")) && error.contains(said), "{body}: {error}");
    }
    let error = Module::parse(".version 9.0\n.target sm_90\n.global .b32 x;").expect_err("a variable");
    assert_eq!(error.message, "line 3: unknown directive `.global`");
}

#[test]
fn accesses_outside_or_across_are_refused() {
    fails(80, "ld.global.u32 %r1, [%d30+256];", 32, 0, "4 bytes at");
    fails(80, "ld.global.u32 %r1, [%d30+-4];", 32, 0, "are in no allocation");
    fails(80, "mov.u32 %r1, 0;\nst.global.u32 [%d30+2], %r1;", 32, 1, "are not aligned");
    fails(80, "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d30+8];", 32, 0, "16 bytes at");
    fails(80, "atom.global.or.b32 %r1, [%d30+256], 1;", 32, 0, "are in no allocation");
    fails(
        80,
        "mov.u32 %r1, shared;\nst.shared.u32 [%r1+1024], %r1;",
        32,
        1,
        "are not in the block's shared memory",
    );
    fails(80, "mov.u32 %r1, 0;\nld.shared.u32 %r1, [%r1];", 32, 1, "are not in the block's shared memory");
    fails(80, "mov.u32 %r1, shared;\nld.shared.u64 %d1, [%r1+4];", 32, 1, "are not aligned");
    fails(80, "ld.param.u32 %r1, [k_param_0+8];", 32, 0, "are not in the parameters");
    passes(
        80,
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d30+240];\nmov.u32 %r1, shared;\nld.shared.u32 %r1, [%r1+1020];",
        32,
    );
}

/// Thread 0 writes a word; then, after `between`, some thread accesses it.
fn meeting(between: &str, reader: u32, access: &str) -> String {
    format!(
        "mov.u32 %r1, shared;\nsetp.ne.s32 %p1, %r30, 0;\nsetp.ne.s32 %p2, %r30, {reader};\nmov.u32 %r3, -1;\n\
         @!%p1 st.shared.u32 [%r1], %r1;\n{between}\n@!%p2 {access};"
    )
}

#[test]
fn accesses_that_nothing_orders_are_a_race() {
    let (read, write) = ("ld.shared.u32 %r2, [%r1]", "st.shared.u32 [%r1], %r30");
    let (shuffle, none) = ("shfl.sync.bfly.b32 %r4|%p4, %r1, 1, 31, %r3;", "mov.u32 %r5, 0;");
    for (between, reader, access, race) in [
        (none, 1, read, true),
        (none, 1, write, true),
        (none, 40, read, true),
        (none, 0, read, false),
        ("bar.sync 0;", 1, read, false),
        ("bar.sync 0;", 40, write, false),
        ("bar.warp.sync -1;", 1, read, false),
        ("bar.warp.sync -1;", 1, write, false),
        ("bar.warp.sync -1;", 40, read, true),
        // Lanes meet, but memory isn't ordered.
        (shuffle, 1, read, true),
        (none, 40, "atom.shared.add.u32 %r2, [%r1], 1", true),
    ] {
        let body = meeting(between, reader, access);
        let found = faults(80, &body, 64);
        assert_eq!(found.len(), if race { 8 } else { 0 }, "{body}: {found:?}");
        let lines = [format!("line {}", FIRST + 4), format!("line {}", FIRST + 6)];
        for fault in found {
            assert!(fault.contains("with no barrier since"), "{body}: {fault}");
            assert!(lines.iter().all(|line| fault.contains(line)), "{body}: {fault}");
        }
    }
    passes(80, "mov.u32 %r1, shared;\natom.shared.add.u32 %r2, [%r1], 1;", 64);
    passes(80, "mov.u32 %r1, shared;\nld.shared.u32 %r2, [%r1];", 64);
    // Neighbouring bytes are other memory.
    let bytes = "mov.u32 %r1, shared;\nadd.s32 %r1, %r1, %r30;\nmov.u16 %h1, 1;\nst.shared.u8 [%r1], %h1;";
    passes(80, bytes, 64);
    // A read in one warp, then one in another, then a write in the first: the second still conflicts.
    let mixed = "mov.u32 %r1, shared;\nld.shared.u32 %r2, [%r1];\nbar.warp.sync -1;\nsetp.ne.s32 %p1, %r30, 0;\n\
                 @!%p1 st.shared.u32 [%r1], %r1;";
    assert_eq!(faults(80, mixed, 64).len(), 8);
    passes(80, mixed, 32);
}

/// Without a barrier, what is read depends on the order of threads.
#[test]
fn seeds_choose_the_order_and_repeat() {
    let body = "mov.u32 %r1, shared;\nst.shared.u32 [%r1], %r30;\nld.shared.u32 %r2, [%r1];\n\
                setp.ne.s32 %p1, %r30, 0;\n@!%p1 st.global.u32 [%d30], %r2;\nbar.sync 0;\nld.shared.u32 %r2, [%r1];\n\
                st.global.u32 [%d30+4], %r2;";
    let module = parse(80, body).unwrap();
    let last = |seed| {
        let mut memory = Memory::new(&[0; 4]);
        let params = memory.at().to_ne_bytes();
        let mut machine = Machine::default();
        machine.ignore_races();
        machine.run(&module, &launch(&params, 64, seed), &mut memory).unwrap();
        memory.words()[1]
    };
    let all: Vec<u32> = (0..8).map(last).collect();
    assert!(all.iter().any(|one| *one != all[0]), "{all:?}");
    assert_eq!(all, (0..8).map(last).collect::<Vec<u32>>());
}

#[test]
fn threads_must_meet() {
    let some = "setp.lt.u32 %p1, %r30, 7;\n";
    fails(80, &format!("{some}@%p1 bra $on;\nbar.sync 0;\n$on:\n"), 64, 2, "it waits for threads that ended");
    fails(80, &format!("{some}@%p1 ret;\nbar.sync 0;"), 32, 2, "it waits for threads that ended");
    let two = "@%p1 bra $other;\nbar.sync 0;\nbra $on;\n$other:\nbar.sync 0;\n$on:\n";
    let found = faults(80, &format!("{some}{two}"), 32);
    assert!(
        found.len() == 8 && found.iter().all(|fault| fault.contains("other lanes of the warp are at")),
        "{found:?}"
    );
    // Whole warps may be at different barriers.
    passes(80, &format!("setp.lt.u32 %p1, %r30, 32;\n{two}"), 64);
    let stuck = format!(
        "{some}mov.u32 %r3, -1;\n@%p1 bra $on;\nshfl.sync.bfly.b32 %r4|%p4, %r1, 1, 31, %r3;\n$on:\nbar.sync 0;"
    );
    let found = faults(80, &stuck, 32);
    assert!(
        found.len() == 8 && found.iter().all(|fault| fault.contains("it waits for threads that are at")),
        "{found:?}"
    );
    fails(
        80,
        "shfl.sync.bfly.b32 %r4|%p4, %r30, 1, 31, 65535;",
        32,
        0,
        "names only the lanes of mask 0xffff",
    );
    fails(80, "mov.u32 %r1, 0;\n$on:\nbra $on;", 32, 2, "the thread doesn't end");
    fails(80, "mov.u32 %r1, 0;\nrem.u32 %r2, %r30, %r1;", 32, 1, "a division by zero");
}

#[test]
fn kernels_that_start_early_wait_before_they_write() {
    let wait = "griddepcontrol.wait;\n";
    let write = "mov.u32 %r1, 1;\nst.global.u32 [%d30], %r1;\n";
    let atomic = "mov.u32 %r1, 1;\natom.global.or.b32 %r2, [%d30], %r1;\n";
    fails(90, &format!("{write}{wait}"), 32, 1, "a write to global memory before `griddepcontrol.wait`");
    fails(90, &format!("{atomic}{wait}"), 32, 1, "a write to global memory before `griddepcontrol.wait`");
    fails(
        90,
        "mov.u32 %r1, 1;\ngriddepcontrol.launch_dependents;",
        32,
        2,
        "ends without `griddepcontrol.wait`",
    );
    fails(90, &format!("setp.eq.s32 %p1, %r30, 5;\n@%p1 ret;\n{wait}"), 32, 1, "thread 5");
    passes(90, &format!("griddepcontrol.launch_dependents;\n{wait}{write}"), 32);
    passes(
        90,
        &format!(
            "mov.u32 %r1, shared;\nshl.b32 %r2, %r30, 2;\nadd.s32 %r1, %r1, %r2;\nst.shared.u32 [%r1], %r1;\n{wait}"
        ),
        32,
    );
    passes(80, write, 32);
}

#[test]
fn reads_before_the_wait_are_told() {
    let body = "ld.global.cg.u32 %r1, [%d30+4];\nmov.u32 %r2, shared;\nsetp.ne.s32 %p1, %r30, 0;\n@%p1 bra $on;\n\
                cp.async.ca.shared.global.L2::128B [%r2], [%d30+0], 8, 8;\ncp.async.commit_group;\ncp.async.wait_group 0;\n\
                $on:\ngriddepcontrol.wait;\nld.global.u32 %r1, [%d30+12];";
    let mut memory = Memory::new(&[0; 8]);
    run(90, body, 32, 0, &mut memory).unwrap();
    let mut early = memory.early.take();
    early.dedup();
    early.sort_unstable();
    early.dedup();
    assert_eq!(early, [(0, 8), (4, 4)]);
    memory.refuse_early = true;
    let error = run(90, body, 32, 0, &mut memory).expect_err("refused");
    assert!(error.message.ends_with("too early"), "{error}");
}

#[test]
fn launches_must_fit_the_kernel() {
    let module = parse(80, "mov.u32 %r1, 0;").unwrap();
    let mut memory = Memory::new(&[0; 2]);
    let mut run = |params: &[u8], threads, kernel| {
        let launch = infer_ptx::Launch { kernel, ..launch(params, threads, 0) };
        Machine::default().run(&module, &launch, &mut memory).map_err(|error| error.message)
    };
    assert_eq!(run(&[0; 8], 64, "k"), Ok(()));
    assert_eq!(run(&[0; 8], 64, "j"), Err("no kernel `j`".to_owned()));
    assert_eq!(run(&[0; 12], 64, "k"), Err("k: 12 bytes of parameters, but the kernel has 8".to_owned()));
    for threads in [0, 48, 96] {
        assert!(run(&[0; 8], threads, "k").expect_err("refused").contains("threads"), "{threads}");
    }
    let text = common::program(80, "mov.u32 %r1, 0;").replace(".maxntid 64, 1, 1", ".reqntid 64, 1, 1");
    let module = Module::parse(&text).unwrap();
    let params = [0; 8];
    let error = Machine::default().run(&module, &launch(&params, 32, 0), &mut memory);
    assert!(error.expect_err("refused").message.contains("wants Some(64)"));
}

#[test]
fn faults_name_the_line_of_the_source_if_the_file_tells() {
    let body = "mov.u32 %r1, 0;\n.loc 2 41 7, function_name $L__info_string0, inlined_at 1 9 3\n\
                ld.global.u32 %r1, [%d30+4096];";
    let text = common::program(80, body)
        + ".file 1 \"/a/norm.cu\"\n.file 2 \"/a/device.cuh\"\n.section .debug_str\n{\n.b8 1\n}\n";
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new(&[0; 2]);
    let params = memory.at().to_ne_bytes();
    let error = Machine::default().run(&module, &launch(&params, 32, 0), &mut memory).expect_err("outside");
    assert!(error.message.contains("(/a/device.cuh:41, called at /a/norm.cu:9)"), "{error}");
}
