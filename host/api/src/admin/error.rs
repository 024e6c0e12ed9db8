//! Error responses.

use serde::{Deserialize, Serialize};

/// Body of an error response, on both planes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInfo,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorInfo {
    /// What is wrong and what to do, for people.
    pub message: String,
    /// Class of the error, for example `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field that caused it.
    pub param: Option<String>,
    /// Machine-readable code.
    pub code: Option<String>,
}
