//! Policy: lru.
