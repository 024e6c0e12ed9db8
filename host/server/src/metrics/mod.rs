//! What `/metrics` and the console's latencies are made of. Nothing here is on the engine's thread:
//! counts come from its reports, times from the streams.

mod process;
mod recorder;
mod render;
mod window;

pub use process::ProcessUsage;
pub use recorder::Recorder;
pub use render::{Scrapes, render};
pub use window::{Rates, Window, percentile};
