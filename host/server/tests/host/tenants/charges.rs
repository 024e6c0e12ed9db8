//! What tenants are charged for: whole requests, also those that end before they are over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use infer_api::admin::AdminEvent;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, Load, Policy, PolicyFault, PolicyInfo, Pressure, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::{Engine, Refusal, SequenceId};
use infer_server::config::Config;
use infer_server::engine::{Provided, SlotChange, SwapMode};
use serde_json::{Value, json};

use super::{chat, complete, done, host_with, key};
use crate::common::{Host, config, first_chunk, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_and_prompts_are_charged_all_or_nothing() {
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 100");
    let (host, _file) = host_with(&[&slow], config()).await;
    let asked = |n: u32, prompts: usize| json!({"prompt": vec![[1, 2, 3, 4]; prompts], "n": n, "max_tokens": 20, "ignore_eos": true});
    // 24 tokens each: the first leaves 76, enough for three more but not for four.
    done(&host, &slow, asked(1, 1)).await;
    for (n, prompts) in [(4, 1), (1, 4), (2, 2)] {
        let refused = complete(&host, &slow, asked(n, prompts)).await;
        assert_eq!(refused.status(), 429);
        let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((19 * 60..=20 * 60).contains(&after), "until the 20 missing tokens are refilled: {after} s");
        let body: Value = refused.json().await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("about 96 (16 prompt, 80 output) and 76 are available"), "{body}");
        assert!(message.contains("ask for at most 60 output tokens"), "{body}");
    }
    let never = complete(&host, &slow, json!({"prompt": vec![[1, 2, 3, 4]; 25], "max_tokens": 1})).await;
    assert_eq!(never.headers()["x-should-retry"], "false");
    assert_eq!(done(&host, &slow, asked(3, 1)).await["usage"]["completion_tokens"], 60);
    // Each request counts once, for any number of choices.
    let counted = [
        "infer_tenant_requests_total{tenant=\"slow\"} 2",
        "infer_tenant_requests_refused_total{tenant=\"slow\"} 4",
        "infer_tenant_prompt_tokens_total{tenant=\"slow\"} 8",
        "infer_tenant_generated_tokens_total{tenant=\"slow\"} 80",
        "infer_tenant_requests_failed_total{tenant=\"slow\"} 0",
    ];
    host.until_metrics(&counted).await;
    host.server.shutdown().await;
}

/// Admits the first sequence of a request of two, and holds the second until it refuses it.
#[derive(Default)]
struct AdmitsOne {
    info: Arc<PolicyInfo>,
    first: Option<SequenceId>,
    /// Of one sequence.
    prompt_tokens: u32,
    refuses: Arc<AtomicBool>,
    /// Refuses the second as soon as the first runs.
    soon: bool,
}

impl AdmitsOne {
    async fn takes_over(self, host: &Host) {
        let change = SlotChange::Swap(AnyPolicy::Admission(Box::new(self)), SwapMode::Now);
        host.server.engine().change(change, Provided::default(), None).await.unwrap().unwrap();
    }
}

impl Policy for AdmitsOne {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::clone(&self.info)
    }
}

impl AdmissionPolicy for AdmitsOne {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        if request.prompt_tokens == 2 * self.prompt_tokens {
            // Both together: they shall be asked about one by one.
            return Ok(Verdict::Wait);
        }
        let first = *self.first.get_or_insert(request.id);
        let (reason, message) = (RefusalReason::Other, "there is no room".to_owned());
        Ok(match self.refuses.load(Ordering::Relaxed) || (self.soon && load.running > 0) {
            _ if request.id == first => Verdict::Admit,
            true => Verdict::Refuse(Refusal { reason, message, retry_after_ms: 1_000 }),
            false => Verdict::Wait,
        })
    }

    fn measure(&mut self, _: &Load) -> Result<Pressure, PolicyFault> {
        Ok(Pressure::default())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_is_refused_after_a_choice_has_run_is_charged() {
    let host = Host::start(config()).await;
    let policy = AdmitsOne { prompt_tokens: 4, ..AdmitsOne::default() };
    let refuses = Arc::clone(&policy.refuses);
    policy.takes_over(&host).await;
    let fields = json!({"prompt": [1, 2, 3, 4], "n": 2, "max_tokens": 1_500, "ignore_eos": true});
    host.server.engine().allow_steps(20);
    let mut stream = first_chunk(host.complete(fields).await).await;
    refuses.store(true, Ordering::Relaxed);
    host.server.engine().release_steps();
    let mut rest = Vec::new();
    while let Some(chunk) = stream.next().await {
        rest.extend_from_slice(chunk.unwrap().as_ref());
    }
    let text = String::from_utf8(rest).unwrap();
    assert!(text.contains("event: error\n") && text.contains("\"code\":\"refused\""), "{text}");
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 1",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 4",
    ];
    host.until_metrics(&counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_is_refused_while_a_choice_is_prefilled_is_charged_and_reported() {
    // A thousand steps for the prompt, so that the refusal comes before the first token.
    let host = Host::start(Config { prefill_chunk: 1, ..config() }).await;
    let policy = AdmitsOne { prompt_tokens: 1_000, soon: true, ..AdmitsOne::default() };
    policy.takes_over(&host).await;
    let mut published = host.server.engine().observer().subscribe();
    let text = host.complete(json!({"prompt": vec![1; 1_000], "n": 2})).await.text().await.unwrap();
    assert!(text.contains("\"code\":\"refused\"") && !text.contains("event: token\n"), "{text}");
    let refusal = std::iter::from_fn(|| published.try_recv().ok())
        .find_map(|event| if let AdminEvent::Refusal { reason, .. } = event { Some(reason) } else { None });
    assert_eq!(refusal.as_deref(), Some("refused"));
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 1",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 1000",
        "infer_request_errors_total{code=\"refused\"} 1",
    ];
    host.until_metrics(&counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_whose_client_leaves_before_the_engine_has_taken_it_is_counted() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let look = move |_: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
    };
    let occupied = tokio::spawn({
        let engine = engine.clone();
        async move { engine.inspect(look).await.unwrap() }
    });
    inside.await.unwrap();
    let body = request(json!({"prompt": [1, 2, 3, 4]}));
    let sent = tokio::spawn(host.client.post(host.url("/v1/completions")).json(&body).send());
    while engine.live() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sent.abort();
    while engine.live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(let_go);
    occupied.await.unwrap();
    host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 0",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 0",
    ];
    host.until_metrics(&counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_without_max_tokens_are_charged_what_their_usage_says() {
    let plain = key("plain", "tokens-per-minute = 6000");
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 600");
    let (host, _file) = host_with(&[&plain, &slow], config()).await;
    let ask = async |key| {
        let messages = json!([{"role": "user", "content": "What is paged attention?"}]);
        let response = chat(&host, Some(key), json!({"messages": messages, "temperature": 0})).await;
        (response.status(), response.json::<Value>().await.unwrap())
    };
    for _ in 0..20 {
        let (status, body) = ask(&plain).await;
        assert_eq!(status, 200, "{body}");
    }
    let (mut used, mut chats) = (0, 0);
    let (status, refused) = loop {
        let (status, body) = ask(&slow).await;
        let Some(tokens) = body["usage"]["total_tokens"].as_u64() else { break (status, body) };
        used += tokens;
        chats += 1;
    };
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (429, &json!("rate_limited")));
    let each = used / chats;
    assert_eq!(chats, 600 / each, "of {each} tokens each: {refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    for part in [format!("about {each} ("), format!("{} are available", 600 - used)] {
        assert!(message.contains(&part), "{part}: {message}");
    }
    host.server.shutdown().await;
}
