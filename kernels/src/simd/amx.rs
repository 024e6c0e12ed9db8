//! Permission to use tile registers: the CPU must have them, and the kernel must reserve room for them in each thread's
//! state, which it does on request (Linux, Documentation/arch/x86/xstate.rst). Once granted, it holds for every thread.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// The `arch_prctl` request for permission to use a state component.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
/// The state component with the contents of tiles.
const XFEATURE_XTILE_DATA: libc::c_long = 18;
/// CPUID bits in the leaf of extended features.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;

/// Whether products may use tiles. The first call requests permission.
pub(super) fn is_granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| has_tiles() && ask())
}

fn has_tiles() -> bool {
    // The leaf exists, since AVX-512 was detected in it.
    let features = __cpuid_count(7, 0).edx;
    let needed = AMX_BF16 | AMX_TILE | AMX_INT8;
    features & needed == needed
}

fn ask() -> bool {
    // SAFETY: a system call with two numbers. An older kernel returns an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0 }
}
