//! The report of `infer bench engine` as text.

use std::fmt::Write as _;

use super::engine::EngineReport;

impl EngineReport {
    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.conditions);
        _ = writeln!(
            text,
            "{:<12} {:<5} {:<12} {:>9} {:>9} {:>9} {:>7} {:>8}  limit",
            "shape", "", "", "tok/s", "median", "ms", "GB/s", "GFLOP/s"
        );
        for run in &self.runs {
            _ = writeln!(
                text,
                "{:<12} {:<5} {:<12} {:>9.1} {:>9.1} {:>9.2} {:>7.1} {:>8.1}  {:.0} % of {}",
                run.shape,
                run.weights,
                run.run,
                run.best_tokens_per_s,
                run.median_tokens_per_s,
                run.best_ms,
                run.gb_per_s,
                run.gflop_per_s,
                100.0 * run.share_of_limit,
                run.bound_by
            );
        }
        for run in &self.runs {
            let Some(adapted) = run.adapted else { continue };
            _ = writeln!(
                text,
                "with an adapter of rank {} in every row, {} {} {}: {:.1} tok/s, {:.0} % of that without it",
                adapted.rank,
                run.shape,
                run.weights,
                run.run,
                adapted.best_tokens_per_s,
                100.0 * adapted.share
            );
        }
        for run in &self.runs {
            let Some(crowded) = run.crowded else { continue };
            _ = writeln!(
                text,
                "next to {} spinning threads, {} {} {}: {:.1} tok/s on average, {:.0} % of the average without them; \
                 a fair share is {:.0} %",
                crowded.neighbours,
                run.shape,
                run.weights,
                run.run,
                crowded.mean_tokens_per_s,
                100.0 * crowded.share,
                100.0 * crowded.fair_share
            );
        }
        text
    }
}
