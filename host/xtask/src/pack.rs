//! Archives whose bytes depend only on what is in them, not on who packs it, where and when; and what both `gpu-bundle`
//! and `dist` put into theirs.

use std::path::Path;
use std::process::Command;

use crate::cargo::{output, root, run};

/// What compresses an archive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compressor {
    /// Everybody can read it.
    Gzip,
    /// Takes a minute, and a third less room than gzip.
    Xz,
}

impl Compressor {
    /// The one that leaves least, of those that are installed.
    pub fn smallest() -> Self {
        let xz = Command::new("xz").arg("--version").output();
        if xz.is_ok_and(|xz| xz.status.success()) { Self::Xz } else { Self::Gzip }
    }

    /// How names of its archives end.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Gzip => "tar.gz",
            Self::Xz => "tar.xz",
        }
    }

    /// Its command, without what depends on the machine: a date, the number of cores.
    fn command(self) -> &'static str {
        match self {
            Self::Gzip => "gzip -n",
            Self::Xz => "xz -6 --threads=1",
        }
    }
}

/// Packs a folder under its own name. Everything in it belongs to root and is dated `time`, in seconds since 1970.
pub fn pack(folder: &Path, archive: &Path, time: u64, compressor: Compressor) -> Result<(), String> {
    if !gnu_tar() {
        return Err(
            "no GNU tar, which packs in a fixed order: install it, or put it first in PATH".to_owned()
        );
    }
    let parent = folder.parent().expect("the folder is in another");
    let name = folder.file_name().expect("the folder has a name");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]);
    // Who may read a file depends on the umask of whoever made it, and whether it is a program doesn't.
    tar.arg("--mode=u=rwX,go=rX").arg(format!("--mtime=@{time}"));
    tar.arg(format!("--use-compress-program={}", compressor.command())).arg("--file").arg(archive);
    // Options that somebody has set for other archives.
    for variable in ["TAR_OPTIONS", "GZIP", "XZ_DEFAULTS", "XZ_OPT"] {
        tar.env_remove(variable);
    }
    run(tar.arg("--directory").arg(parent).arg(name))
}

/// Whether `tar` is GNU's.
pub fn gnu_tar() -> bool {
    let version = Command::new("tar").arg("--version").output();
    version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("GNU tar"))
}

/// What an archive of this checkout is dated: `SOURCE_DATE_EPOCH` if that is set, or else the time of the commit.
pub fn time() -> Result<u64, String> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => output(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%ct"]))
            .map_err(|why| format!("{why}: outside a checkout, set SOURCE_DATE_EPOCH"))?,
    };
    seconds.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH is no number of seconds: {seconds:?}"))
}

/// Writes these files and folders of a revision to the same places below `folder`, which it empties.
pub fn checkout(revision: &str, files: &[&str], folder: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let archive = folder.join("checkout.tar");
    let mut git = Command::new("git");
    git.current_dir(root()).args(["archive", "--output"]).arg(&archive).arg(revision).args(files);
    run(&mut git)?;
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder))?;
    std::fs::remove_file(&archive).map_err(|e| format!("{}: {e}", archive.display()))
}

/// Copies a program without its symbols, which are a third of it. Without the tool it is only larger.
pub fn program(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map_err(|e| format!("{}: {e}", to.display()))?;
    if let Err(why) = run(Command::new("strip").arg(to)) {
        eprintln!("{why}; the program keeps its symbols");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Path, content, and whether it is a program.
    type File = (&'static str, &'static str, bool);

    const FILES: [File; 4] = [
        ("README.md", "Read me.\n", false),
        ("infer", "\x7fELF", true),
        ("policies/SHA256SUMS", "", false),
        ("policies/scheduler-srpt.wasm", "\0asm", false),
    ];

    /// Removes itself.
    struct Temporary(PathBuf);

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Writes files with these rights, dated this day of 1970.
    fn write(folder: &Path, mode: u32, day: u64, files: impl Iterator<Item = File>) {
        let dated = SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400);
        for (path, content, program) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
            fs::write(&path, content).expect("a file");
            let file = fs::File::options().write(true).open(&path).expect("the file");
            file.set_modified(dated).expect("a date");
            let mode = if program { mode | 0o100 } else { mode };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("rights");
        }
    }

    #[test]
    fn same_files_give_the_same_archive_and_come_out_of_it() {
        if !gnu_tar() {
            return;
        }
        let name = format!("infer-xtask-pack-{}", std::process::id());
        let temporary = Temporary(std::env::temp_dir().join(name));
        let at = |name: &str| temporary.0.join(name);
        write(&at("a/release"), 0o600, 1, FILES.into_iter());
        write(&at("b/release"), 0o664, 2, FILES.into_iter().rev());
        let time = 1_700_000_000;
        // Both, where both are there.
        for compressor in [Compressor::Gzip, Compressor::smallest()] {
            let suffix = compressor.suffix();
            let archives = ["a", "b"].map(|name| {
                let archive = at(name).join(format!("release.{suffix}"));
                pack(&at(name).join("release"), &archive, time, compressor).expect("it packs");
                archive
            });
            let [a, b] = archives.each_ref().map(|archive| fs::read(archive).expect("an archive"));
            assert!(a == b, "{suffix}: order, dates and rights of the files change the archive");
            let unpacked = at(&format!("unpacked-{suffix}"));
            fs::create_dir_all(&unpacked).expect("a folder");
            run(Command::new("tar").arg("-xf").arg(&archives[0]).arg("-C").arg(&unpacked))
                .expect("it unpacks");
            for (path, content, program) in FILES {
                let path = unpacked.join("release").join(path);
                let is = fs::metadata(&path).expect("the file is there");
                assert_eq!(fs::read_to_string(&path).expect("text"), content, "{}", path.display());
                assert_eq!(is.permissions().mode() & 0o100 != 0, program, "{}", path.display());
                let dated = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
                assert_eq!(is.modified().expect("a date"), dated, "{}", path.display());
            }
        }
    }
}
