//! What is found in the cache: hits, their classification, and waiting for a prefix that is being computed.

mod hits;
mod sessions;
mod views;
