//! Ctrl-C, and SIGTERM likewise: the first one stops a rollout and has it rolled back, the second one leaves things as
//! they are.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::Failure;

/// How often the user wanted it to stop.
#[derive(Clone)]
pub(super) struct Stop(watch::Receiver<u32>);

impl Stop {
    /// Counts from now on; calls `first` at the first time.
    pub fn listen(first: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
        let mut terminations = signal(SignalKind::terminate()).map_err(Failure::failed)?;
        let (count, counted) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(()) = interrupts.recv() => {}
                    Some(()) = terminations.recv() => {}
                    else => return,
                }
                count.send_modify(|count| *count += 1);
                if *count.borrow() == 1 {
                    first();
                }
            }
        });
        Ok(Self(counted))
    }

    /// Completes once it was this often.
    pub async fn reached(&self, times: u32) {
        let mut counted = self.0.clone();
        if counted.wait_for(|count| *count >= times).await.is_err() {
            // Nobody counts any more.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn is_reached_after_as_many_times() {
        let (count, counted) = watch::channel(0);
        let stop = Stop(counted);
        let is_reached = async |times| futures_util::poll!(std::pin::pin!(stop.reached(times))).is_ready();
        for (sent, reached) in [(0, [false, false]), (1, [true, false]), (2, [true, true])] {
            count.send_replace(sent);
            assert_eq!([is_reached(1).await, is_reached(2).await], reached);
        }
        drop(count);
        assert!(!is_reached(3).await);
    }
}
