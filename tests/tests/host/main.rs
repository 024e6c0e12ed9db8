//! A host in this process, whose policies change while clients stream.

mod common;

mod http;
mod trial;
