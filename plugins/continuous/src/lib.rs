//! Policy: continuous.
