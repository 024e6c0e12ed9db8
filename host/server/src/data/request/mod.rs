//! From the bytes of a request's body to checked fields.

mod advice;
pub mod common;
pub mod fields;
pub mod json;
pub mod model_names;
pub mod router_fields;
