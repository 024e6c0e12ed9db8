//! Every kernel against [`crate::reference`], on random shapes with ragged edges. Outputs and unused slots of the pool are
//! filled with NaN first. The same checks run on the emulator in the test suite and on a GPU in `infer gpu-check`.

mod adapters;
mod attention;
mod choices;
mod experts;
mod few;
mod kv_write;
mod product;
mod quantized;
mod rope;
mod sample;
mod sample_exact;
mod small;
mod support;

use std::sync::Arc;

use super::device::Device;
use crate::Random;

pub use support::Effort;

type Run = fn(&Arc<dyn Device>, Effort, &mut Random) -> Result<String, String>;

/// One check. It returns what it covered, or what was wrong, including the seed.
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    run: Run,
}

impl Check {
    /// Runs the check with one seed.
    ///
    /// # Errors
    /// Names the seed, the shape and the first difference.
    pub fn run(&self, device: &Arc<dyn Device>, effort: Effort, seed: u64) -> Result<String, String> {
        (self.run)(device, effort, &mut Random::new(seed)).map_err(|wrong| format!("seed {seed}: {wrong}"))
    }
}

/// All checks, cheapest first.
pub fn all() -> &'static [Check] {
    &[
        Check { name: "embedding gather", run: small::embed },
        Check { name: "tokens of the last draws", run: small::follow_draws },
        Check { name: "gated activations", run: small::gated },
        Check { name: "residual and norm", run: small::add_norm },
        Check { name: "block copies", run: small::copy_blocks },
        Check { name: "rope, head norms and KV writes", run: kv_write::writes },
        Check { name: "products", run: product::products },
        Check { name: "products row by row", run: product::rows_alone },
        Check { name: "products with gates", run: few::gated },
        Check { name: "products with residual sums and norms", run: few::add_norm },
        Check { name: "products with rope and KV writes", run: rope::writes },
        Check { name: "embeddings of integers", run: quantized::embeddings },
        Check { name: "widened integers", run: quantized::widened },
        Check { name: "products of integers", run: quantized::products },
        Check { name: "products of integers row by row", run: quantized::rows_alone },
        Check { name: "products of integers with gates", run: few::gated_integers },
        Check { name: "products of integers with residual sums and norms", run: few::add_norm_integers },
        Check { name: "products of integers with rope and KV writes", run: rope::writes_of_integers },
        Check { name: "choices of experts", run: choices::route },
        Check { name: "layers of experts", run: experts::layers },
        Check { name: "adapters", run: adapters::adapters },
        Check { name: "decode attention", run: attention::decode },
        Check { name: "decode attention in fixed parts", run: attention::fixed_parts },
        Check { name: "attention right after KV writes", run: attention::after_writes },
        Check { name: "prefill attention", run: attention::prefill },
        Check { name: "sampling", run: sample::draws },
        Check { name: "sampling by exact weights", run: sample_exact::draws },
        Check { name: "sampling of broken logits", run: sample::broken },
    ]
}
