//! Ctrl-C, and SIGTERM likewise: the first one stops a rollout and has it rolled back, the second one leaves things as
//! they are. A terminal that is closed (SIGHUP) stops it, too, but however often it says so, it ends no rollback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::Failure;

/// How often the user wanted it to stop.
#[derive(Clone)]
pub(super) struct Stop {
    count: watch::Receiver<u32>,
    /// Nothing is left that could be stopped.
    is_over: Arc<AtomicBool>,
}

impl Stop {
    /// Counts from now on; calls `first` at the first time, unless the rollout is over by then.
    pub fn listen(first: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(Failure::failed)?;
        // A handler would undo `nohup`.
        let mut hangups = if ignores_hangups() {
            None
        } else {
            Some(signal(SignalKind::hangup()).map_err(Failure::failed)?)
        };
        let (count, counted) = watch::channel(0);
        let stop = Self::counted(counted);
        let is_over = Arc::clone(&stop.is_over);
        tokio::spawn(async move {
            loop {
                let is_hangup = tokio::select! {
                    Some(()) = interrupts.recv() => false,
                    Some(()) = terminations.recv() => false,
                    Some(()) = async { hangups.as_mut()?.recv().await } => true,
                    else => return,
                };
                let before = *count.borrow();
                count.send_replace(next(before, is_hangup));
                if before == 0 && !is_over.load(Ordering::Relaxed) {
                    first();
                }
            }
        });
        Ok(stop)
    }

    fn counted(count: watch::Receiver<u32>) -> Self {
        Self { count, is_over: Arc::default() }
    }

    /// Completes once it was this often.
    pub async fn reached(&self, times: u32) {
        let mut count = self.count.clone();
        if count.wait_for(|count| *count >= times).await.is_err() {
            // Nobody counts any more.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for something that is only good to know, until it was this often. `None` if that came first.
    pub async fn unless<T>(&self, times: u32, known: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.reached(times) => None,
            known = known => Some(known),
        }
    }

    /// Notes that the rollout is over. Returns after how many times the user wants to wait for nothing more: one more
    /// time, but twice is always enough.
    pub fn ends(&self) -> u32 {
        self.is_over.store(true, Ordering::Relaxed);
        (*self.count.borrow() + 1).min(2)
    }
}

/// How often the user wanted it to stop, after one more signal. The kernel and the shell both report a closed terminal.
fn next(count: u32, is_hangup: bool) -> u32 {
    if is_hangup { count.max(1) } else { count + 1 }
}

/// Whether the process was started so that it outlives its terminal. Only Linux says so.
fn ignores_hangups() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| are_ignored(&status))
}

fn are_ignored(status: &str) -> bool {
    let mut masks = status.lines().filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = masks.next().and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is that of the signal 1.
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_terminal_counts_once() {
        assert_eq!(next(0, true), 1);
        assert_eq!(next(1, true), 1);
        assert_eq!(next(2, true), 2);
        assert_eq!(next(next(0, true), false), 2);
    }

    #[test]
    fn what_is_ignored_is_read_from_its_mask() {
        let status = |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        for (mask, ignored) in [("0000000000001001", true), ("0000000000001000", false), ("", false)] {
            assert_eq!(are_ignored(&status(mask)), ignored, "{mask}");
        }
        assert!(!are_ignored(""));
    }

    #[tokio::test]
    async fn is_reached_after_as_many_times() {
        let (count, counted) = watch::channel(0);
        let stop = Stop::counted(counted);
        let is_reached = async |times| futures_util::poll!(std::pin::pin!(stop.reached(times))).is_ready();
        for (sent, reached) in [(0, [false, false]), (1, [true, false]), (2, [true, true])] {
            count.send_replace(sent);
            assert_eq!([is_reached(1).await, is_reached(2).await], reached);
        }
        drop(count);
        assert!(!is_reached(3).await);
    }

    #[tokio::test]
    async fn nobody_waits_for_what_is_only_good_to_know() {
        let (count, counted) = watch::channel(0);
        let stop = Stop::counted(counted);
        assert_eq!(stop.unless(1, std::future::ready(7)).await, Some(7));
        let mut look = std::pin::pin!(stop.unless(1, std::future::pending::<u32>()));
        assert!(futures_util::poll!(look.as_mut()).is_pending());
        count.send_replace(1);
        assert_eq!(look.await, None);
        assert_eq!(stop.unless(2, std::future::ready(7)).await, Some(7), "it was once");
    }

    #[test]
    fn end_of_a_rollout_can_be_cut_short_and_is_announced_as_no_rollback() {
        for (before, enough) in [(0, 1), (1, 2), (2, 2), (3, 2)] {
            let stop = Stop::counted(watch::channel(before).1);
            assert!(!stop.is_over.load(Ordering::Relaxed));
            assert_eq!(stop.ends(), enough, "{before}");
            assert!(stop.is_over.load(Ordering::Relaxed));
        }
    }
}
