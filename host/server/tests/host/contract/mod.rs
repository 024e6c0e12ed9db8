//! The data plane's HTTP contract: statuses, errors, events, bodies.

mod bodies;
mod completions;
mod paths;
mod refusals;
mod streams;
