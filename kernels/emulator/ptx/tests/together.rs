//! Matrix products and shuffles of a warp, and asynchronous copies.

mod common;

use common::{Memory, faults, run};

/// Where the ISA places number `i` of a lane's fragment of a, b and of c and d: row and column
/// (Matrix Fragments for mma.m16n8k16 with floating point types).
fn place_of_a(lane: usize, i: usize) -> (usize, usize) {
    let (group_id, thread_in_group) = (lane >> 2, lane % 4);
    let row = if i < 2 || (4..6).contains(&i) { group_id } else { group_id + 8 };
    let column = thread_in_group * 2 + (i & 1);
    (row, if i < 4 { column } else { column + 8 })
}

fn place_of_b(lane: usize, i: usize) -> (usize, usize) {
    let (group_id, thread_in_group) = (lane >> 2, lane % 4);
    let row = thread_in_group * 2 + (i & 1);
    (if i < 2 { row } else { row + 8 }, group_id)
}

fn place_of_c(lane: usize, i: usize) -> (usize, usize) {
    let (group_id, thread_in_group) = (lane >> 2, lane % 4);
    (if i < 2 { group_id } else { group_id + 8 }, thread_in_group * 2 + (i & 1))
}

/// Small integers, different for each seed, row and column.
fn number(seed: usize, (row, column): (usize, usize)) -> f32 {
    (((seed + row * 31 + column * 17) * 2_654_435_761) >> 7) as f32 % 16.0 - 7.0
}

#[test]
fn matrix_product_is_that_of_the_fragments() {
    for (name, narrow) in [
        ("bf16", (|x: f32| half::bf16::from_f32(x).to_bits()) as fn(f32) -> u16),
        ("f16", |x| half::f16::from_f32(x).to_bits()),
    ] {
        let (a, b, c) = (|at| number(1, at), |at| number(2, at), |at| number(3, at));
        let pair = |low: f32, high: f32| u32::from(narrow(low)) | u32::from(narrow(high)) << 16;
        // Of each lane: four words of a, two of b, two of padding, four of c, and room for four of d.
        let mut words = Vec::new();
        for lane in 0..32 {
            words.extend((0..4).map(|i| pair(a(place_of_a(lane, 2 * i)), a(place_of_a(lane, 2 * i + 1)))));
            words.extend((0..2).map(|i| pair(b(place_of_b(lane, 2 * i)), b(place_of_b(lane, 2 * i + 1)))));
            words.extend([0; 2]);
            words.extend((0..4).map(|i| c(place_of_c(lane, i)).to_bits()));
            words.extend([0; 4]);
        }
        let mut memory = Memory::new(&words);
        let body = format!(
            "mul.wide.u32 %d0, %r30, 64;\nadd.s64 %d0, %d0, %d30;\nld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%d0];\n\
             ld.global.v2.u32 {{%r4, %r5}}, [%d0+16];\nld.global.v4.f32 {{%f0, %f1, %f2, %f3}}, [%d0+32];\n\
             mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 {{%f0,%f1,%f2,%f3}}, {{%r0,%r1,%r2,%r3}}, \
             {{%r4,%r5}}, {{%f0,%f1,%f2,%f3}};\nst.global.v4.f32 [%d0+48], {{%f0, %f1, %f2, %f3}};"
        );
        run(80, &body, 32, 1, &mut memory).unwrap();
        let words = memory.words();
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = place_of_c(lane, i);
                let sum: f32 = (0..16).map(|k| a((row, k)) * b((k, column))).sum();
                let found = f32::from_bits(words[16 * lane + 12 + i]);
                assert_eq!(found, sum + c((row, column)), "{name}, row {row}, column {column}");
            }
        }
    }
}

/// Each lane's value and whether its source was in range, for values of 100 plus the lane.
fn shuffled(lanes: u32, clamp: u32) -> Vec<[u32; 2]> {
    let body = format!(
        "add.s32 %r0, %r30, 100;\nmov.u32 %r3, -1;\nshfl.sync.bfly.b32 %r1|%p1, %r0, {lanes}, {clamp}, %r3;\n\
         selp.u32 %r2, 1, 0, %p1;\nmul.wide.u32 %d0, %r30, 8;\nadd.s64 %d0, %d0, %d30;\n\
         st.global.v2.u32 [%d0], {{%r1, %r2}};"
    );
    let mut memory = Memory::new(&[0; 64]);
    run(80, &body, 32, 3, &mut memory).unwrap();
    memory.words().chunks(2).map(|pair| [pair[0], pair[1]]).collect()
}

#[test]
fn shuffle_swaps_lanes_within_its_segment() {
    let whole = shuffled(5, 31);
    let in_fours = shuffled(2, 0x1c1f);
    // Across segments: the own value, out of range, unless the source is a lower lane.
    let across = shuffled(4, 0x1c03);
    for lane in 0..32 {
        assert_eq!(whole[lane as usize], [100 + (lane ^ 5), 1], "lane {lane}");
        assert_eq!(in_fours[lane as usize], [100 + (lane ^ 2), 1], "lane {lane}");
        let wanted = if lane & 4 != 0 { [100 + (lane ^ 4), 1] } else { [100 + lane, 0] };
        assert_eq!(across[lane as usize], wanted, "lane {lane}");
    }
}

const COPY: &str = "mov.u32 %r20, shared;\nshl.b32 %r21, %r30, 4;\nadd.s32 %r20, %r20, %r21;\n\
                    mul.wide.u32 %d20, %r30, 16;\nadd.s64 %d20, %d20, %d30;\n";

