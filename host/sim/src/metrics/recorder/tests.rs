//! What recorders make of requests.

use super::super::{Attainment, Fairness};
use super::*;

const ORIGIN: Origin = Origin { tenant: 0, background: false };

#[test]
fn hit_rates_only_count_prompts_with_a_full_block() {
    use PrefixEvent::{ConversationalHit, CrossRequestHit, FullHitNoPrefillNeeded, MissFull};
    let mut recorder = Recorder::new(Slo::default(), &[]);
    for (prefix, cached, prefill) in [
        (MissFull, 0, 9),
        (FullHitNoPrefillNeeded, 9, 0),
        (FullHitNoPrefillNeeded, 9, 0),
        (MissFull, 0, 600),
        (CrossRequestHit, 320, 280),
        (ConversationalHit, 160, 40),
        (FullHitNoPrefillNeeded, 64, 0),
    ] {
        let has_block = cached + prefill >= 16;
        recorder.started(Start { origin: ORIGIN, prefix, cached, prefill, has_block });
    }
    let outcome = recorder.finish(Sample::default());
    let cache = &outcome.cache;
    let rates = [cache.hit_rate, cache.conversational_rate, cache.cross_request_rate, cache.full_rate];
    assert_eq!(rates, [0.75, 0.25, 0.25, 0.25]);
    assert_eq!(cache.events.iter().sum::<u64>(), 7);
    assert_eq!((cache.cached_tokens, cache.prefilled_tokens), ([160, 320, 0, 82, 0], [40, 280, 609, 0, 0]));
}

#[test]
fn hits_and_their_length_multiply_to_the_tokens_saved() {
    use PrefixEvent::{
        ConversationalMissUnexpectedPrompt, CrossRequestHit, FullHitNoPrefillNeeded, MissFull,
    };
    let mut recorder = Recorder::new(Slo::default(), &[]);
    for (prefix, cached, prefill, ttft_ms) in [
        (MissFull, 0, 600, 400),
        (CrossRequestHit, 320, 280, 60),
        // The prompt diverges after the instructions that it shares with others.
        (ConversationalMissUnexpectedPrompt, 80, 520, 100),
        (ConversationalMissUnexpectedPrompt, 0, 600, 200),
        // No full block: neither a hit nor a miss.
        (FullHitNoPrefillNeeded, 9, 0, 1),
    ] {
        let start = Start { origin: ORIGIN, prefix, cached, prefill, has_block: cached + prefill >= 16 };
        recorder.started(start);
        let ended =
            Ended { origin: ORIGIN, arrived: Micros(5), deadline: Micros::NEVER, is_hit: start.is_hit() };
        let first_token = Micros(5 + 1_000 * ttft_ms);
        recorder.finished(&ended, &Usage { first_token, ended: first_token, ..Usage::default() });
    }
    let cache = recorder.finish(Sample::default()).cache;
    let saved = cache.hit_rate * cache.mean_cached.unwrap() * 4.0;
    assert!((saved - 400.0).abs() < 1e-9, "{cache:?}");
    assert_eq!((cache.hit_ttft_ms, cache.miss_ttft_ms), (Some(80.0), Some(300.0)));
    assert_eq!((cache.hit_rate, cache.diverged_rate), (0.5, 0.5), "one of those that diverged hit");
}

#[test]
fn run_in_which_nothing_started_has_no_times_and_no_ratios() {
    let mut recorder = Recorder::new(Slo::default(), &[]);
    recorder.arrived(Origin { tenant: 7, ..ORIGIN }, Some(Micros(1)));
    recorder.refused(Origin { tenant: 7, ..ORIGIN }, false);
    let outcome = recorder.finish(Sample::default());
    assert_eq!((outcome.tenants[0].cached_ratio, outcome.cache.prefilled_ratio), (None, None));
    assert_eq!((outcome.itl_quantiles_ms.len(), outcome.ttft_quantiles_ms.len()), (0, 0));
    assert!(outcome.tpot_quantiles_ms.is_empty());
    let json = serde_json::to_value(&outcome).expect("JSON");
    for times in [&json["ttft_ms"], &json["itl_ms"], &json["queue_ms"], &json["tenants"][0]["ttft_ms"]] {
        assert!(times.as_object().is_some_and(|all| all.values().all(serde_json::Value::is_null)), "{times}");
    }
}

#[test]
fn service_before_the_report_makes_no_gap() {
    let gap = |before: u32| {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        let others = |tenant| Origin { tenant, background: true };
        (1..=2).for_each(|tenant| (0..2).for_each(|_| recorder.arrived(others(tenant), None)));
        (0..before).for_each(|_| recorder.token(others(1), None));
        recorder.arrived(Origin { tenant: 1, ..ORIGIN }, Some(Micros(9)));
        (0..3).for_each(|_| recorder.token(others(2), None));
        recorder.finish(Sample::default()).service_gap
    };
    assert_eq!((gap(0), gap(700)), (6.0, 6.0));
}

