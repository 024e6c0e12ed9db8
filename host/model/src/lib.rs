//! Checkpoints, decoder, sampler, tokenizer.
