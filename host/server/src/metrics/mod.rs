//! Metrics for `/metrics` and the console. Nothing here runs on the engine thread: counters come from its
//! reports, latencies from the streams.

mod calls;
mod families;
mod process;
mod recorder;
mod render;
mod tenants;
mod window;

pub use process::ProcessUsage;
pub use recorder::Recorder;
pub use render::{Reader, Scrapes, render};
pub use window::{Rates, Window, percentile};
