//! What a kernel may not rely on: writes of a kernel that may still run if it starts early, and those of other blocks.

use std::sync::Arc;

use infer_cuda_emulator::{Emulator, Module};
use infer_kernels::cuda::{Buffer, CudaError, Device, Launch};

/// `write` waits and writes the word at its address in its last block; `read` reads it, then waits; `idle` only waits. The
/// other blocks of `mix` read it, `all` writes its index in every block, and `add` adds to it in every thread.
/// `pass` writes it in the first thread of the first block, and reads it in the second behind a barrier, `slip` without one.
/// `meet` writes it in the second thread of the first block and reads it in the third of the second, between which both
/// blocks take tickets from the next word.
const KERNELS: &str = "
.version 9.0
.target sm_90
.address_size 64
.visible .entry write(.param .align 8 .b8 write_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<2>;
    ld.param.u64 %d0, [write_param_0];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.s32 %r1, %r1, -32, %r0;
    setp.ne.s32 %p0, %r1, -32;
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    @%p0 bra $end;
    st.global.u32 [%d0], 7;
$end:
    ret;
}
.visible .entry mix(.param .align 8 .b8 mix_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<2>;
    ld.param.u64 %d0, [mix_param_0];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    setp.ne.s32 %p0, %r0, 1;
    mad.lo.s32 %r0, %r0, -32, %r1;
    setp.ne.s32 %p1, %r0, -32;
    griddepcontrol.wait;
    @!%p1 st.global.u32 [%d0], 7;
    @%p0 ld.global.u32 %r1, [%d0];
    ret;
}
.visible .entry all(.param .align 8 .b8 all_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<2>;
    ld.param.u64 %d0, [all_param_0];
    mov.u32 %r0, %tid.x;
    setp.ne.s32 %p0, %r0, 0;
    mov.u32 %r1, %ctaid.x;
    griddepcontrol.wait;
    @!%p0 st.global.u32 [%d0], %r1;
    ret;
}
.visible .entry add(.param .align 8 .b8 add_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>;
    ld.param.u64 %d0, [add_param_0];
    griddepcontrol.wait;
    atom.global.add.u32 %r0, [%d0], 1;
    ret;
}
.visible .entry read(.param .align 8 .b8 read_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>;
    ld.param.u64 %d0, [read_param_0];
    ld.global.cg.u32 %r0, [%d0];
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    ret;
}
.visible .entry idle(.param .align 8 .b8 idle_param_0[8]) .maxntid 32, 1, 1
{
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    ret;
}
.visible .entry pass(.param .align 8 .b8 pass_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<2>;
    ld.param.u64 %d0, [pass_param_0];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.s32 %r0, %r1, 32, %r0;
    setp.ne.s32 %p0, %r0, 0;
    setp.ne.s32 %p1, %r0, 1;
    griddepcontrol.wait;
    @!%p0 st.global.u32 [%d0], 7;
    bar.sync 0;
    @!%p1 ld.global.u32 %r1, [%d0];
    ret;
}
.visible .entry meet(.param .align 8 .b8 meet_param_0[8]) .maxntid 32, 1, 1
{
    .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<3>;
    ld.param.u64 %d0, [meet_param_0];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mad.lo.s32 %r1, %r1, 32, %r0;
    setp.ne.s32 %p0, %r0, 0;
    setp.ne.s32 %p1, %r1, 1;
    setp.ne.s32 %p2, %r1, 34;
    griddepcontrol.wait;
    @!%p1 st.global.u32 [%d0], 7;
    bar.sync 0;
    @!%p0 atom.acq_rel.gpu.global.inc.u32 %r2, [%d0+4], 1;
    bar.sync 0;
    @!%p2 ld.global.u32 %r2, [%d0];
    ret;
}
";

/// `meet` as it is, and with something missing: an order between the tickets, a barrier before them, one behind them.
const MEETINGS: [(&str, &str, &str); 4] = [
    ("meet", "", ""),
    ("unordered", "atom.acq_rel.gpu.global.inc", "atom.global.inc"),
    ("before", "    bar.sync 0;\n    @!%p0", "    @!%p0"),
    ("behind", "    bar.sync 0;\n    @!%p2", "    @!%p2"),
];

