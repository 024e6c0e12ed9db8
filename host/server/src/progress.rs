//! How far something long is: a bar on a terminal, otherwise a log line for each tenth. What is short says nothing.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Fewer bytes are not worth a line.
const WORTH_SHOWING_BYTES: u64 = 64 << 20;

/// Counts bytes of one thing.
pub struct Meter {
    what: String,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    /// Tenths that the log has.
    said: u64,
}

impl Meter {
    /// Of `what`, `loading weights` say.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), total: 0, done: 0, bar: None, said: 0 }
    }

    /// Begins, or begins again.
    pub fn start(&mut self, total: u64) {
        (self.total, self.done, self.said) = (total, 0, 0);
        if total >= WORTH_SHOWING_BYTES && std::io::stderr().is_terminal() && self.bar.is_none() {
            let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(style).expect("the template is sound");
            let bar = ProgressBar::new(total).with_style(style).with_message(self.what.clone());
            bar.enable_steady_tick(Duration::from_millis(200));
            self.bar = Some(bar);
        }
    }

    /// So many more bytes are done.
    pub fn advance(&mut self, bytes: u64) {
        self.set(self.done + bytes);
    }

    /// So many bytes are done.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.total >= WORTH_SHOWING_BYTES && done * 10 / self.total > self.said {
            self.said = done * 10 / self.total;
            let total = HumanBytes(self.total);
            tracing::info!("{}: {} % of {total}", self.what, self.said * 10);
        }
    }

    /// The bar goes away.
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
