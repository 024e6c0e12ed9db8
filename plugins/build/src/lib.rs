//! Builds a policy crate to a component.
