//! The data plane: `POST /v1/completions` and its answers.