struct Test {
    device: Arc<dyn Device>,
    buffer: Buffer,
    other: Buffer,
}

impl Test {
    fn new(target: u32) -> Self {
        let (_, pass) = KERNELS.split_once(".visible .entry pass").expect("a kernel");
        let (pass, _) = pass.split_once(".visible").expect("another kernel");
        let slip = format!(".visible .entry pass{pass}").replace("pass", "slip").replace("bar.sync 0;", "");
        let (_, meet) = KERNELS.split_once(".visible .entry meet").expect("a kernel");
        let mut text = KERNELS.replace("sm_90", &format!("sm_{target}")) + &slip;
        for (name, there, instead) in &MEETINGS[1..] {
            assert!(meet.contains(there), "{there}");
            text += &format!(".visible .entry meet{meet}").replace("meet", name).replace(there, instead);
        }
        if target < 90 {
            text = text
                .lines()
                .filter(|line| !line.contains("griddepcontrol"))
                .fold(String::new(), |all, line| all + line + "\n");
        }
        let module = Module::parse(&text).expect("kernels");
        let device: Arc<dyn Device> = Arc::new(Emulator::with_ptx(1, Arc::new(module)));
        let [buffer, other] = [0, 1].map(|byte| Buffer::from_bytes(&device, &[byte; 16]).unwrap());
        device.wait().unwrap();
        Self { device, buffer, other }
    }

    fn launch(&self, kernel: &'static str, word: u64) {
        let params = (self.buffer.at() + 4 * word).to_ne_bytes();
        let launch = Launch { kernel, grid: [2, 1, 1], threads: 32, shared_bytes: 0, params: &params };
        // SAFETY: the address is that of a word of the buffer.
        unsafe { self.device.launch(launch) }.unwrap();
    }

    fn end(&self) -> Result<(), CudaError> {
        self.device.wait()
    }

    fn is_refused(&self) {
        let error = self.end().expect_err("read too early");
        assert!(error.message.contains("that may still be running"), "{error}");
        assert!(error.message.starts_with("read, block ["), "{error}");
    }
}

#[test]
fn early_read_of_what_a_running_kernel_writes_is_refused() {
    let test = Test::new(90);
    test.launch("write", 1);
    test.launch("read", 1);
    test.is_refused();
}

#[test]
fn other_words_and_older_devices_are_no_concern() {
    let test = Test::new(90);
    test.launch("write", 1);
    test.launch("read", 0);
    test.launch("read", 2);
    test.launch("write", 2);
    test.launch("idle", 0);
    assert_eq!(test.end(), Ok(()));
    let test = Test::new(80);
    test.launch("write", 1);
    test.launch("read", 1);
    assert_eq!(test.end(), Ok(()));
}

/// Each lets the next begin before it waits itself, so all may have begun while the first still runs.
#[test]
fn kernels_between_end_nothing() {
    let test = Test::new(90);
    test.launch("write", 1);
    for _ in 0..3 {
        test.launch("idle", 0);
    }
    test.launch("read", 1);
    test.is_refused();
}

#[test]
fn a_wait_of_the_host_ends_what_was_submitted_before_if_it_comes_before_the_launch() {
    let test = Test::new(90);
    test.launch("write", 1);
    assert_eq!(test.end(), Ok(()));
    test.launch("read", 1);
    assert_eq!(test.end(), Ok(()));

    let mark = test.device.mark().unwrap();
    test.launch("write", 1);
    mark.set().unwrap();
    mark.wait().unwrap();
    test.launch("read", 1);
    assert_eq!(test.end(), Ok(()));

    test.launch("write", 1);
    mark.set().unwrap();
    test.launch("read", 1);
    mark.wait().unwrap();
    test.is_refused();
}

