//! Progress of long operations: a bar on a terminal, otherwise a log line for each tenth. Short operations
//! show nothing.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Operations on fewer bytes show nothing.
const WORTH_SHOWING_BYTES: u64 = 64 << 20;

/// Progress of one operation, in bytes.
pub struct Meter {
    what: String,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    /// Tenths that were logged.
    logged: u64,
}

impl Meter {
    /// Progress of `what`, such as `loading weights`.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), total: 0, done: 0, bar: None, logged: 0 }
    }

    /// Starts, or restarts, with the total number of bytes.
    pub fn start(&mut self, total: u64) {
        (self.total, self.done, self.logged) = (total, 0, 0);
        if total >= WORTH_SHOWING_BYTES && std::io::stderr().is_terminal() && self.bar.is_none() {
            let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(style).expect("the template is sound");
            let bar = ProgressBar::new(total).with_style(style).with_message(self.what.clone());
            bar.enable_steady_tick(Duration::from_millis(200));
            self.bar = Some(bar);
        }
    }

    /// Adds bytes done.
    pub fn advance(&mut self, bytes: u64) {
        self.set(self.done + bytes);
    }

    /// Sets the bytes done.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.total >= WORTH_SHOWING_BYTES && done * 10 / self.total > self.logged {
            self.logged = done * 10 / self.total;
            let total = HumanBytes(self.total);
            tracing::info!("{}: {} % of {total}", self.what, self.logged * 10);
        }
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.finish();
    }
}
