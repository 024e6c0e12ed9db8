//! Matrix products of warpgroups: where numbers lie, and what they may not do.

mod common;

use common::{Memory, parse};
use infer_ptx::{Launch, Machine};

/// Small integers, different for each seed, row and column.
fn number(seed: usize, row: usize, column: usize) -> f32 {
    (((seed + row * 31 + column * 17) * 2_654_435_761) >> 7) as f32 % 16.0 - 7.0
}

/// A matrix as tensor cores read it (PTX ISA, 128-byte swizzle): each 64 of its columns are rows of 128 bytes, of which the
/// eight parts of 16 bytes are exchanged by the row's number within eight.
fn swizzled(rows: usize, columns: usize, get: impl Fn(usize, usize) -> u16) -> Vec<u32> {
    let mut halves = vec![0; rows * columns];
    for row in 0..rows {
        for column in 0..columns {
            let part = (column % 64 / 8) ^ (row % 8);
            halves[(column / 64 * rows + row) * 64 + part * 8 + column % 8] = get(row, column);
        }
    }
    halves.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16).collect()
}

/// Of a matrix of so many rows, at an offset of shared memory, which is itself 1,024 bytes from 0.
fn descriptor(offset: usize, rows: usize) -> u64 {
    ((1_024 + offset) / 16) as u64 | (rows as u64 * 128 / 16) << 16 | 64 << 32 | 1 << 62
}

/// Copies memory to shared memory, publishes it, computes a product of 128 threads, and stores what each has of the sums.
struct Program {
    shared: usize,
    sums: usize,
    /// Left factor, and what is behind it.
    operands: String,
    ty: &'static str,
}

impl Program {
    fn text(&self) -> String {
        let Self { shared, sums, operands, ty } = self;
        let all = |each: &dyn Fn(usize) -> String| (0..*sums).map(each).collect::<String>();
        let names = (0..*sums).map(|i| format!("%s{i}")).collect::<Vec<_>>().join(", ");
        format!(
            ".reg .f32 %s<{sums}>;\nmul.lo.s32 %r0, %r30, 4;\nmov.u32 %r1, shared;\n\
             $copy:\nadd.s32 %r2, %r1, %r0;\ncvt.u64.u32 %d0, %r0;\nadd.s64 %d1, %d30, %d0;\n\
             ld.global.u32 %r3, [%d1];\nst.shared.u32 [%r2], %r3;\nadd.s32 %r0, %r0, 512;\n\
             setp.lt.u32 %p0, %r0, {shared};\n@%p0 bra $copy;\n\
             fence.proxy.async.shared::cta;\nbar.sync 0;\n\
             mul.wide.u32 %d2, %r30, {bytes};\nadd.s64 %d2, %d2, %d30;\n{loads}\
             ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d30+{shared}];\n\
             wgmma.fence.sync.aligned;\n\
             {{ .reg .pred add; setp.ne.b32 add, %r8, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ty}.{ty} \
             {{{names}}}, {operands}; }}\n\
             wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n{stores}$end:\n",
            bytes = 4 * sums,
            columns = 2 * sums,
            loads = all(&|i| format!("ld.global.f32 %s{i}, [%d2+{}];\n", shared + 16 + 4 * i)),
            stores = all(&|i| format!("st.global.f32 [%d2+{}], %s{i};\n", shared + 16 + 4 * i)),
        )
    }
}

fn run_text(text: &str, shared: usize, memory: &mut Memory, seed: u64) -> Result<(), String> {
    let text = common::program(90, text).replace("sm_90", "sm_90a").replace(".maxntid 64", ".maxntid 128");
    let text =
        text.replace("mov.u32 %r30, %tid.x;", "mov.u32 %r30, %tid.x;\ngriddepcontrol.wait;\nmov.u32 %r8, 1;");
    let module = infer_ptx::Module::parse(&text).map_err(|error| error.message)?;
    assert!(module.has_warpgroups() && module.target() == 90);
    let params = memory.at().to_ne_bytes();
    let launch =
        Launch { kernel: "k", grid: [1, 1, 1], threads: 128, shared_bytes: shared, params: &params, seed };
    Machine::default().run(&module, &launch, memory).map_err(|error| error.message)
}