#[test]
fn a_copy_between_ends_what_is_before_it() {
    let test = Test::new(90);
    test.launch("write", 1);
    // SAFETY: within the buffers.
    unsafe { test.device.copy(test.buffer.at() + 8, test.other.at(), 4) }.unwrap();
    test.launch("read", 1);
    test.launch("read", 2);
    assert_eq!(test.end(), Ok(()));
    assert_eq!(test.buffer.read(12).unwrap(), [0, 0, 0, 0, 7, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn kernels_of_a_recording_start_early_only_if_it_says_so() {
    for early in [false, true] {
        let test = Test::new(90);
        test.device.begin_recording(early).unwrap();
        test.launch("write", 1);
        test.launch("read", 1);
        let graph = test.device.end_recording().unwrap();
        // SAFETY: the buffer lives.
        unsafe { graph.launch() }.unwrap();
        if early {
            test.is_refused();
        } else {
            assert_eq!(test.end(), Ok(()));
        }
    }
}

#[test]
fn fresh_memory_was_written_by_nothing() {
    let test = Test::new(90);
    test.launch("write", 1);
    let Test { device, buffer, other } = test;
    drop(buffer);
    let buffer = Buffer::new(&device, 16).unwrap();
    let test = Test { device, buffer, other };
    test.launch("read", 1);
    assert_eq!(test.end(), Ok(()));
}

#[test]
fn threads_neither_overwrite_nor_read_what_others_write_unordered() {
    for (kernel, said) in
        [("all", "a write of 4 bytes"), ("mix", "of block 1 wrote with no barrier since"), ("add", "")]
    {
        // In either order of blocks, of which only one shows that a block reads what another writes.
        let faults: Vec<CudaError> = (0..2)
            .filter_map(|launches| {
                let test = Test::new(90);
                (0..launches).for_each(|_| test.launch("idle", 0));
                test.launch(kernel, 1);
                test.end().err()
            })
            .collect();
        let wanted = match kernel {
            "all" => 2,
            "mix" => 1,
            _ => 0,
        };
        assert_eq!(faults.len(), wanted, "{kernel}: {faults:?}");
        assert!(faults.iter().all(|fault| fault.message.contains(said)), "{kernel}: {faults:?}");
    }
    let fault = |kernel, launches| {
        let test = Test::new(90);
        (0..launches).for_each(|_| test.launch("idle", 0));
        test.launch(kernel, 1);
        test.end().err()
    };
    assert!((0..8).all(|launches| fault("pass", launches).is_none()));
    // In half of the orders the first of two threads comes first.
    let found: Vec<CudaError> = (0..8).filter_map(|launches| fault("slip", launches)).collect();
    assert!((1..8).contains(&found.len()), "{found:?}");
    assert!(found.iter().all(|fault| fault.message.contains("which thread 0 of block 0 wrote")), "{found:?}");
    // What an earlier launch wrote is no concern.
    let test = Test::new(90);
    test.launch("add", 1);
    test.launch("write", 1);
    test.launch("add", 1);
    assert_eq!(test.end(), Ok(()));
    assert_eq!(test.buffer.read(8).unwrap()[4..], 71_u32.to_le_bytes());
}

/// In the order in which the block that reads comes last.
#[test]
fn tickets_order_blocks_if_barriers_join_them_to_the_other_threads() {
    for (kernel, ..) in MEETINGS {
        let found: Vec<Option<CudaError>> = (0..8)
            .map(|launches| {
                let test = Test::new(90);
                (0..launches).for_each(|_| test.launch("idle", 0));
                test.launch(kernel, 1);
                let end = test.end();
                // Two tickets were taken, so the counter starts again.
                end.map_or_else(Some, |()| {
                    assert_eq!(test.buffer.read(12).unwrap()[4..], [7, 0, 0, 0, 0, 0, 0, 0]);
                    None
                })
            })
            .collect();
        let faults: Vec<&CudaError> = found.iter().flatten().collect();
        assert_eq!(faults.is_empty(), kernel == "meet", "{kernel}: {faults:?}");
        let said = |fault: &&CudaError| fault.message.contains("a read of 4 bytes");
        assert!(faults.iter().all(said), "{kernel}: {faults:?}");
    }
}
