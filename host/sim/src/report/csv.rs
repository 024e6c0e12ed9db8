//! CSV with a row per run, a row per tenant of runs with several, and more columns than the tables.

use ::csv::Writer;
use Read::{Both, Every, Run, Tenant};
use infer_core::event::PrefixEvent;
use infer_core::snapshot::Counters;

use super::made_by;
use crate::compare::Cell;
use crate::metrics::{FirstFault, Outcome, TenantOutcome, present};

/// Where a column's value comes from; rows of other kinds leave it empty.
enum Read {
    /// Of every row.
    Every(fn(&Cell) -> String),
    /// Of a run.
    Run(fn(&Outcome) -> String),
    /// Of a run, and of a tenant in it.
    Both(fn(&Outcome) -> String, fn(&TenantOutcome) -> String),
    /// Of a tenant.
    Tenant(fn(&TenantOutcome) -> String),
}

/// Names are part of the interface: new columns come last, before those of what made a run.
const COLUMNS: [(&str, Read); 89] = [
    ("workload", Every(|c| c.workload.clone())),
    ("load", Every(|c| c.load.to_string())),
    ("contender", Every(|c| c.contender.clone())),
    ("requests", Both(|o| o.requests.to_string(), |t| t.requests.to_string())),
    ("finished", Both(|o| o.finished.to_string(), |t| t.finished.to_string())),
    ("refused", Both(|o| o.refused.to_string(), |t| t.refused.to_string())),
    ("failed", Both(|o| o.failed.to_string(), |t| t.failed.to_string())),
    ("seconds", Run(|o| milli(o.seconds))),
    ("output_tokens_per_second", Both(|o| milli(o.output_per_second), |t| milli(t.output_per_second))),
    ("goodput_per_second", Both(|o| milli(o.goodput_per_second), |t| milli(t.goodput_per_second))),
    ("ttft_mean", Both(|o| time(o.ttft_ms.mean), |t| time(t.ttft_ms.mean))),
    ("ttft_p50", Both(|o| percentile(o.ttft_ms.p50), |t| percentile(t.ttft_ms.p50))),
    ("ttft_p95", Both(|o| percentile(o.ttft_ms.p95), |t| percentile(t.ttft_ms.p95))),
    ("ttft_p99", Both(|o| percentile(o.ttft_ms.p99), |t| percentile(t.ttft_ms.p99))),
    ("itl_p50", Both(|o| percentile(o.itl_ms.p50), |t| percentile(t.itl_ms.p50))),
    ("itl_p95", Both(|o| percentile(o.itl_ms.p95), |t| percentile(t.itl_ms.p95))),
    ("itl_p99", Both(|o| percentile(o.itl_ms.p99), |t| percentile(t.itl_ms.p99))),
    ("latency_mean", Both(|o| time(o.latency_ms.mean), |t| time(t.latency_ms.mean))),
    ("latency_p50", Both(|o| percentile(o.latency_ms.p50), |t| percentile(t.latency_ms.p50))),
    ("latency_p99", Both(|o| percentile(o.latency_ms.p99), |t| percentile(t.latency_ms.p99))),
    ("in_time", Both(|o| known(o.in_time, 5), |t| known(t.in_time, 5))),
    ("hit_rate", Run(|o| share(o.cache.hit_rate))),
    ("conversational_rate", Run(|o| share(o.cache.conversational_rate))),
    ("cross_request_rate", Run(|o| share(o.cache.cross_request_rate))),
    ("mean_cached", Run(|o| known(o.cache.mean_cached, 1))),
    ("mean_prefilled", Run(|o| known(o.cache.mean_prefilled, 1))),
    (
        "prefilled_ratio",
        Both(|o| known(o.cache.prefilled_ratio, 5), |t| known(t.cached_ratio.map(|cached| 1.0 - cached), 5)),
    ),
    ("ttft_hit_mean", Run(|o| known(o.cache.hit_ttft_ms, 3))),
    ("ttft_miss_mean", Run(|o| known(o.cache.miss_ttft_ms, 3))),
    ("preemptions", Both(|o| o.preemptions.to_string(), |t| t.preemptions.to_string())),
    ("service_gap", Run(|o| known(Some(o.service_gap), 1))),
    ("policy_faults", Run(|o| o.policy_faults.to_string())),
    ("fingerprint", Run(|o| o.fingerprint.clone())),
    ("tenant", Tenant(|t| t.tenant.to_string())),
    ("seed", Every(|c| c.settings.seed.to_string())),
    ("device", Every(|c| c.settings.device.clone())),
    ("model", Every(|c| c.settings.model.clone().unwrap_or_default())),
    ("blocks", Every(|c| c.settings.blocks.to_string())),
    ("block_size", Every(|c| c.settings.block_size.to_string())),
    ("steps", Run(|o| o.steps.to_string())),
    ("tokens_per_second", Run(|o| milli(o.tokens_per_second))),
    ("latency_p95", Both(|o| percentile(o.latency_ms.p95), |t| percentile(t.latency_ms.p95))),
    ("queue_mean", Both(|o| time(o.queue_ms.mean), |t| time(t.queue_ms.mean))),
    ("queue_p95", Both(|o| percentile(o.queue_ms.p95), |t| percentile(t.queue_ms.p95))),
    ("pool_used_mean", Run(|o| share(o.pool.used_mean))),
    ("pool_used_peak", Run(|o| share(o.pool.used_peak))),
    ("pool_cached_mean", Run(|o| share(o.pool.cached_mean))),
    ("pool_cached_peak", Run(|o| share(o.pool.cached_peak))),
    ("evicted_blocks", Run(|o| o.evicted_blocks.to_string())),
    ("CONVERSATIONAL_HIT", Run(|o| event(o, PrefixEvent::ConversationalHit))),
    ("CROSS_REQUEST_HIT", Run(|o| event(o, PrefixEvent::CrossRequestHit))),
    ("MISS_FULL", Run(|o| event(o, PrefixEvent::MissFull))),
    ("FULL_HIT_NO_PREFILL_NEEDED", Run(|o| event(o, PrefixEvent::FullHitNoPrefillNeeded))),
    (
        "CONVERSATIONAL_MISS_UNEXPECTED_PROMPT",
        Run(|o| event(o, PrefixEvent::ConversationalMissUnexpectedPrompt)),
    ),
    ("builtin_share", Run(|o| share(o.builtin_share))),
    ("fault_kind", Run(|o| fault(o, |fault| fault.kind.to_owned()))),
    ("fault_policy", Run(|o| fault(o, |fault| fault.policy.clone()))),
    ("fault_message", Run(|o| fault(o, |fault| fault.message.clone()))),
    ("fault_at", Run(|o| fault(o, |fault| milli(fault.at_s)))),
    ("error", Every(|c| c.outcome.as_ref().err().cloned().unwrap_or_default())),
    ("offered_per_second", Every(|c| known(c.offered_per_second, 3))),
    ("max_batch_size", Every(|c| c.settings.max_batch_size.to_string())),
    ("max_batch_tokens", Every(|c| c.settings.max_batch_tokens.to_string())),
    ("prefill_chunk", Every(|c| c.settings.prefill_chunk.to_string())),
    ("max_waiting_requests", Every(|c| c.settings.max_waiting_requests.to_string())),
    ("max_prefill_requests", Every(|c| c.settings.max_prefill_requests.to_string())),
    ("prefix_caching", Every(|c| c.settings.prefix_caching.to_string())),
    ("prompt_cache_entries", Every(|c| c.settings.prompt_cache_entries.to_string())),
    ("prompt_cache_ttl_s", Every(|c| c.settings.prompt_cache_ttl_s.to_string())),
    ("plan_ahead", Every(|c| c.settings.plan_ahead.to_string())),
    ("host_us", Every(|c| c.settings.host_us.to_string())),
    ("met_targets", Both(|o| o.targets.met.to_string(), |t| t.targets.met.to_string())),
    ("late", Both(|o| o.targets.late.to_string(), |t| t.targets.late.to_string())),
    ("slow", Both(|o| o.targets.slow.to_string(), |t| t.targets.slow.to_string())),
    ("offload_blocks", Every(|c| c.settings.offload_blocks.to_string())),
    ("onloaded_blocks", Run(|o| o.onloaded_blocks.to_string())),
    ("offered_seconds", Run(|o| milli(o.offered_seconds))),
    ("goodput_share", Both(|o| share(o.goodput_share), |t| share(t.goodput_share))),
    ("ttft_min", Both(|o| time(o.ttft_ms.min), |t| time(t.ttft_ms.min))),
    ("ttft_max", Both(|o| time(o.ttft_ms.max), |t| time(t.ttft_ms.max))),
    ("itl_max", Both(|o| time(o.itl_ms.max), |t| time(t.itl_ms.max))),
    ("latency_max", Both(|o| time(o.latency_ms.max), |t| time(t.latency_ms.max))),
    ("queue_max", Both(|o| time(o.queue_ms.max), |t| time(t.queue_ms.max))),
    ("fairness_service", Run(|o| known(o.fairness.service, 5))),
    ("fairness_latency", Run(|o| known(o.fairness.latency, 5))),
    ("fairness_latency_per_token", Run(|o| known(o.fairness.latency_per_token, 5))),
    ("tenant_service", Tenant(|t| known(Some(t.service), 1))),
    ("tenant_latency_per_token", Tenant(|t| known(t.latency_per_token_ms, 3))),
    ("tenant_name", Tenant(|t| t.name.clone().unwrap_or_default())),
];

