//! Which flags go together, and what follows from them.

use super::{ServeArgs, Switch, Which};
use crate::bench::{Api, Dialect, Lengths};
use crate::cli::Failure;
use crate::generate::Sequential;

impl ServeArgs {
    /// Refuses combinations of flags that would measure something other than what the report says.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let refused = |why: &str| Err(Failure::Usage(why.to_owned()));
        if self.url.is_some() && self.flags.has("served-model-name") {
            return refused(
                "--served-model-name renames the model of the server that `infer bench serve` starts; \
                 with --url, name the model of requests with --served-model",
            );
        }
        let ids = self.api == Api::Completions;
        if ids && self.dialect == Dialect::Openai && self.workload.contains(&Which::W4) {
            return refused(
                "--workload: w4 resends the output of earlier turns, and OpenAI's dialect doesn't return \
                 token ids; use --api text or --api chat",
            );
        }
        let has_baseline = matches!(self.baseline, Some(Switch::On));
        if let Some(fault) = self.rates.fault(self.trace.trace.is_some(), has_baseline) {
            return refused(fault);
        }
        if has_baseline && self.trace.trace.is_some() {
            return refused("--baseline: a trace has none; its requests depend on each other's times");
        }
        if has_baseline && !self.has_same_tokens() {
            return refused(
                "--baseline: both sides must compute the same number of the same token ids; use \
                 --api completions and --lengths exact",
            );
        }
        Ok(())
    }

    /// Whether a baseline would compute the same token ids as the server.
    fn has_same_tokens(&self) -> bool {
        self.api == Api::Completions && self.lengths == Lengths::Exact
    }

    /// Whether responses carry token ids.
    pub(super) fn returns_ids(&self) -> bool {
        self.api == Api::Completions && self.dialect == Dialect::Named
    }

    pub(super) fn wants_baseline(&self) -> bool {
        match self.baseline {
            None => {
                let others = self.url.is_some() || self.trace.trace.is_some() || self.rates.find_rate;
                !others && self.has_same_tokens()
            }
            Some(switch) => switch == Switch::On,
        }
    }

    pub(super) fn vocab_size(&self, baseline: Option<&Sequential>) -> Result<u32, Failure> {
        match (self.vocab_size, baseline) {
            (Some(given), Some(model)) if given > model.vocab_size() => {
                let most = model.vocab_size();
                Err(Failure::Usage(format!("--vocab-size: {given}; this model has {most} tokens")))
            }
            (Some(given), _) => Ok(given),
            (None, Some(model)) => Ok(model.vocab_size()),
            // Every byte-level vocabulary has at least this many.
            (None, None) => Ok(256),
        }
    }
}
