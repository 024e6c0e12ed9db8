//! What a policy's tests need, natively and as Wasm: a seeded generator, rules to hold a plan against,
//! and a small host that runs whole scenarios. No model, no clock.

mod rng;

pub use rng::Rng;
