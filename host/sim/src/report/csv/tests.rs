//! The columns of CSV, and what rows of runs and tenants have in them.

use std::collections::BTreeMap;

use infer_core::event::PrefixEvent;
use infer_core::snapshot::Counters;

use super::super::tests::{cell, mixed, on_two_hosts};
use super::*;
use crate::metrics::Outcome;

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
    for name in ["ttft_p999", "itl_p999", "latency_p999", "tpot_p999", "tpot_mean", "tpot_max"] {
        assert_eq!(empty[name], "", "{name}");
    }
    (outcome.in_time, outcome.cache.hit_ttft_ms) = (Some(0.5), Some(160.0));
    (outcome.latency_ms.p95, outcome.latency_ms.max) = (1_234.0, 1_234.567);
    (outcome.latency_ms.p999, outcome.tpot_ms.mean, outcome.tpot_ms.p90) = (1_234.1, 20.0, 31.25);
    (outcome.pool.used_peak, outcome.evicted_blocks) = (0.75, 77);
    (outcome.offered_seconds, outcome.goodput_share) = (31.25, 0.8);
    outcome.cache.events[Counters::prefix_index(PrefixEvent::MissFull)] = 9;
    let full = &rows(&csv(&[cell(0, 0, outcome)]))[0];
    for (name, value) in [
        ("in_time", "0.50000"),
        ("ttft_hit_mean", "160.000"),
        ("latency_p95", "1234"),
        ("latency_max", "1234.567"),
        ("latency_p999", "1234.1"),
        ("tpot_mean", "20.000"),
        ("tpot_p90", "31.25"),
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
    let mut cells = on_two_hosts();
    cells[1].burstiness = Some(0.062_5);
    let rows = rows(&csv(&cells));
    assert_eq!([&rows[0]["device"], &rows[1]["device"]], ["l4", "h100"]);
    assert_eq!(rows[0]["offered_per_second"], "4.500");
    assert_eq!([&rows[0]["burstiness"], &rows[1]["burstiness"]], ["", "0.0625"]);
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
