//! The real engine and model with policies as components, without a server.

mod c_policy;
mod cache;
mod effects;
mod faults;
mod outputs;
mod swap;