/// The words that lanes store to memory, which holds 1, 2, 3 and so on, after this.
fn copied(body: &str) -> Vec<u32> {
    let words: Vec<u32> = (1..=256).collect();
    let mut memory = Memory::new(&words);
    run(80, &format!("{COPY}{body}"), 32, 0, &mut memory).unwrap();
    memory.words()
}

const START: &str = "cp.async.cg.shared.global.L2::128B [%r20], [%d20], 16, 16;\n";

#[test]
fn copies_arrive_when_their_group_is_waited_for() {
    // Of each lane: what it sees before the copy's group is waited for, and after.
    let see = "ld.shared.u32 %r1, [%r20+4];\n";
    let keep = "st.global.v2.u32 [%d20+512], {%r1, %r2};\n";
    let before = copied(&format!(
        "{START}cp.async.commit_group;\n{see}mov.u32 %r2, %r1;\ncp.async.wait_group 0;\n{see}{keep}"
    ));
    let older = copied(&format!(
        "{START}cp.async.commit_group;\ncp.async.commit_group;\ncp.async.wait_group 1;\n{see}mov.u32 %r2, 0;\n{keep}"
    ));
    let latest = copied(&format!(
        "cp.async.commit_group;\n{START}cp.async.commit_group;\ncp.async.wait_group 1;\n{see}mov.u32 %r2, 0;\n{keep}\
         cp.async.wait_group 0;"
    ));
    // A group that is still open isn't waited for.
    let open = copied(&format!(
        "{START}cp.async.wait_group 0;\n{see}mov.u32 %r2, 0;\n{keep}cp.async.commit_group;\ncp.async.wait_group 0;"
    ));
    for lane in 0..32 {
        let (at, copied) = (128 + 4 * lane, 4 * lane as u32 + 2);
        assert_eq!(before[at..at + 2], [copied, u32::MAX], "lane {lane}");
        assert_eq!(older[at], copied, "lane {lane}");
        assert_eq!(latest[at], u32::MAX, "lane {lane}");
        assert_eq!(open[at], u32::MAX, "lane {lane}");
    }
}

#[test]
fn what_a_copy_does_not_read_is_zero() {
    let body = |bytes: u32, read: u32| {
        let cache = if bytes == 16 { "cg" } else { "ca" };
        format!(
            "mov.u32 %r2, {read};\ncp.async.{cache}.shared.global.L2::128B [%r20], [%d20], {bytes}, %r2;\n\
             cp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r20];\n\
             st.global.v4.u32 [%d20+512], {{%r3, %r4, %r5, %r6}};"
        )
    };
    let nothing = copied(&format!("mov.u64 %d20, 0;\n{}", body(16, 0)).replace("[%d20+512]", "[%d30+512]"));
    assert_eq!(nothing[128..132], [0; 4], "a source that isn't read may be anywhere");
    assert_eq!(copied(&body(16, 8))[128..132], [1, 2, 0, 0]);
    assert_eq!(copied(&body(16, 6))[128..132], [1, 2, 0, 0]);
    assert_eq!(copied(&body(8, 8))[128..132], [1, 2, u32::MAX, u32::MAX]);
    assert_eq!(copied(&body(4, 0))[128..132], [0, u32::MAX, u32::MAX, u32::MAX]);
}

#[test]
fn copies_are_checked_like_other_accesses() {
    let wait = "cp.async.commit_group;\ncp.async.wait_group 0;";
    for (body, said) in [
        (format!("add.s64 %d20, %d20, 4096;\n{START}{wait}"), "are in no allocation"),
        (format!("add.s64 %d20, %d20, 8;\n{START}{wait}"), "are not aligned"),
        (format!("add.s32 %r20, %r20, 8;\n{START}{wait}"), "are not aligned"),
        (format!("add.s32 %r20, %r20, 1024;\n{START}{wait}"), "are not in the block's shared memory"),
        (START.replace("16, 16", "16, 17") + wait, "reads 17"),
        (format!("{START}cp.async.commit_group;"), "ends with copies in flight"),
        // Without a barrier, another lane may look too early or while it is copied.
        (
            format!("{START}{wait}\nxor.b32 %r20, %r20, 16;\nld.shared.u32 %r1, [%r20];"),
            "with no barrier since",
        ),
        (
            format!(
                "{START}bar.sync 0;\nxor.b32 %r1, %r20, 16;\nld.shared.u32 %r1, [%r1];\nbar.sync 0;\n{wait}"
            ),
            "with no barrier since a read",
        ),
        // Or still read what was there.
        (
            format!("xor.b32 %r1, %r20, 16;\nld.shared.u32 %r1, [%r1];\n{START}{wait}"),
            "with no barrier since",
        ),
    ] {
        // Lanes within the allocation of 64 words.
        let body = format!("setp.ge.u32 %p1, %r30, 16;\n{COPY}@%p1 mov.u64 %d20, %d30;\n{body}");
        let found = faults(80, &body, 32);
        assert!(found.len() == 8 && found.iter().all(|fault| fault.contains(said)), "{body}: {found:?}");
    }
    let ordered =
        format!("{START}{wait}\nbar.warp.sync -1;\nxor.b32 %r20, %r20, 16;\nld.shared.u32 %r1, [%r20];");
    let ordered = format!("setp.ge.u32 %p1, %r30, 16;\n{COPY}@%p1 mov.u64 %d20, %d30;\n{ordered}");
    assert_eq!(faults(80, &ordered, 32), [""; 0]);
}
