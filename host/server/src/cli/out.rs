//! `print!` and `println!` for commands. The standard library's macros panic if nothing can be written.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

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

macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::put(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::cli::out::put(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::out::put(format_args!("{}\n", format_args!($($text)*))) };
}
