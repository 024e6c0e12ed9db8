//! Programs, instruction sets and other things of a machine that some tests need. Tests without them are skipped, and
//! because the output of a passing test is hidden, `cargo xtask test` reports it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::root;

/// Features of a CPU, as Linux names them, and what isn't tested without all of them.
type Needs = (&'static [&'static str], &'static str);

/// Those of `infer_kernels::Isa` on x86-64.
const X86: [Needs; 5] = [
    (&["avx2", "fma", "f16c"], "kernels with AVX2: this CPU has no such instructions"),
    (&["avx512f", "avx512bw"], "kernels with AVX-512: this CPU has no such instructions"),
    (&["avx512_vnni"], "kernels with dot products of bytes in AVX-512: this CPU has no VNNI"),
    (&["avx512_bf16"], "kernels with dot products of bf16 pairs: this CPU has no AVX512-BF16"),
    (&["amx_tile", "amx_bf16", "amx_int8"], "kernels with tile registers: this CPU has no AMX"),
];
/// And on AArch64.
const ARM: [Needs; 1] = [(&["asimddp"], "kernels with dot products of bytes in NEON: this CPU has none")];

/// What is skipped on this machine, and why.
pub fn left_out() -> Vec<&'static str> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let programs = [
        (&*compiler, "--version", "CUDA kernels and the decoder on an emulated device: no C++ compiler"),
        ("tmux", "-V", "console and chat in a terminal: no tmux"),
        ("curl", "--version", "curl as a client, console and chat in a terminal: no curl"),
        ("pgrep", "--version", "console and chat in a terminal: no pgrep"),
        ("git", "--version", "checks of the source tree: no git"),
    ];
    let absent = programs.into_iter().filter(|(program, version, _)| !starts(program, version));
    let mut left_out: Vec<_> = absent.map(|(_, _, said)| said).collect();
    if !crate::pack::gnu_tar() {
        left_out.push("archives: no GNU tar");
    }
    if !root().join(".git").exists() {
        left_out.push("checks of the source tree: not a git checkout");
    }
    if !is_root() {
        left_out.push("the token of another user's host, which root finds: only root can change owners");
    }
    if !Path::new("/dev/shm").is_dir() {
        left_out.push("a cache of downloads on two disks: no /dev/shm");
    }
    match std::fs::read_to_string("/proc/cpuinfo") {
        Ok(cpu) => left_out.extend(lacking(&cpu)),
        Err(_) => {
            left_out.push("kernels with instructions that this CPU may lack: no /proc/cpuinfo says which");
        }
    }
    left_out
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stdin(Stdio::null()).output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// What isn't tested on the CPU of this `/proc/cpuinfo`.
fn lacking(cpu: &str) -> Vec<&'static str> {
    let features = |key: &str| {
        let mut fields = cpu.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = fields.find(|(name, _)| name.trim() == key)?;
        Some(value.split_whitespace().collect::<Vec<_>>())
    };
    let (there, sets) = match (features("flags"), features("Features")) {
        (Some(flags), _) => (flags, &X86[..]),
        (None, Some(features)) => (features, &ARM[..]),
        (None, None) => return Vec::new(),
    };
    let lacks = |needs: &[&'static str]| needs.iter().any(|feature| !there.contains(feature));
    sets.iter().filter(|(needs, _)| lacks(needs)).map(|(_, said)| *said).collect()
}

/// Whether a program can be started; `command` may include arguments, as in `CXX="ccache g++"`.
pub fn starts(command: &str, version: &str) -> bool {
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut command = Command::new(program);
    command.args(words).arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::{X86, lacking, starts};

    #[test]
    fn instruction_sets_that_a_cpu_lacks_are_named() {
        let said = |features: &str| lacking(&format!("processor\t: 0\nmodel name\t: A: B\n{features}\n"));
        let all: Vec<&str> = X86.iter().flat_map(|(needs, _)| *needs).copied().collect();
        assert!(said(&format!("flags\t\t: fpu {}", all.join(" "))).is_empty());
        let without_tiles = said(&format!("flags\t\t: fpu {}", all.join(" ").replace("amx_int8", "")));
        assert_eq!(without_tiles, [X86[4].1]);
        assert_eq!(said("flags\t\t: fpu sse2").len(), X86.len());
        assert_eq!(said("Features\t: fp asimd").len(), 1);
        assert!(said("Features\t: fp asimd asimddp").is_empty());
    }

    #[test]
    fn programs_are_detected_by_starting_them() {
        for (command, there) in
            [("cargo", true), ("cargo --quiet", true), ("no-such-program", false), ("", false), (" ", false)]
        {
            assert_eq!(starts(command, "--version"), there, "{command:?}");
        }
    }
}
