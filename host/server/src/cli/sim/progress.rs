//! A progress bar on stderr, if that is a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use infer_sim::Progress;

const WIDTH: usize = 30;
const EVERY: Duration = Duration::from_millis(100);

/// A progress bar on stderr.
pub struct Bar {
    /// What is counted as runs.
    what: &'static str,
    begun: Instant,
    last: Mutex<Option<Instant>>,
    shown: bool,
}

impl Bar {
    /// Creates the bar; it stays hidden unless stderr is a terminal.
    pub fn new(what: &'static str) -> Self {
        Self { what, begun: Instant::now(), last: Mutex::new(None), shown: std::io::stderr().is_terminal() }
    }

    /// Shows the progress, at most every tenth of a second.
    pub fn show(&self, progress: Progress) {
        let ended = progress.runs.0 == progress.runs.1;
        if !self.shown || !(ended || self.is_due()) {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        let _ = write!(
            stderr,
            "\r\x1b[K{}{}",
            line(progress, self.what, self.begun.elapsed()),
            if ended { "\n" } else { "" }
        );
        let _ = stderr.flush();
    }

    fn is_due(&self) -> bool {
        let Ok(mut last) = self.last.try_lock() else { return false };
        if last.is_some_and(|last| last.elapsed() < EVERY) {
            return false;
        }
        *last = Some(Instant::now());
        true
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn line(progress: Progress, what: &str, took: Duration) -> String {
    let (runs, of) = progress.runs;
    let (requests, all) = progress.requests;
    let part = match all {
        Some(all) if all > 0 => requests as f64 / all as f64,
        _ => runs as f64 / of.max(1) as f64,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the width")]
    let filled = (part.clamp(0.0, 1.0) * WIDTH as f64) as usize;
    let seconds = took.as_secs_f64();
    let left = match all {
        Some(all) if requests > 0 && requests < all => {
            format!(", {:.0} s left", seconds * (all - requests) as f64 / requests as f64)
        }
        _ => String::new(),
    };
    format!(
        "[{}{}] {runs} of {of} {what}, {requests} requests in {seconds:.0} s{left}",
        "#".repeat(filled),
        ".".repeat(WIDTH - filled)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_progress_and_the_time_left() {
        let half = Progress { runs: (1, 4), requests: (100, Some(200)) };
        let line_of = |progress| line(progress, "runs", Duration::from_secs(10));
        assert_eq!(
            line_of(half),
            "[###############...............] 1 of 4 runs, 100 requests in 10 s, 10 s left"
        );
        let unknown = line_of(Progress { runs: (0, 1), requests: (5, None) });
        assert!(unknown.starts_with("[....") && unknown.ends_with("5 requests in 10 s"), "{unknown}");
    }
}
