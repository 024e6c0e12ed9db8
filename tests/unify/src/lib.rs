//! Nothing but the dependencies in its `Cargo.toml`: third-party crates, with the features that they have where the
//! whole workspace is built with all features.
//!
//! Cargo builds a crate anew for every set of features that a selection of packages gives it. Whoever selects this
//! package, too, when linting the host with fewer features gets the crates that were built for all features, and waits
//! only for the host's own. A feature that is missing here costs time, nothing else.

#![forbid(unsafe_code)]
