//! Programs in a real terminal (tmux), with a real host.
//!
//! Skipped if tmux or a program is missing; the reason is printed.

#[path = "../../../tui/tests/support/tmux.rs"]
mod tmux;

mod chat;
mod console;
