//! Policy: static-batch.
