//! Policy: memory-aware.
