//! Home of the cross-crate tests; they live in `tests/tests`. Nothing to use here.
#![forbid(unsafe_code)]