#[test]
fn product_is_that_of_swizzled_matrices() {
    let kinds = [
        ("bf16", (|x: f32| half::bf16::from_f32(x).to_bits()) as fn(f32) -> u16),
        ("f16", |x| half::f16::from_f32(x).to_bits()),
    ];
    for (ty, narrow) in kinds {
        for columns in [64, 128, 256] {
            for add in [true, false] {
                // Sixteen columns from 32 on of two matrices of 64: rows of the right one are columns of the sums.
                let left = swizzled(64, 64, |row, column| narrow(number(1, row, column)));
                let right = swizzled(columns, 64, |row, column| narrow(number(2, row, column)));
                let at = 4 * left.len();
                let program = Program {
                    shared: at + 4 * right.len(),
                    sums: columns / 2,
                    operands: format!(
                        "{}, {}, {}, 1, 1, 0, 0",
                        descriptor(64, 64),
                        descriptor(at + 64, columns),
                        if add { "add" } else { "%p9" }
                    ),
                    ty,
                };
                let want =
                    |row, column| (32..48).map(|k| number(1, row, k) * number(2, column, k)).sum::<f32>();
                let text = program.text().replace("wgmma.fence", "setp.ne.s32 %p9, %r30, %r30;\nwgmma.fence");
                check(&program, &text, &[left, right].concat(), add, want);
            }
            // Sixteen rows from 16 on of a matrix of 32, along which the sums run, and a left factor in registers.
            let right = swizzled(32, columns, |row, column| narrow(number(2, row, column)));
            let program = Program {
                shared: 4 * right.len(),
                sums: columns / 2,
                operands: format!("{{%r4, %r5, %r6, %r7}}, {}, add, 1, 1, 1", descriptor(2_048, 32)),
                ty,
            };
            // Each lane's words are its warp's and its own number, rounded.
            let word = |register: &str, row: &str, column: &str| {
                format!(
                    "add.s32 %r9, {row}, 0;\nadd.s32 %r10, {column}, 0;\nmad.lo.s32 %r9, %r9, 3, %r10;\n\
                     and.b32 %r9, %r9, 7;\ncvt.rn.f32.u32 %f0, %r9;\ncvt.rn.{ty}.f32 %h0, %f0;\n\
                     mov.b32 {register}, {{%h0, %h0}};\n"
                )
            };
            let registers = format!(
                "shr.u32 %r11, %r30, 2;\nshr.u32 %r12, %r30, 5;\nand.b32 %r11, %r11, 7;\n\
                 mad.lo.s32 %r11, %r12, 16, %r11;\nadd.s32 %r12, %r11, 8;\nand.b32 %r13, %r30, 3;\n\
                 add.s32 %r14, %r13, 4;\n{}{}{}{}wgmma.fence",
                word("%r4", "%r11", "%r13"),
                word("%r5", "%r12", "%r13"),
                word("%r6", "%r11", "%r14"),
                word("%r7", "%r12", "%r14"),
            );
            let text = program.text().replace("wgmma.fence", &registers);
            // A word holds two columns.
            let a = |row: usize, k: usize| ((row * 3 + k / 2) & 7) as f32;
            let want = |row, column| (0..16).map(|k| a(row, k) * number(2, 16 + k, column)).sum::<f32>();
            check(&program, &text, &right, true, want);
        }
    }
}

