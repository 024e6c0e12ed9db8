//! The report of `infer bench serve` as text.

use super::report::{Comparison, Goodput, Report, WorkloadReport, per_second};
use super::{Arrival, Summary};

/// Delay of an open loop's requests, in milliseconds, from which the report mentions it.
const LATE_MS: f64 = 5.0;
/// Tenants that are listed.
const TENANTS: usize = 16;

impl Report {
    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let load = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value:.2}"));
        let mut out = format!(
            "{} at {}, seed {}\n{}, {} cores, load average {} before and {} after\n",
            self.subject,
            self.url,
            self.seed,
            self.machine.cpu,
            self.machine.cores,
            load(self.machine.load_average_before),
            load(self.load_average_after)
        );
        for line in self.about() {
            out += &format!("{line}\n");
        }
        for workload in &self.workloads {
            out += "\n";
            out += &workload.text();
        }
        for found in &self.sustained {
            out += &format!("\n{}\n", found.text());
        }
        out
    }
}

impl WorkloadReport {
    pub(super) fn text(&self) -> String {
        let mut out = self.counts();
        out += &format!("{:17} {:>10} {:>10} {:>10} {:>10} {:>8}\n", "", "p50", "p95", "p99", "mean", "n");
        out += &row("TTFT ms", &self.ttft_ms);
        if let Some([hits, misses]) = self.ttft_by_cache() {
            out += &row("  of hits", &hits);
            out += &row("  of misses", &misses);
        }
        let tenants = self.ttft_by_tenant();
        for (tenant, times) in tenants.iter().take(TENANTS) {
            out += &row(&format!("  {tenant}"), times);
        }
        if tenants.len() > TENANTS {
            out += &format!("      of {} more tenants: --format json\n", tenants.len() - TENANTS);
        }
        out += &row("ITL ms", &self.itl_ms);
        let gaps = self.output_tokens.saturating_sub(self.completed as u64);
        if (self.itl_ms.count as u64) < gaps {
            let chunks = self.itl_ms.count;
            out += &format!("      between {chunks} chunks, which held {gaps} tokens after the first\n");
        }
        out += &row("latency ms", &self.latency_ms);
        if self.late_ms > LATE_MS {
            let late_ms = self.late_ms;
            out += &format!(
                "    sent late     by up to {late_ms:.1} ms: the load generator could not keep up\n"
            );
        }
        out += &self.goodput.as_ref().map(goodput).unwrap_or_default();
        out += &self.in_process.as_ref().map(|local| self.comparison(local)).unwrap_or_default();
        out
    }

    fn counts(&self) -> String {
        let failed: usize = self.errors.values().sum();
        let mut out = format!(
            "{}  {}\n    requests      {} completed, {failed} failed\n",
            self.name, self.description, self.completed
        );
        for (error, count) in &self.errors {
            out += &format!("      failed {count}x  {error}\n");
        }
        out += &format!(
            "    throughput    {:.1} output tok/s ({} tokens in {:.2} s), {:.1} prompt tok/s, {} prompt tokens cached\n",
            self.output_tokens_per_s,
            self.output_tokens,
            self.wall_s,
            per_second(self.prompt_tokens, self.wall_s),
            self.cached_tokens
        );
        let strangers = self.shape.shared_prefix == 0 && self.turns == 1;
        let is_trace = matches!(self.arrival, Arrival::Recorded(_) | Arrival::Scaled { .. });
        if strangers && self.cached_tokens > 0 && !is_trace {
            out += "      cached although the prompts share nothing: the server has seen them before; \
                    use another --seed\n";
        }
        out
    }

    fn comparison(&self, local: &Comparison) -> String {
        let ratio = local.throughput_ratio.map(|ratio| format!("; the server reaches {ratio:.2}x of it"));
        let mut out = format!(
            "    in process, one after the other, same prompts:\n{}{}    baseline      {:.1} output tok/s in {:.2} s{}\n",
            row("TTFT ms", &local.ttft_ms),
            row("latency ms", &local.latency_ms),
            local.output_tokens_per_s,
            local.wall_s,
            ratio.unwrap_or_default()
        );
        if let Some(percent) = local.overhead_percent {
            out += &format!(
                "    overhead      {percent:+.1}% latency ({:+.1} ms of {:.1} ms), TTFT {:+.2} ms\n",
                self.latency_ms.mean - local.latency_ms.mean,
                local.latency_ms.mean,
                self.ttft_ms.mean - local.ttft_ms.mean
            );
        }
        if let Some(identical) = local.identical {
            let completed = self.completed;
            out += &format!("    tokens        identical to the baseline's in {identical} of {completed}\n");
        }
        out
    }
}

fn goodput(goodput: &Goodput) -> String {
    format!(
        "    goodput       {:.2} requests/s: {} ({:.1}%) within {}\n",
        goodput.requests_per_s,
        goodput.good,
        goodput.share * 100.0,
        goodput.targets.text()
    )
}

fn row(name: &str, summary: &Summary) -> String {
    let Summary { p50, p95, p99, mean, count, .. } = summary;
    format!("    {name:<13} {p50:>10.2} {p95:>10.2} {p99:>10.2} {mean:>10.2} {count:>8}\n")
}
