//! Load: what a seed determines, what a load of 1 means, and what a run does under more of it.

use std::sync::Arc;

use infer_core::builtin::FirstComeFirstServed;
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_core::policy::{Plan, Policy, PolicyFault, PolicyInfo, SchedulerPolicy, StepView};
use infer_sim::workload::Capacity;
use infer_sim::{Outcome, Profile, Workload, simulate};

use super::{run, served};
use crate::{named, settings};

#[test]
fn seed_determines_a_run() {
    for name in ["bursty", "templates", "assistants"] {
        let workload = named(name, 300);
        let run = |seed| served(&settings(0.8, seed), &workload);
        let (first, again, other) = (run(1), run(1), run(2));
        assert_eq!(first, again, "{name}");
        assert_ne!(first.fingerprint, other.fingerprint, "{name}");
    }
}

#[test]
fn load_of_1_is_the_capacity_of_the_device() {
    let h100 = ("h100", "8b");
    for ((device, model), name, requests) in [
        (h100, "diverse", 2_000),
        (h100, "instruct", 2_000),
        (h100, "few-shot", 2_000),
        (h100, "heavy-tail", 3_000),
        (("cpu", "demo"), "diverse", 2_000),
        (("cpu", "demo"), "instruct", 2_000),
    ] {
        let finished_per_s = |load| {
            let mut settings = settings(load, 1);
            settings.profile = Profile::named(device, model).expect("a known profile");
            // Running sequences and the device are the only limits.
            settings.engine.total_blocks = 60_000;
            settings.engine.max_waiting = requests as u32;
            let workload = named(name, requests);
            let outcome = served(&settings, &workload);
            outcome.finished as f64 / outcome.seconds
        };
        // At the low load everything offered is finished, at the high load as much as the device can. The tolerance
        // covers the start and the end of a run, when the batch isn't full.
        let part = finished_per_s(1.3) / (finished_per_s(0.25) / 0.25);
        assert!((0.9..1.03).contains(&part), "{device} {model} {name}: {part:.3}");
    }
}

/// The conversations of the report run among others, from the first to the last.
#[test]
fn conversations_offer_their_load_all_along() {
    for name in ["chat", "window", "flood", "assistants"] {
        let workload = named(name, 1_500);
        let settings = settings(0.5, 1);
        let outcome = served(&settings, &workload);
        assert_eq!((outcome.requests, outcome.refused), (1_500, 0), "{name}");
        let offered = 0.5 * Capacity::of(&workload, &settings).requests_per_second();
        // Half a load meets all targets.
        let good = outcome.goodput_per_second / offered;
        assert!((0.8..1.2).contains(&good), "{name}: {good:.3}");
        // Sequences run until the last conversation of the report ends, as many as in the middle.
        let running = |from: usize, to: usize| -> f64 {
            let samples =
                &outcome.samples[from * outcome.samples.len() / 10..to * outcome.samples.len() / 10];
            samples.iter().map(|sample| f64::from(sample.running)).sum::<f64>() / samples.len() as f64
        };
        let (start, middle, end) = (running(0, 2), running(4, 6), running(8, 10));
        assert!(start > 0.6 * middle && end > 0.6 * middle, "{name}: {start:.1} {middle:.1} {end:.1}");
    }
}

#[test]
fn every_request_ends_on_every_workload() {
    for name in Workload::NAMES {
        let outcome = run(name, 0.8);
        assert_eq!(outcome.finished + outcome.refused + outcome.failed, outcome.requests, "{name}");
        assert!(outcome.requests >= 500 && outcome.failed == 0, "{name}: {} requests", outcome.requests);
        assert!(outcome.samples.iter().all(|s| s.used + s.cached + s.free == 8_000), "{name}: blocks add up");
        assert!(outcome.ttft_ms.p50 <= outcome.ttft_ms.p99 && outcome.ttft_ms.p50 > 0.0, "{name}");
    }
}

#[test]
fn more_load_raises_ttft_and_throughput() {
    let (light, heavy) = (run("diverse", 0.3), run("diverse", 1.2));
    assert!(heavy.ttft_ms.p95 > 2.0 * light.ttft_ms.p95, "{:?} {:?}", heavy.ttft_ms, light.ttft_ms);
    assert!(heavy.output_per_second > 1.5 * light.output_per_second);
}

#[test]
fn samples_over_time_show_idle_times_as_idle() {
    let idle = |load| {
        let diverse = named("diverse", 60);
        let samples = served(&settings(load, 1), &diverse).samples;
        let idle = samples.iter().filter(|sample| sample.running == 0 && sample.used == 0).count();
        idle as f64 / samples.len() as f64
    };
    let (light, heavy) = (idle(0.002), idle(0.9));
    assert!((0.5..1.0).contains(&light) && heavy < 0.2, "{light} {heavy}");
}

/// Schedules first come, first served for some calls, and nothing after that.
struct Tired {
    fresh: FirstComeFirstServed,
    calls: u32,
}

impl Policy for Tired {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo { name: "tired".to_owned(), ..PolicyInfo::default() })
    }
}

impl SchedulerPolicy for Tired {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        match self.calls.checked_sub(1) {
            Some(left) => {
                self.calls = left;
                self.fresh.schedule(step)
            }
            None => Ok(Plan { wake: Micros::NEVER, ..Plan::default() }),
        }
    }
}

#[test]
fn outcome_tells_how_much_the_built_in_decided_for_a_removed_policy() {
    let diverse = named("diverse", 200);
    let run = |calls| {
        let tired = Tired { fresh: FirstComeFirstServed::default(), calls };
        let policies = Policies { scheduler: Box::new(tired), ..Policies::builtin() };
        simulate(&settings(0.5, 1), policies, &diverse, |_| {})
    };
    let well = run(u32::MAX);
    assert_eq!((well.policy_faults, well.builtin_share, &well.fault), (0, 0.0, &None));
    let (early, late) = (run(0), run(400));
    for outcome in [&early, &late] {
        let fault = outcome.fault.as_ref().expect("the watchdog removed it");
        assert_eq!((fault.kind, fault.policy.as_str(), outcome.policy_faults), ("scheduler", "tired", 1));
        assert!(fault.message.starts_with("starvation: nothing ran"), "{fault:?}");
        assert_eq!(outcome.finished, 200);
    }
    assert_eq!(early.builtin_share, 1.0);
    let share = 1.0 - 400.0 / late.steps as f64;
    assert!((late.builtin_share - share).abs() < 0.02, "{} {share}", late.builtin_share);
    assert!(late.fault.unwrap().at_s > 5.0, "it did nothing for five seconds");
}

#[test]
fn planning_ahead_hides_host_time() {
    let workload = named("diverse", 600);
    let run = |host_us, plan_ahead| {
        let mut settings = settings(0.5, 1);
        settings.host = Micros(host_us);
        settings.engine.plan_ahead = plan_ahead;
        served(&settings, &workload)
    };
    let (free, waiting, ahead) = (run(0, false), run(2_000, false), run(2_000, true));
    let gap = |outcome: &Outcome| outcome.itl_ms.p50;
    let gaps = [&free, &waiting, &ahead].map(gap);
    assert!(gaps[1] > gaps[0] + 1.8, "the device waits for the host: {gaps:?}");
    assert!(gaps[2] < gaps[0] + 0.2, "the device has the next step queued: {gaps:?}");
    assert_eq!(ahead.finished, free.finished);
}
