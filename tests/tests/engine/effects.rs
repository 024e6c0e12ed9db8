//! The intended effect of each shipped policy, measured with the real engine and components in the simulator, so that
//! the outcome depends only on the seed. `plugins/README.md` has the figures.

use infer_core::config::{EngineConfig, Limits};
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_core::policy::{AnyPolicy, Chain, PolicyKind};
use infer_sim::workload::Limit;
use infer_sim::{Outcome, Predictions, Profile, Settings, Slo, Workload, simulate};
use infer_tests::bundled;

/// A workload, and the host that serves it.
#[derive(Clone, Copy)]
struct Run {
    workload: &'static str,
    load: f64,
    blocks: u32,
    requests: u64,
    admission: Option<&'static str>,
    device: &'static str,
    /// `max_tokens` of all requests, if not the workload's.
    max_tokens: Option<u32>,
    predictions: Predictions,
    plan_ahead: bool,
}

impl Run {
    const fn new(workload: &'static str, load: f64, blocks: u32, requests: u64) -> Self {
        let admission = Some("memory-aware");
        Self {
            workload,
            load,
            blocks,
            requests,
            admission,
            device: "h100",
            max_tokens: None,
            predictions: Predictions::Learned,
            plan_ahead: false,
        }
    }

    /// Simulates with the policy `name`, and the host's defaults in the other slots.
    fn with(&self, kind: PolicyKind, name: &str, config: &str) -> Outcome {
        self.with_policy(bundled(kind, name, config))
    }

    fn with_policy(&self, policy: AnyPolicy) -> Outcome {
        let name = policy.info().name.clone();
        let mut policies = Policies::builtin();
        put(&mut policies, bundled(PolicyKind::Scheduler, "continuous", "{}"));
        put(&mut policies, bundled(PolicyKind::PrefixCache, "lru", "{}"));
        if let Some(admission) = self.admission {
            put(&mut policies, bundled(PolicyKind::Admission, admission, "{}"));
        }
        put(&mut policies, policy);
        let limits = Limits { max_running: 64, max_prefill_sequences: 64, ..EngineConfig::default().limits };
        let Self { blocks: total_blocks, plan_ahead, .. } = *self;
        let max_seq_len = 8_192;
        let engine = EngineConfig {
            limits,
            total_blocks,
            max_seq_len,
            plan_ahead,
            // How long a policy's calls take depends on the machine.
            policy_step_budget: Micros::NEVER,
            ..EngineConfig::default()
        };
        let profile = Profile::named(self.device, "8b").expect("a known profile");
        let (host, slo) = (Micros::ZERO, Slo::default());
        let (load, predictions, tenants) = (self.load, self.predictions, Vec::new());
        let settings = Settings { engine, profile, host, load, seed: 1, slo, tenants, predictions };
        let mut workload = Workload::named(self.workload, self.requests).expect("a known workload");
        if let Some(limit) = self.max_tokens {
            workload.streams.iter_mut().for_each(|stream| stream.limit = Limit::Fixed(limit));
        }
        let outcome = simulate(&settings, policies, &workload, |_| {});
        assert_eq!(outcome.policy_faults, 0, "{name}");
        assert_eq!(outcome.finished + outcome.refused, outcome.requests, "{name}");
        outcome
    }

    fn scheduler(&self, name: &str) -> Outcome {
        self.with(PolicyKind::Scheduler, name, "{}")
    }

    fn prefix_cache(&self, name: &str) -> Outcome {
        self.with(PolicyKind::PrefixCache, name, "{}")
    }

    /// With the list `tenant-cap,memory-aware` for admission; `config` is the first one's.
    fn capped(&self, config: &str) -> Outcome {
        let members = [("tenant-cap", config), ("memory-aware", "{}")].map(|(name, config)| {
            let AnyPolicy::Admission(policy) = bundled(PolicyKind::Admission, name, config) else {
                unreachable!("an admission policy was asked for")
            };
            policy
        });
        let list = Chain::new(members.into()).expect("two policies with different names");
        self.with_policy(AnyPolicy::Admission(Box::new(list)))
    }
}

fn put(slots: &mut Policies, policy: AnyPolicy) {
    match policy {
        AnyPolicy::Scheduler(policy) => slots.scheduler = policy,
        AnyPolicy::Admission(policy) => slots.admission = policy,
        AnyPolicy::PrefixCache(policy) => slots.prefix_cache = policy,
    }
}

fn tenant(outcome: &Outcome, tenant: u32) -> &infer_sim::metrics::TenantOutcome {
    outcome.tenants.iter().find(|t| t.tenant == tenant).expect("the tenant sent requests")
}

#[test]
fn srpt_lowers_mean_latency_where_lengths_differ() {
    let run = Run::new("heavy-tail", 1.2, 20_000, 800);
    let (srpt, continuous) = (run.scheduler("srpt"), run.scheduler("continuous"));
    assert!(srpt.latency_ms.mean < 0.95 * continuous.latency_ms.mean, "{:?}", srpt.latency_ms);
    assert!(srpt.ttft_ms.p50 < 0.5 * continuous.ttft_ms.p50, "{:?}", srpt.ttft_ms);
}

