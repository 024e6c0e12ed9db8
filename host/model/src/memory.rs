//! Memory that this process may still allocate: what the machine has available, or what its control groups allow if that is
//! less. On most systems larger allocations succeed, but the process is killed once it touches the pages, so large
//! allocations check here first.
//!
//! A control group is charged for pages of files that were read, such as a checkpoint's. The system reclaims these under
//! pressure, so they count as free here, as in the machine's `MemAvailable`.

use std::path::{Component, Path, PathBuf};

use crate::error::ModelError;

/// Bytes that may still be allocated, if the system reports them.
pub fn available() -> Option<u64> {
    available_on(Path::new("/"))
}

/// Fails if more is needed than available.
pub(crate) fn check(what: &str, bytes: u64, advice: &str) -> Result<(), ModelError> {
    match available() {
        Some(most) if bytes > most => Err(ModelError::machine(format!(
            "{what} {} MiB and {} MiB are available; {advice}",
            bytes.div_ceil(1 << 20),
            most >> 20
        ))),
        _ => Ok(()),
    }
}

/// The same on a system whose files begin at `root`.
fn available_on(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| entry(&text, "MemAvailable:"));
    let member = read("proc/self/cgroup").unwrap_or_default();
    let groups = member.lines().filter_map(|line| Groups::of(root, line)).filter_map(|groups| groups.left());
    machine.map(|kib| kib.saturating_mul(1_024)).into_iter().chain(groups).min()
}

/// The number after a name at the start of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten())
}

/// File names of a version of control groups.
struct Version {
    /// Where the groups are mounted.
    mount: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// The entries for pages of files in `memory.stat`.
    files: [&'static str; 2],
}

const V1: Version = Version {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};

const V2: Version = Version {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    files: ["inactive_file", "active_file"],
};

/// The process's group and its ancestors, each with its own limit.
struct Groups {
    version: Version,
    mount: PathBuf,
    group: PathBuf,
}

impl Groups {
    /// Parses a line of `/proc/self/cgroup`: number, controllers, path.
    fn of(root: &Path, line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let version = match controllers.split(',').find(|controller| ["", "memory"].contains(controller))? {
            "" => V2,
            _ => V1,
        };
        let mount = root.join(version.mount);
        // A path may lead out of what a container sees; then the mount point is the nearest visible group.
        let inside = Path::new(path).components().all(|part| part != Component::ParentDir);
        let group = if inside { mount.join(path.trim_start_matches('/')) } else { mount.clone() };
        Some(Self { version, mount, group })
    }

    /// Bytes that the tightest group still allows. Groups outside a container have no files here.
    fn left(&self) -> Option<u64> {
        let around = self.group.ancestors().take_while(|group| group.starts_with(&self.mount));
        around.filter_map(|group| self.left_of(group)).min()
    }

    fn left_of(&self, group: &Path) -> Option<u64> {
        let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let limit = self.version.limits.iter().filter_map(|file| number(file)).min()?;
        let used = number(self.version.used).unwrap_or(0);
        let stat = read("memory.stat").unwrap_or_default();
        let files: u64 = self.version.files.iter().filter_map(|name| entry(&stat, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(files)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    4096 kB\n");

    /// The available bytes on a system with these files.
    fn on(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        available_on(root.path())
    }

    fn with(files: &[(&str, &str)]) -> u64 {
        on(&[&[MACHINE], files].concat()).unwrap()
    }

    const ALL: u64 = 4 << 20;

    #[test]
    fn available_memory_is_the_machines_without_group_limits() {
        assert_eq!(on(&[]), None);
        assert_eq!(with(&[]), ALL);
        let member = ("proc/self/cgroup", "0::/user.slice/x.scope\n");
        assert_eq!(with(&[member]), ALL);
        assert_eq!(with(&[member, ("sys/fs/cgroup/user.slice/memory.max", "max\n")]), ALL);
        assert_eq!(with(&[member, ("sys/fs/cgroup/other.slice/memory.max", "5\n")]), ALL);
        assert_eq!(with(&[("proc/self/cgroup", "nonsense\n1:\n"), ("sys/fs/cgroup/memory.max", "5\n")]), ALL);
        // Without a limit, v1 reports a number beyond any machine.
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(with(&[("proc/self/cgroup", "4:memory:/\n"), none]), ALL);
    }

    #[test]
    fn tightest_ancestor_group_limits_available_memory() {
        let member = ("proc/self/cgroup", "0::/system.slice/infer.service\n");
        let own = ("sys/fs/cgroup/system.slice/infer.service/memory.max", "3000000\n");
        let used = ("sys/fs/cgroup/system.slice/infer.service/memory.current", "1000000\n");
        let around = ("sys/fs/cgroup/system.slice/memory.max", "2500000\n");
        let around_used = ("sys/fs/cgroup/system.slice/memory.current", "2400000\n");
        let top = ("sys/fs/cgroup/memory.max", "50000\n");
        let soft = ("sys/fs/cgroup/system.slice/infer.service/memory.high", "1400000\n");
        for (files, left) in [
            (vec![member, own], 3_000_000),
            (vec![member, own, used], 2_000_000),
            (vec![member, own, used, around, around_used], 100_000),
            (vec![member, own, used, around, around_used, top], 50_000),
            (vec![member, own, used, soft], 400_000),
        ] {
            assert_eq!(with(&files), left, "{files:?}");
        }
    }

    #[test]
    fn page_cache_counts_as_free() {
        let stat =
            "anon 500000\nfile 900000\nactive_file 100000\ninactive_file 700000\ntotal_inactive_file 3\n";
        let v2 = [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "2000000\n"),
            ("sys/fs/cgroup/memory.current", "1500000\n"),
            ("sys/fs/cgroup/memory.stat", stat),
        ];
        assert_eq!(with(&v2), 1_300_000);
        let stat = "inactive_file 3\ntotal_active_file 100000\ntotal_inactive_file 700000\n";
        let v1 = [
            ("proc/self/cgroup", "12:cpu,cpuacct:/\n5:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000\n"),
            ("sys/fs/cgroup/memory/memory.stat", stat),
        ];
        // The group's path is that of the host; the container mounts only its own group.
        assert_eq!(with(&v1), 1_300_000);
    }

    #[test]
    fn group_path_outside_the_mount_is_not_followed() {
        let files = [
            ("proc/self/cgroup", "0::/../../etc\n"),
            ("sys/fs/cgroup/memory.max", "9000\n"),
            ("sys/etc/memory.max", "1\n"),
        ];
        assert_eq!(with(&files), 9_000);
    }
}
