//! What commands print, in place of the standard library's macros, which panic where nothing can be written.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to the terminal, or ends the command: quietly where the reader has seen enough, `head` say.
pub(super) fn put(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Text that comes piece by piece is there as it comes.
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(std::io::stderr().lock(), "error: can't write the output: {error}");
    std::process::exit(1);
}

macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::put(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::cli::out::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::put(format_args!("{}\n", format_args!($($text)*))) };
}