#[test]
fn predicted_lengths_lower_the_mean_latency_of_srpt() {
    let run = Run::new("open-ended", 1.2, 20_000, 800);
    let mean = |predictions| Run { predictions, ..run }.scheduler("srpt").latency_ms.mean;
    let [learned, erring, exact] =
        [Predictions::Learned, Predictions::Erring(0.5), Predictions::Exact].map(mean);
    assert!(exact < 0.95 * learned, "{exact} ms with, {learned} ms without");
    assert!(erring < learned, "{erring} ms with, {learned} ms without");
}

#[test]
fn mlfq_lowers_mean_latency_where_nobody_knows_lengths() {
    let run = Run::new("open-ended", 1.5, 20_000, 1_000);
    let [mlfq, srpt, continuous] = ["mlfq", "srpt", "continuous"].map(|name| run.scheduler(name));
    assert!(mlfq.latency_ms.mean < 0.8 * continuous.latency_ms.mean, "{:?}", mlfq.latency_ms);
    assert!(mlfq.latency_ms.mean < 0.85 * srpt.latency_ms.mean, "{:?}", srpt.latency_ms);
    assert!(mlfq.ttft_ms.p99 < 0.1 * continuous.ttft_ms.p99, "{:?}", mlfq.ttft_ms);
}

/// A host that plans ahead drops plans that preempt, so not all that the policy decides happens.
#[test]
fn mlfq_starves_no_sequence_on_a_host_that_plans_ahead() {
    let run = Run { plan_ahead: true, ..Run::new("open-ended", 2.0, 20_000, 1_500) };
    assert!(run.scheduler("mlfq").preemptions > 100, "that none is a fault is checked by every run");
}

