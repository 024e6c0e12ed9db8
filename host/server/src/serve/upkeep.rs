//! Once a second: samples the counters for rates, and ends requests that exceeded their time limit. Deliberately
//! absent: what a step does (`engine`).

use std::sync::Arc;
use std::time::Duration;

use infer_core::Micros;
use tokio::sync::watch;

use crate::admin;
use crate::app::{App, Served};
use crate::engine::EngineReport;

/// Once a second, samples the counters, so that the first client that asks gets rates, and ends requests that
/// exceeded their time limit.
pub(super) async fn watch_over(app: Arc<App>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let Ok(served) = app.served() else { return };
        match admin::report(&app, served).await {
            Ok(report) => {
                admin::rates(&app, &report.snapshot);
                end_overdue(&app, served, &report);
            }
            Err(_) if !served.engine.is_alive() => return,
            Err(_) => {}
        }
    }
}

fn end_overdue(app: &App, served: &Served, report: &EngineReport) {
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
}
