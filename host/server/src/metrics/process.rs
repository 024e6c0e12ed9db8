//! Resources used by a process, read from `/proc`; `None` on systems without it.

/// Ticks per second in which Linux reports processor time (`USER_HZ`, the same on every supported
/// architecture).
const TICKS_PER_SECOND: f64 = 100.0;

/// Resources used by one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Processor time, user and system.
    pub cpu_seconds: f64,
    /// Open file descriptors.
    pub open_files: u64,
}

impl ProcessUsage {
    /// Of this process.
    pub fn now() -> Option<Self> {
        Self::read("self")
    }

    /// Of another process of this user.
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(&pid.to_string())
    }

    fn read(pid: &str) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character, so fields are counted after it.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let resident_kib: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
        let open_files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64);
        Some(Self {
            resident_bytes: resident_kib << 10,
            cpu_seconds: ticks as f64 / TICKS_PER_SECOND,
            open_files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_has_memory_and_files() {
        let usage = ProcessUsage::now().unwrap();
        assert!(usage.resident_bytes > 1 << 20 && usage.open_files >= 3, "{usage:?}");
        assert!(ProcessUsage::of(std::process::id()).unwrap().cpu_seconds >= usage.cpu_seconds);
    }
}
