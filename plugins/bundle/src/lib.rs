//! The shipped policies as components.