#[test]
fn goodput_has_its_denominators_beside_it() {
    let second = |s: u64| Micros(1 + 1_000_000 * s);
    let outcome = |arrivals: [u64; 4]| {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        arrivals.into_iter().for_each(|s| recorder.arrived(ORIGIN, Some(second(s))));
        // One in time, one too late, one that fails and one that is refused.
        for ttft_ms in [100, 5_000] {
            let ended = Ended { origin: ORIGIN, arrived: second(0), deadline: Micros::NEVER, is_hit: None };
            let first_token = second(0).plus(Micros(1_000 * ttft_ms));
            recorder.finished(&ended, &Usage { first_token, ended: first_token, ..Usage::default() });
        }
        recorder.failed(ORIGIN, true, None);
        recorder.refused(ORIGIN, false);
        recorder.outcome.seconds = 20.0;
        recorder.finish(Sample::default())
    };
    for (arrivals, offered_seconds) in [([0, 2, 3, 8], 8.0), ([7; 4], 20.0)] {
        let outcome = outcome(arrivals);
        assert_eq!((outcome.offered_seconds, outcome.goodput_share), (offered_seconds, 0.25));
        assert_eq!(outcome.goodput_per_second * outcome.offered_seconds, 1.0, "{arrivals:?}");
    }
}

#[test]
fn tenants_have_results_of_their_own() {
    let slo = Slo { ttft_ms: 50.0, itl_ms: 10.0 };
    let weight = |weight_permille| TenantTerms { weight_permille, ..TenantTerms::default() };
    let mut recorder = Recorder::new(slo, &[(TenantId(2), weight(2_000))]);
    let ms = |ms: u64| Micros(1_000 * ms);
    // Per request: tenant, time of the first token, gap between its eleven tokens, deadline.
    for (tenant, ttft_ms, gap_ms, deadline) in [
        (1, 10, 5, ms(20)),
        (1, 40, 20, ms(20)),
        (1, 90, 5, Micros::NEVER),
        (2, 30, 5, ms(60)),
        (2, 30, 7, Micros::NEVER),
    ] {
        let origin = Origin { tenant, ..ORIGIN };
        recorder.arrived(origin, Some(Micros::ZERO));
        let prefix = PrefixEvent::MissFull;
        recorder.started(Start { origin, prefix, cached: 0, prefill: 78, has_block: true });
        recorder.token(origin, None);
        (0..10).for_each(|_| recorder.token(origin, Some(ms(gap_ms))));
        let usage = Usage {
            generated_tokens: 11,
            started: ms(1),
            first_token: ms(ttft_ms),
            ended: ms(ttft_ms + 10 * gap_ms),
            ..Usage::default()
        };
        recorder.finished(&Ended { origin, arrived: Micros::ZERO, deadline, is_hit: None }, &usage);
    }
    let other = Origin { tenant: 2, ..ORIGIN };
    recorder.arrived(other, Some(ms(4_000)));
    recorder.refused(other, true);
    recorder.preempted(Some(other));
    recorder.preempted(None);
    let outcome = recorder.finish(Sample::default());
    let [one, two] = &outcome.tenants[..] else { panic!("{:?}", outcome.tenants) };
    assert_eq!((one.targets.met, one.targets.slow, one.targets.late, one.targets.unserved), (1, 1, 1, 0));
    assert_eq!((two.targets.met, two.targets.unserved), (2, 1));
    assert_eq!(outcome.targets, Attainment { met: 3, slow: 1, late: 1, unserved: 1 }, "of all");
    assert_eq!((one.goodput_per_second, two.goodput_per_second), (0.25, 0.5), "within four seconds");
    assert_eq!((one.goodput_share, two.goodput_share), (1.0 / 3.0, 2.0 / 3.0));
    assert_eq!((one.in_time, two.in_time, outcome.in_time), (Some(0.5), Some(0.5), Some(0.5)));
    assert_eq!((two.preemptions, outcome.preemptions), (1, 2));
    assert!((one.latency_ms.mean - 440.0 / 3.0).abs() < 1e-9, "{:?}", one.latency_ms);
    assert_eq!((two.latency_ms.min, two.latency_ms.mean, two.latency_ms.max), (80.0, 90.0, 100.0));
    assert_eq!((two.itl_ms.mean, two.itl_ms.max, two.queue_ms.max), (6.0, 7.0, 1.0));
    assert!((5.0..5.01).contains(&one.itl_ms.p50), "{:?}", one.itl_ms);
    assert_eq!((one.tpot_ms.min, one.tpot_ms.mean, one.tpot_ms.max), (5.0, 10.0, 20.0));
    assert_eq!((two.tpot_ms.mean, outcome.tpot_ms.mean), (6.0, 8.4));
    assert_eq!(outcome.tpot_quantiles_ms.len(), 101);
    // 78 prompt tokens and 11 of output, twice as heavy, a request; the second tenant has twice the weight.
    assert_eq!((one.service, two.service), (300.0, 100.0));
    assert_eq!(outcome.fairness.service, Some(400.0 * 400.0 / (2.0 * 100_000.0)));
    let [slow, quick] = [440.0 / 3.0, 90.0];
    let index = (slow + quick) * (slow + quick) / (2.0 * (slow * slow + quick * quick));
    let near = |value: Option<f64>| value.is_some_and(|value: f64| (value - index).abs() < 1e-12);
    assert!(near(outcome.fairness.latency), "{:?}", outcome.fairness);
    assert!(near(outcome.fairness.latency_per_token), "all have as many tokens: {:?}", outcome.fairness);
}