/// Renders CSV. Durations are in milliseconds; what has no value is empty.
pub fn csv(cells: &[Cell]) -> String {
    let mut text = Writer::from_writer(Vec::new());
    let made_by_columns = made_by::COLUMNS.map(str::to_owned);
    write(&mut text, COLUMNS.map(|(name, _)| name.to_owned()), &made_by_columns);
    for cell in cells {
        let made_by = made_by::fields(&cell.made_by, cell.policies.as_ref());
        let outcome = cell.outcome.as_ref().ok();
        let run = |read: &Read| match read {
            Every(read) => read(cell),
            Run(read) | Both(read, _) => outcome.map_or_else(String::new, read),
            Tenant(_) => String::new(),
        };
        write(&mut text, COLUMNS.each_ref().map(|(_, read)| run(read)), &made_by);
        let tenants = outcome.map(|outcome| outcome.tenants.as_slice()).unwrap_or_default();
        for tenant in tenants.iter().filter(|_| tenants.len() > 1) {
            let part = |read: &Read| match read {
                Every(read) => read(cell),
                Both(_, read) | Tenant(read) => read(tenant),
                Run(_) => String::new(),
            };
            write(&mut text, COLUMNS.each_ref().map(|(_, read)| part(read)), &made_by);
        }
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

fn write(text: &mut Writer<Vec<u8>>, fields: [String; COLUMNS.len()], made_by: &[String]) {
    text.write_record(fields.iter().chain(made_by)).expect("memory takes it");
}

fn milli(value: f64) -> String {
    format!("{value:.3}")
}

/// A value of durations that is exact.
fn time(ms: f64) -> String {
    known(present(ms), 3)
}

/// A percentile, with the digits that it has.
fn percentile(ms: f64) -> String {
    present(ms).map_or_else(String::new, |ms| ms.to_string())
}

fn share(value: f64) -> String {
    format!("{value:.5}")
}

fn known(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}

fn event(outcome: &Outcome, event: PrefixEvent) -> String {
    outcome.cache.events[Counters::prefix_index(event)].to_string()
}

fn fault(outcome: &Outcome, read: fn(&FirstFault) -> String) -> String {
    outcome.fault.as_ref().map_or_else(String::new, read)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{cell, mixed, on_two_hosts};
    use super::*;

    /// The rows as maps from the names of the columns.
    fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
        ::csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.expect("a row")).collect()
    }

    #[test]
    fn texts_with_quotes_and_commas_stay_one_field() {
        let mut cell = cell(0, 0, Outcome::default());
        cell.workload = "of monday, all.jsonl".to_owned();
        cell.contender = r#"srpt={"b": 1, "c": 2}"#.to_owned();
        let text = csv(&[cell]);
        assert!(text.contains(r#""of monday, all.jsonl",1,"srpt={""b"": 1, ""c"": 2}",0,"#), "{text}");
        let row = &rows(&text)[0];
        assert_eq!((&row["workload"][..], &row["finished"][..]), ("of monday, all.jsonl", "0"));
    }

    #[test]
    fn columns_keep_their_names_and_places() {
        let head = "workload,load,contender,requests,finished,refused,failed,seconds,output_tokens_per_second,\
                    goodput_per_second,ttft_mean,ttft_p50,ttft_p95,ttft_p99,itl_p50,itl_p95,itl_p99,latency_mean,\
                    latency_p50,latency_p99,in_time,hit_rate,conversational_rate,cross_request_rate,mean_cached,\
                    mean_prefilled,prefilled_ratio,ttft_hit_mean,ttft_miss_mean,preemptions,service_gap,policy_faults,\
                    fingerprint,tenant,seed,device,model,blocks,";
        let text = csv(&[]);
        assert!(text.starts_with(head), "{text}");
        assert!(PrefixEvent::ALL.iter().all(|event| text.contains(event.name())), "{text}");
        assert!(text.ends_with(&format!(",{}\n", made_by::COLUMNS.join(","))), "{text}");
    }

    #[test]
    fn what_has_no_value_is_empty() {
        let mut outcome = Outcome::default();
        let empty = &rows(&csv(&[cell(0, 0, outcome.clone())]))[0];
        for name in ["in_time", "mean_cached", "ttft_hit_mean", "fault_kind", "fault_at", "error", "tenant"] {
            assert_eq!(empty[name], "", "{name}");
        }
        for name in ["ttft_mean", "ttft_p99", "itl_p50", "latency_mean", "queue_p95", "prefilled_ratio"] {
            assert_eq!(empty[name], "", "{name}");
        }
        (outcome.in_time, outcome.cache.hit_ttft_ms) = (Some(0.5), Some(160.0));
        (outcome.latency_ms.p95, outcome.latency_ms.max) = (1_234.0, 1_234.567);
        (outcome.pool.used_peak, outcome.evicted_blocks) = (0.75, 77);
        (outcome.offered_seconds, outcome.goodput_share) = (31.25, 0.8);
        outcome.cache.events[Counters::prefix_index(PrefixEvent::MissFull)] = 9;
        let full = &rows(&csv(&[cell(0, 0, outcome)]))[0];
        for (name, value) in [
            ("in_time", "0.50000"),
            ("ttft_hit_mean", "160.000"),
            ("latency_p95", "1234"),
            ("latency_max", "1234.567"),
            ("pool_used_peak", "0.75000"),
            ("evicted_blocks", "77"),
            ("offered_seconds", "31.250"),
            ("goodput_share", "0.80000"),
            ("MISS_FULL", "9"),
            ("device", "h100"),
            ("model", "8b"),
            ("seed", "1"),
            ("blocks", "1024"),
        ] {
            assert_eq!(full[name], value, "{name}");
        }
    }

    #[test]
    fn hosts_are_told_apart() {
        let rows = rows(&csv(&on_two_hosts()));
        assert_eq!([&rows[0]["device"], &rows[1]["device"]], ["l4", "h100"]);
        assert_eq!(rows[0]["offered_per_second"], "4.500");
    }

    #[test]
    fn tenants_and_failed_runs_have_rows_of_their_own() {
        let mut cells = mixed();
        cells.iter_mut().for_each(|cell| cell.made_by.version = "0.9.0".to_owned());
        let rows = rows(&csv(&cells));
        let of = |name: &str| rows.iter().map(|row| row[name].as_str()).collect::<Vec<_>>();
        assert_eq!(of("contender"), ["a", "a", "a", "a", "a", "a", "b", "b", "c", "c"]);
        assert_eq!(of("seed"), ["3", "3", "3", "4", "4", "4", "3", "4", "3", "4"]);
        assert_eq!(of("tenant"), ["", "1", "7", "", "1", "7", "", "", "", ""]);
        assert_eq!(of("requests"), ["8", "4", "4", "8", "4", "4", "8", "8", "", ""]);
        assert_eq!(of("version"), ["0.9.0"; 10]);
        let tenant = &rows[2];
        for (name, value) in [
            ("finished", "3"),
            ("output_tokens_per_second", "12.500"),
            ("ttft_mean", "70.000"),
            ("prefilled_ratio", "0.75000"),
            ("latency_mean", "900.500"),
            ("itl_p99", "12.35"),
            ("preemptions", "2"),
            ("in_time", "0.50000"),
            ("met_targets", "1"),
            ("goodput_share", "0.25000"),
            ("tenant_name", "ChatGPT"),
            ("tenant_service", "640.0"),
            ("fairness_service", ""),
            ("service_gap", ""),
            ("fingerprint", ""),
        ] {
            assert_eq!(tenant[name], value, "{name}");
        }
        assert_eq!((&rows[1]["tenant_name"][..], &rows[0]["fairness_service"][..]), ("", "0.91000"));
        let left = &rows[6];
        assert_eq!((&left["fault_policy"][..], &left["fault_at"][..]), ("moody", "3.500"));
        assert_eq!((&left["builtin_share"][..], &left["policy_faults"][..]), ("0.84100", "3"));
        assert_eq!(rows[9]["error"], "line 7, column 2: \"<\"");
    }
}
