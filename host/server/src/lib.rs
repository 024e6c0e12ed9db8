//! The inference server and command line.