#[test]
fn slow_token_of_one_request_is_a_gap_and_no_time_per_token() {
    let mut recorder = Recorder::new(Slo::default(), &[]);
    for tokens in [1, 2, 5] {
        recorder.arrived(ORIGIN, Some(Micros::ZERO));
        let gap = |nth: u64| Micros(if nth == 3 { 41_000 } else { 5_000 });
        recorder.token(ORIGIN, None);
        (1..tokens).for_each(|nth| recorder.token(ORIGIN, Some(gap(nth))));
        let first_token = Micros(20_000);
        let ended = (1..tokens).fold(first_token, |at, nth| at.plus(gap(nth)));
        let usage = Usage { generated_tokens: tokens as u32, first_token, ended, ..Usage::default() };
        let whose = Ended { origin: ORIGIN, arrived: Micros::ZERO, deadline: Micros::NEVER, is_hit: None };
        recorder.finished(&whose, &usage);
    }
    let outcome = recorder.finish(Sample::default());
    assert_eq!((outcome.itl_ms.min, outcome.itl_ms.max), (5.0, 41.0));
    // 5 ms, and 56 ms for four tokens; the request with a single token has none.
    assert_eq!((outcome.tpot_ms.min, outcome.tpot_ms.mean, outcome.tpot_ms.max), (5.0, 9.5, 14.0));
    assert_eq!((outcome.finished, outcome.tenants[0].tpot_ms), (3, outcome.tpot_ms));
}

#[test]
fn fairness_takes_two_and_percentiles_have_a_bound() {
    let mut recorder = Recorder::new(Slo::default(), &[]);
    let many = u32::try_from(DETAILED).expect("a few") + 1;
    for tenant in 0..many {
        let origin = Origin { tenant, ..ORIGIN };
        recorder.arrived(origin, Some(Micros::ZERO));
        recorder.token(origin, Some(Micros(3_000)));
        recorder.token(origin, Some(Micros(5_000)));
    }
    let outcome = recorder.finish(Sample::default());
    assert_eq!(outcome.fairness.service, Some(1.0));
    assert_eq!(outcome.fairness.latency, None, "none finished");
    let itl = |tenant: u32| outcome.tenants[tenant as usize].itl_ms;
    let (first, last) = (itl(0), itl(many - 1));
    assert_eq!((first.mean, first.max), (4.0, 5.0));
    assert!((3.0..3.01).contains(&first.p50), "{first:?}");
    assert_eq!((last.mean, last.max, last.p50, last.p99), (4.0, 5.0, 0.0, 0.0));
    let mut alone = Recorder::new(Slo::default(), &[]);
    alone.arrived(ORIGIN, Some(Micros::ZERO));
    alone.token(ORIGIN, None);
    assert_eq!(alone.finish(Sample::default()).fairness, Fairness::default());
}

#[test]
fn deadlines_are_judged_only_if_there_are_any() {
    let in_time = |deadlines: &[Micros]| {
        let mut recorder = Recorder::new(Slo::default(), &[]);
        for &deadline in deadlines {
            let ended = Ended { origin: ORIGIN, arrived: Micros(1), deadline, is_hit: None };
            recorder.finished(&ended, &Usage { first_token: Micros(50), ..Usage::default() });
        }
        recorder.finish(Sample::default()).in_time
    };
    assert_eq!(in_time(&[Micros::NEVER]), None);
    assert_eq!(in_time(&[Micros::NEVER, Micros(60), Micros(40)]), Some(0.5));
}

#[test]
fn failed_requests_have_kept_their_deadline_or_not_like_others() {
    let mut recorder = Recorder::new(Slo::default(), &[]);
    for (first_token, deadline) in [(50, Micros(60)), (50, Micros(40)), (50, Micros::NEVER)] {
        let usage = Usage { first_token: Micros(first_token), ..Usage::default() };
        recorder.failed(ORIGIN, true, in_time(&usage, deadline));
    }
    let silent = Usage { first_token: Micros::NEVER, ..Usage::default() };
    recorder.failed(ORIGIN, false, in_time(&silent, Micros(60)));
    recorder.refused(ORIGIN, true);
    assert_eq!(recorder.finish(Sample::default()).in_time, Some(0.25), "one of four");
}
