//! `infer` as a process: what its commands print, return and leave behind.

#[path = "../common/port.rs"]
mod port;
#[path = "../common/process.rs"]
mod process;

mod author;
mod bench;
mod chaos;
mod chat;
mod commands;
mod exported_state;
mod fleet;
mod health;
mod logs;
mod policy_state;
mod record;
mod sim;
