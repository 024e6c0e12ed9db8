//! The real engine and model with policies as components, without a server. Apart from `host`, whose canaries are
//! judged by the clock: these tests compute all the time.

mod c_policy;
mod cache;
mod effects;
mod faults;
mod outputs;
mod swap;
