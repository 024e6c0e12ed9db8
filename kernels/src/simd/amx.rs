//! Whether a process may use tile registers: the CPU has them, and the kernel keeps room for them in each thread's state,
//! which it does on request (Linux, Documentation/arch/x86/xstate.rst). Once granted, it holds for every thread.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Of `arch_prctl`: asks for the use of a part of a thread's state.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
/// That part: the contents of tiles.
const XFEATURE_XTILE_DATA: libc::c_long = 18;
/// Bits of what CPUID says of extended features.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;

/// Whether products may use tiles. Asks for it, the first time.
pub(super) fn is_granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| has_tiles() && ask())
}

fn has_tiles() -> bool {
    // The leaf is there: AVX-512 was found in it.
    let features = __cpuid_count(7, 0).edx;
    features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

fn ask() -> bool {
    // SAFETY: a system call that takes two numbers. An older kernel answers with an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0 }
}
