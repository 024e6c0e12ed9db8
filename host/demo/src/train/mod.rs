//! Trains the demo model: corpus -> tokenizer -> examples -> decoder -> checkpoint.
//!
//! All randomness comes from seeded generators, and all sums run in a fixed order on one thread, so a seed determines
//! the checkpoint on a given machine. Deliberately absent: data loading, devices, distribution; the corpus is tiny.

mod checkpoint;
mod corpus;
mod examples;
mod network;
mod random;
mod run;
mod tokenizer;
mod wording;

pub use checkpoint::write_checkpoint;
pub use corpus::{Corpus, Entry};
pub use examples::{Batch, Examples, Lesson};
pub use network::{Network, Shape};
pub use random::Random;
pub use run::{Plan, Trained, train, train_from};
pub use tokenizer::{ASSISTANT, BEGIN, END, SYSTEM, USER, Vocabulary};
