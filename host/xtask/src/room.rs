//! Says early that a disk is nearly full: a linker that finds out after a quarter of an hour doesn't say how much is missing.

use std::path::Path;
use std::process::Command;

/// What the target folder takes at the end of all checks of a clean clone, in gibibytes.
const WHOLE_GIB: u64 = 6;

/// Prints a warning if the disk of this folder has less room than a build from scratch takes.
pub fn warn_if_little(folder: &Path) {
    // The folder may be yet to come.
    let existing = folder.ancestors().find(|folder| folder.exists());
    let Some(free) = existing.and_then(free_kib) else { return };
    if free < WHOLE_GIB << 20 {
        eprintln!(
            "Warning: {} has {:.1} GiB of room; checks of a clean clone take {WHOLE_GIB}. CARGO_TARGET_DIR names another place.",
            folder.display(),
            free as f64 / f64::from(1 << 20)
        );
    }
}

fn free_kib(folder: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// The column of free blocks, of 1 KiB each: POSIX fixes the form of the table.
fn parse(table: &str) -> Option<u64> {
    table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn room_is_read_from_the_table_of_df() {
        let table = "Filesystem     1024-blocks     Used Available Capacity Mounted on\n\
                     /dev/vda         263931252 34003540  63000932      36% /\n";
        assert_eq!(parse(table), Some(63_000_932));
        assert_eq!(parse(""), None);
        assert_eq!(parse("Filesystem\nnone - - - - /proc"), None);
    }
}
