//! The demo model: corpus, trainer, embedded checkpoint.