#[test]
fn step_target_bounds_inter_token_latency() {
    let run = Run::new("heavy-tail", 1.0, 20_000, 800);
    let target = run.with(PolicyKind::Scheduler, "continuous", r#"{"step_target_ms": 10}"#);
    let free = run.scheduler("continuous");
    // The policy fits one line to step times, which are no line of the tokens: it is slightly off.
    assert!(target.itl_ms.p99 < 0.95 * free.itl_ms.p99, "{:?} {:?}", target.itl_ms, free.itl_ms);
    assert!(target.itl_ms.max < 0.7 * free.itl_ms.max, "{:?} {:?}", target.itl_ms, free.itl_ms);
}

#[test]
fn cache_aware_lowers_ttft_for_competing_prefixes_without_a_cold_tail() {
    // A scheduler can't order what admission defers, so the built-in admits whatever fits.
    let run = Run { admission: None, ..Run::new("few-shot", 1.0, 3_200, 1_000) };
    let (aware, continuous) = (run.scheduler("cache-aware"), run.scheduler("continuous"));
    assert!(
        aware.ttft_ms.mean < 0.9 * continuous.ttft_ms.mean,
        "{:?} {:?}",
        aware.ttft_ms,
        continuous.ttft_ms
    );
    assert!(aware.ttft_ms.p99 < continuous.ttft_ms.p99, "{:?} {:?}", aware.ttft_ms, continuous.ttft_ms);
    let prefilled = |outcome: &Outcome| outcome.cache.prefilled_ratio.expect("requests started");
    assert!(prefilled(&aware) < 0.8 * prefilled(&continuous));
}

#[test]
fn fair_protects_a_quiet_tenant_from_a_flood() {
    for blocks in [6_000, 20_000] {
        let run = Run::new("tenants", 1.0, blocks, 800);
        let (fair, continuous) = (run.scheduler("fair"), run.scheduler("continuous"));
        let quiet = |outcome: &Outcome| tenant(outcome, 2).ttft_ms.mean;
        assert!(quiet(&fair) < 0.25 * quiet(&continuous), "{} {}", quiet(&fair), quiet(&continuous));
        assert_eq!(
            tenant(&fair, 1).finished,
            tenant(&continuous, 1).finished,
            "no request is refused for it"
        );
        // VTC's bound: twice the larger of the longest prompt and the outputs of 64 running sequences, where an
        // output token counts 2.
        assert!(fair.service_gap < 2.0 * 2.0 * 64.0 * 800.0, "{}", fair.service_gap);
        assert!(
            fair.service_gap < 0.1 * continuous.service_gap,
            "{} {}",
            fair.service_gap,
            continuous.service_gap
        );
    }
}

#[test]
fn tenant_cap_leaves_slots_to_a_quiet_tenant_beside_a_flood() {
    let run = Run::new("tenants", 1.0, 20_000, 800);
    let capped = run.capped("{}");
    let all = run.with(PolicyKind::Admission, "memory-aware", "{}");
    let quiet = |outcome: &Outcome| tenant(outcome, 2).ttft_ms.mean;
    assert!(quiet(&capped) < 0.1 * quiet(&all), "{} {}", quiet(&capped), quiet(&all));
    assert_eq!(tenant(&capped, 1).finished, tenant(&all, 1).finished, "the flood waits, and is served");
}

#[test]
fn tenant_cap_lends_what_a_low_limit_leaves_idle_and_still_protects_the_quiet_tenant() {
    let run = Run::new("tenants", 1.0, 20_000, 800);
    let kept = run.capped(r#"{"max_in_flight": 12}"#);
    let lent = run.capped(r#"{"max_in_flight": 12, "lend_below": 60}"#);
    let all = run.with(PolicyKind::Admission, "memory-aware", "{}");
    let ttft = |outcome: &Outcome, which| tenant(outcome, which).ttft_ms.mean;
    assert!(ttft(&lent, 1) < 0.7 * ttft(&kept, 1), "{} {}", ttft(&lent, 1), ttft(&kept, 1));
    assert!(ttft(&lent, 2) < 0.1 * ttft(&all, 2), "{} {}", ttft(&lent, 2), ttft(&all, 2));
    assert_eq!(tenant(&lent, 1).finished, tenant(&all, 1).finished, "nothing is refused for it");
}

#[test]
fn admission_by_expected_outputs_fills_the_device_and_seldom_preempts() {
    let pool = Profile::named("l4", "8b").expect("a known profile").blocks(16);
    for (blocks, max_tokens) in [(pool, None), (pool, Some(2_500)), (600, None), (600, Some(2_500))] {
        let run = Run { device: "l4", max_tokens, ..Run::new("diverse", 0.8, blocks, 1_000) };
        let by = |outputs| {
            let config = format!(r#"{{"outputs": "{outputs}"}}"#);
            run.with(PolicyKind::Admission, "memory-aware", &config)
        };
        let [expected, longest] = [by("expected"), by("longest")];
        let [fast, slow] = [&expected, &longest].map(|outcome| outcome.output_per_second);
        assert!(fast > 1.3 * slow, "{blocks} blocks, {max_tokens:?}: {fast} and {slow} tokens a second");
        let often = expected.requests / 20;
        assert!(expected.preemptions < often, "{blocks} blocks: {} preemptions", expected.preemptions);
        assert_eq!(longest.preemptions, 0, "{blocks} blocks");
    }
}

#[test]
fn priority_serves_urgent_requests_at_once_without_starving_others() {
    let run = Run::new("urgent", 1.2, 20_000, 800);
    let (priority, continuous) = (run.scheduler("priority"), run.scheduler("continuous"));
    let ttft = |outcome: &Outcome, which| tenant(outcome, which).ttft_ms.mean;
    assert!(ttft(&priority, 2) < 0.1 * ttft(&continuous, 2), "{}", ttft(&priority, 2));
    assert!(ttft(&priority, 1) < 1.5 * ttft(&continuous, 1), "{}", ttft(&priority, 1));
    assert_eq!(priority.finished, priority.requests);
}

#[test]
fn deadline_meets_more_deadlines_under_overload() {
    let run = Run::new("bursty", 1.0, 20_000, 2_000);
    let (deadline, continuous) = (run.scheduler("deadline"), run.scheduler("continuous"));
    let [deadline, continuous] = [deadline, continuous].map(|outcome| outcome.in_time.expect("all have one"));
    assert!(deadline > continuous + 0.05, "{deadline} {continuous}");
}

#[test]
fn slo_refuses_late_requests_and_keeps_the_rest_in_time() {
    let run = Run::new("bursty", 1.2, 20_000, 2_000);
    let slo = run.with(PolicyKind::Admission, "slo", "{}");
    let all = run.with(PolicyKind::Admission, "memory-aware", "{}");
    assert!(slo.refused > 0 && slo.in_time > all.in_time, "{:?} {:?}", slo.in_time, all.in_time);
    assert!(slo.ttft_ms.p99 < 2_000.0, "admitted requests are served in time: {:?}", slo.ttft_ms);
}

#[test]
fn session_keeps_conversations_warm_through_a_flood() {
    let run = Run::new("flood", 0.8, 4_000, 1_000);
    let (session, lru) = (run.prefix_cache("session"), run.prefix_cache("lru"));
    assert!(session.cache.conversational_rate > 2.0 * lru.cache.conversational_rate, "{:?}", session.cache);
    assert!(session.ttft_ms.mean < lru.ttft_ms.mean);
}

#[test]
fn tenant_keeps_its_prefixes_next_to_one_that_never_reuses_any() {
    let run = Run::new("neighbours", 0.8, 4_500, 1_000);
    let cached = |name| tenant(&run.prefix_cache(name), 2).cached_ratio.expect("requests started");
    let lru = cached("lru");
    for name in ["tenant-quota", "s3-fifo", "cost-aware"] {
        assert!(cached(name) > lru + 0.05, "{name}: {} against {lru}", cached(name));
    }
}
