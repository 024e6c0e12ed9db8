//! When the host gives up on a request that the engine neither takes nor ends: during a step that hangs, nothing else
//! would. Deliberately absent: the time limit itself, which the engine enforces as long as it responds (`serve::upkeep`).

use std::time::Duration;

use tokio::time::Instant;

use crate::app::App;
use crate::http::ApiError;

/// When to give up on a request that is submitted now.
pub fn last_moment(app: &App) -> Instant {
    let bounds = &app.config.bounds;
    after(bounds.request_timeout.saturating_add(bounds.engine_patience))
}

/// The instant after `time`, or in a year if that exceeds the clock's range.
pub fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 86_400))
}

/// The error of a request that the host has given up on.
pub fn engine_hangs() -> ApiError {
    ApiError::too_late(
        "the request took longer than this host allows (--request-timeout), and the engine does not respond",
    )
}