/// The sums of all lanes, against what is wanted of each row and column.
fn check(program: &Program, text: &str, shared: &[u32], add: bool, want: impl Fn(usize, usize) -> f32) {
    let before = |row, column| number(3, row, column);
    // Where the ISA places a lane's number `i` of the sums.
    let place = |thread: usize, i: usize| {
        let row = thread / 32 * 16 + thread % 32 / 4 + if i % 4 >= 2 { 8 } else { 0 };
        (row, i / 4 * 8 + thread % 4 * 2 + i % 2)
    };
    let mut words = shared.to_vec();
    words.extend([0; 4]);
    for thread in 0..128 {
        words.extend((0..program.sums).map(|i| {
            let (row, column) = place(thread, i);
            before(row, column).to_bits()
        }));
    }
    let mut memory = Memory::new(&words);
    run_text(text, program.shared, &mut memory, 5).unwrap();
    let words = &memory.words()[shared.len() + 4..];
    for thread in 0..128 {
        for i in 0..program.sums {
            let (row, column) = place(thread, i);
            let wanted = want(row, column) + if add { before(row, column) } else { 0.0 };
            let found = f32::from_bits(words[thread * program.sums + i]);
            assert_eq!(found, wanted, "{}, {} sums, row {row}, column {column}", program.ty, program.sums);
        }
    }
}

#[test]
fn faults_of_products_are_found() {
    let program = Program {
        shared: 8_192,
        sums: 32,
        operands: format!("{{%r4, %r5, %r6, %r7}}, {}, add, 1, 1, 1", descriptor(0, 64)),
        ty: "bf16",
    };
    let text = program.text();
    let fault = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let mut memory = Memory::new(&vec![0; 8_192 / 4 + 4 + 128 * 32]);
        run_text(&text.replace(from, to), program.shared, &mut memory, 3).err().unwrap_or_default()
    };
    let wait = "wgmma.wait_group.sync.aligned 0;";
    let start = "wgmma.fence.sync.aligned;";
    for (from, to, said) in [
        ("", "", ""),
        ("fence.proxy.async.shared::cta;", "", "with no `fence.proxy.async` since"),
        ("bar.sync 0;", "", "with no barrier since a write"),
        (wait, &format!("st.shared.u32 [%r1], 0;\n{wait}"), "with no barrier since a read"),
        (wait, "", "the warp ends with products in flight"),
        (wait, "wgmma.wait_group.sync.aligned 1;", "the warp ends with products in flight"),
        (start, "setp.gt.u32 %p1, %r30, 95;\n@%p1 bra $end;", "warps of its group issued other products"),
        (start, "setp.eq.s32 %p1, %r30, 7;\n@%p1 trap;", "a trap"),
        (start, "setp.eq.s32 %p1, %r30, 7;\nvote.sync.any.pred %p1, %p1, -1;\n@%p1 trap;", "a trap"),
        (
            &descriptor(0, 64).to_string(),
            &descriptor(7_168, 64).to_string(),
            "are not in the block's shared memory",
        ),
        (&descriptor(0, 64).to_string(), "64", "is not of a matrix swizzled by 128 bytes"),
    ] {
        let found = fault(from, to);
        assert!(found.contains(said) && found.is_empty() == said.is_empty(), "{to}: {found:?}");
    }
    // Sums are poison until they are waited for.
    let copied = wait.to_owned() + "\nmov.f32 %s0, %f9;";
    let early =
        text.replace("wgmma.commit_group", "mov.f32 %f9, %s0;\nwgmma.commit_group").replace(wait, &copied);
    let mut memory = Memory::new(&vec![0; 8_192 / 4 + 4 + 128 * 32]);
    run_text(&early, program.shared, &mut memory, 3).unwrap();
    assert!(f32::from_bits(memory.words()[8_192 / 4 + 4]).is_nan());
}

#[test]
fn registers_of_a_scope_end_with_it() {
    let scope = "{ .reg .pred p; setp.eq.s32 p, %r30, %r30; @p bra $next; }\n$next:\n";
    assert!(parse(80, &format!("{scope}{}", scope.replace("$next", "$other"))).is_ok());
    let error = parse(80, &format!("{scope}@p bra $next;")).expect_err("a register of the scope");
    assert!(error.message.contains("`p` is no register"), "{error}");
}
