//! What is sent: the built-in workloads, at the rates that are given.

use super::{ServeArgs, Which};
use crate::bench::{Arrival, Workload};
use crate::cli::Failure;
use crate::config::Config;
use crate::generate::Sequential;

impl ServeArgs {
    /// The workloads that are wanted, each at every rate.
    pub(super) fn workloads(
        &self,
        config: &Config,
        vocab_size: u32,
        baseline: Option<&Sequential>,
    ) -> Result<Vec<Workload>, Failure> {
        let seed = config.seed.unwrap_or(0);
        let mut workloads = Vec::new();
        let wanted = |which| self.workload.contains(&which);
        if wanted(Which::W1) || wanted(Which::All) && !self.rates.find_rate {
            workloads.push(Workload::single(seed, self.repeat as usize, self.shared_prefix, vocab_size));
        }
        if wanted(Which::W2) || wanted(Which::All) {
            let (requests, at_once) = (self.requests as usize, self.concurrency as usize);
            workloads.push(Workload::mixed(seed, requests, at_once, self.shared_prefix, vocab_size));
        }
        if wanted(Which::W3) {
            workloads.push(Workload::shared(seed, vocab_size));
        }
        if wanted(Which::W4) {
            workloads.push(Workload::conversations(seed, vocab_size));
        }
        if !self.rates.rate.is_empty() && !self.rates.find_rate {
            let burstiness = self.rates.burstiness;
            let open = |workload: Workload| {
                let round = move |(round, &rate): (usize, &f64)| {
                    workload.clone().retold(seed, round).arriving(Arrival::open(rate, burstiness))
                };
                self.rates.rate.iter().enumerate().map(round)
            };
            workloads = workloads.into_iter().flat_map(open).collect();
        }
        if let Some(model) = baseline {
            for workload in &workloads {
                let (longest, most) = (workload.shape.longest(workload.turns), model.max_seq_len());
                if longest > most {
                    return Err(Failure::Usage(format!(
                        "--max-seq-len: {} needs {longest} tokens per request, but this model serves \
                         {most}; choose another --model or --workload",
                        workload.name
                    )));
                }
            }
        }
        Ok(workloads)
    }
}
