//! Where commands write: `print!` and `println!` (the standard library's macros panic if nothing can be written), and
//! files that `--out` names.

use std::fmt::Arguments;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::Failure;

/// Writes to stdout, or exits: quietly if the reader has closed its end, as `head` does.
pub(super) fn put(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Generated text must appear piece by piece.
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(std::io::stderr().lock(), "error: can't write the output: {error}");
    std::process::exit(1);
}

/// Fails if no result could be written to `file`, so that a wrong path costs no measurement. A file that exists keeps
/// its content.
pub(super) fn check_out(file: Option<&Path>) -> Result<(), Failure> {
    // Opening a pipe waits for its reader.
    let is_stream = |path: &&Path| path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let Some(path) = file.filter(|path| !is_stream(path)) else { return Ok(()) };
    let is_new = path.symlink_metadata().is_err();
    File::options().write(true).create(true).truncate(false).open(path).map_err(|error| {
        Failure::Usage(format!("--out: can't write {}: {error}; choose another file", path.display()))
    })?;
    if is_new {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes a result to a file, or to stdout if none is given.
pub(super) fn emit(file: Option<&Path>, text: &str) -> Result<(), Failure> {
    match file {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::Failed(format!("can't write {}: {error}", path.display()))),
        None => {
            put(format_args!("{text}"));
            Ok(())
        }
    }
}

macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::put(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::cli::out::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::put(format_args!("{}\n", format_args!($($text)*))) };
}
