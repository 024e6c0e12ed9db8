//! Once a second: samples the counters for rates, and ends requests that exceeded their time limit; in between when one
//! does. Deliberately absent: what a step does (`engine`).

use std::sync::Arc;
use std::time::Duration;

use infer_core::Micros;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::admin;
use crate::app::{App, Served};
use crate::engine::EngineReport;

/// Time between two looks at all requests. One whose limit is shorter may be ended that much late.
const TICK: Duration = Duration::from_secs(1);
/// The same for looks in between, each of which delays a step a little.
const SOONEST: Duration = Duration::from_millis(100);

/// Once a second, samples the counters, so that the first client that asks gets rates, and ends requests that
/// exceeded their time limit.
pub(super) async fn watch_over(app: Arc<App>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // When the next request reaches its limit, if that is before the next tick.
    let mut due = None;
    loop {
        let is_tick = tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => true,
            () = at(due) => false,
        };
        due = None;
        let Ok(served) = app.served() else { return };
        match admin::report(&app, served).await {
            Ok(report) => {
                if is_tick {
                    admin::rates(&app, &report.snapshot);
                }
                due = end_overdue(&app, served, &report).map(|left| Instant::now() + left);
            }
            Err(_) if !served.engine.is_alive() => return,
            Err(_) => {}
        }
    }
}

/// Completes at an instant, or never.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Ends requests that exceeded their limit. Returns after what time to look again, if before the next tick.
fn end_overdue(app: &App, served: &Served, report: &EngineReport) -> Option<Duration> {
    let limit = Micros(app.config.bounds.request_timeout.as_micros() as u64);
    let seconds = app.config.bounds.request_timeout.as_secs_f32();
    // How far it came, its group adds: a row is one sequence, and those that have ended are no rows any more.
    let message = format!("the request took longer than this host allows, {seconds} s (--request-timeout)");
    let rows = report.snapshot.requests.iter().filter(|row| report.at.since(row.arrived) > limit);
    let overdue: Vec<_> = rows.map(|row| (row.id, message.clone())).collect();
    if !overdue.is_empty() {
        // If the engine's queue is full, the next tick tries again.
        let _ = served.engine.expire(overdue);
    }
    next_look(report.snapshot.requests.iter().map(|row| report.at.since(row.arrived)), limit)
}

/// The time until the next of these requests, of so many ages, exceeds the limit, if that is before the next tick.
fn next_look(ages: impl Iterator<Item = Micros>, limit: Micros) -> Option<Duration> {
    let left = ages.filter_map(|age| limit.0.checked_sub(age.0)).min()?;
    let left = Duration::from_micros(left.saturating_add(1));
    (left < TICK).then(|| left.max(SOONEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_reaches_its_limit_between_two_ticks_is_looked_at_then() {
        let look = |ages: &[u64]| next_look(ages.iter().map(|&ms| Micros(ms * 1_000)), Micros(5_000_000));
        assert_eq!(look(&[]), None);
        assert_eq!(look(&[0, 3_000, 4_000]), None, "the next tick is early enough");
        assert_eq!(look(&[3_000, 4_400, 4_100]), Some(Duration::from_micros(600_001)));
        assert_eq!(look(&[4_400, 4_999]), Some(SOONEST), "not at each of many");
        assert_eq!(look(&[5_001, 9_000]), None, "these have been ended");
    }
}
