//! `/v1/embeddings`: forms of inputs and vectors, errors, and what a request shares with others.

use std::slice;

use crate::common::{self, Host, config, token_ids};
use infer_model::DType;
use infer_server::config::{Config, MaxSeqLen, PoolingChoice};
use reqwest::Method;
use serde_json::{Value, json};

const TEXTS: [&str; 3] = ["What is a prefix cache?", "What is a block table?", "Hello"];

fn embedding() -> Config {
    Config { pooling: PoolingChoice::Last, ..config() }
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "demo"});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn ask(host: &Host, extra: Value) -> Value {
    let answer = host.post("/v1/embeddings", &body(extra)).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The status and the error of a request that is refused.
async fn refused(host: &Host, extra: Value) -> (u16, Value) {
    let answer = host.post("/v1/embeddings", &body(extra)).await;
    let status = answer.status().as_u16();
    (status, answer.json::<Value>().await.unwrap()["error"].take())
}

/// Bits of each vector, in the order of the inputs.
fn vectors(body: &Value) -> Vec<Vec<u32>> {
    let bits = |number: &Value| (number.as_f64().unwrap() as f32).to_bits();
    let data = body["data"].as_array().unwrap().iter().enumerate();
    data.map(|(at, one)| {
        assert_eq!((&one["object"], &one["index"]), (&json!("embedding"), &json!(at)));
        one["embedding"].as_array().unwrap().iter().map(bits).collect()
    })
    .collect()
}

fn floats(vector: &[u32]) -> Vec<f32> {
    vector.iter().map(|bits| f32::from_bits(*bits)).collect()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// Bits of a vector that is written in base64.
fn decoded(text: &str) -> Vec<u32> {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=').chars().map(|c| ALPHABET.find(c).expect("a digit") as u32);
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        (held, bits) = ((held << 6) | digit, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    assert!(bytes.len().is_multiple_of(4), "{} bytes", bytes.len());
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect()
}

async fn ids(host: &Host, text: &str) -> Value {
    let mut tokens: Value = host.post("/tokenize", &json!({"prompt": text})).await.json().await.unwrap();
    tokens["tokens"].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_form_of_input_and_vector_gives_the_same_numbers() {
    let host = Host::start(embedding()).await;
    let all = ask(&host, json!({"input": TEXTS})).await;
    assert_eq!((&all["object"], &all["model"]), (&json!("list"), &json!("demo")));
    let wanted = vectors(&all);
    assert!(wanted[0] != wanted[1] && wanted[1] != wanted[2]);
    let mut lists = Vec::new();
    for (text, wanted) in TEXTS.iter().zip(&wanted) {
        assert!((length(&floats(wanted)) - 1.0).abs() < 1e-6, "{text}: {}", length(&floats(wanted)));
        // The batch doesn't show, nor does what is cached by now.
        let alone = ask(&host, json!({"input": text})).await;
        assert_eq!(vectors(&alone), slice::from_ref(wanted), "{text}");
        let ids = ids(&host, text).await;
        let count = ids.as_array().unwrap().len();
        let usage = json!({"prompt_tokens": count, "total_tokens": count});
        assert_eq!(alone["usage"], usage, "{text}");
        let of_ids = vectors(&ask(&host, json!({"input": ids})).await);
        assert_eq!(of_ids, slice::from_ref(wanted), "{text}");
        lists.push(ids);
    }
    let by_ids = ask(&host, json!({"input": lists, "encoding_format": "float"})).await;
    assert_eq!(vectors(&by_ids), wanted);
    assert_eq!(by_ids["usage"], all["usage"]);
    let count: usize = lists.iter().map(|ids| ids.as_array().unwrap().len()).sum();
    assert_eq!(all["usage"]["prompt_tokens"], count);

    let packed = ask(&host, json!({"input": TEXTS, "encoding_format": "base64"})).await;
    let packed = packed["data"].as_array().unwrap();
    let packed: Vec<Vec<u32>> =
        packed.iter().map(|one| decoded(one["embedding"].as_str().unwrap())).collect();
    assert_eq!(packed, wanted);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_dimensions_are_the_first_ones_scaled_again() {
    let host = Host::start(embedding()).await;
    let card: Value =
        host.client.get(host.url("/v1/models/demo")).send().await.unwrap().json().await.unwrap();
    let all = card["embedding_dimensions"].as_u64().unwrap() as usize;
    let whole = floats(&vectors(&ask(&host, json!({"input": TEXTS[0]})).await)[0]);
    assert_eq!(whole.len(), all);
    for dimensions in [1, 7, all] {
        let fewer = ask(&host, json!({"input": TEXTS[0], "dimensions": dimensions})).await;
        let fewer = floats(&vectors(&fewer)[0]);
        assert_eq!(fewer.len(), dimensions);
        let scale = length(&whole[..dimensions]);
        for (got, of_whole) in fewer.iter().zip(&whole) {
            assert!((f64::from(*got) - f64::from(*of_whole) / scale).abs() < 1e-6, "{dimensions}");
        }
    }
    for (dimensions, status) in [(json!(0), 422), (json!(all + 1), 422), (json!("all"), 400)] {
        let (got, error) = refused(&host, json!({"input": "x", "dimensions": dimensions})).await;
        assert_eq!((got, &error["param"]), (status, &json!("dimensions")), "{error}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rejection_has_its_status_and_names_the_field_and_the_input() {
    let limits = Config { max_seq_len: MaxSeqLen::Tokens(32), max_waiting_requests: 8, ..embedding() };
    let host = Host::start(limits).await;
    let long = "long ".repeat(100);
    let very_long = "long ".repeat(10_000);
    for (extra, status, param, code, said) in [
        (json!({}), 400, "input", "missing_field", "input: missing"),
        (json!({"input": null}), 400, "input", "missing_field", "input: missing"),
        (json!({"input": ""}), 400, "input", "empty_prompt", "must not be empty"),
        (json!({"input": []}), 400, "input", "empty_prompt", "must not be empty"),
        (json!({"input": ["a", ""]}), 400, "input", "empty_prompt", "the input at index 1 is empty"),
        (json!({"input": [[1], []]}), 400, "input", "empty_prompt", "the input at index 1 is empty"),
        (json!({"input": 7}), 400, "input", "wrong_type", "input: expected text"),
        (json!({"input": ["a", 1]}), 400, "input", "wrong_type", "input: expected text"),
        (json!({"input": [-1]}), 422, "input", "invalid_value", "-1 at index 0 is not a token"),
        (
            json!({"input": [[1], [2, 999_999]]}),
            422,
            "input",
            "invalid_value",
            "999999 at index 1 of the input at index 1 is not a token of this model",
        ),
        (json!({"input": vec![1; 33]}), 422, "input", "context_length_exceeded", "the input of 33 tokens"),
        (
            json!({"input": ["a", long, "b"]}),
            422,
            "input",
            "context_length_exceeded",
            "the input at index 1 of ",
        ),
        (
            json!({"input": ["a", "b", very_long]}),
            422,
            "input",
            "context_length_exceeded",
            "the input at index 2 of more than 32 tokens exceeds the context window",
        ),
        (
            json!({"input": vec!["a"; 9]}),
            422,
            "input",
            "invalid_value",
            "9 inputs; a request may have at most 8",
        ),
        (
            json!({"input": vec!["a"; 1_025]}),
            422,
            "input",
            "invalid_value",
            "more than 1024 inputs; a request may have at most 8",
        ),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            422,
            "encoding_format",
            "not_supported",
            "float, base64",
        ),
        (json!({"input": "a", "encoding_format": 1}), 400, "encoding_format", "wrong_type", "a string"),
        (json!({"input": "a", "model": "other"}), 422, "model", "model_not_found", "this host serves `demo`"),
        (json!({"input": "a", "prompt": "a"}), 422, "prompt", "unknown_field", "unknown field"),
        (json!({"input": "a", "dimension": 3}), 422, "dimension", "unknown_field", "`dimensions`?"),
        (json!({"input": "a", "temperature": 1}), 422, "temperature", "unknown_field", "unknown field"),
        (
            json!({"input": "a", "truncate_prompt_tokens": 3}),
            422,
            "truncate_prompt_tokens",
            "not_supported",
            "only null",
        ),
    ] {
        let (got, error) = refused(&host, extra.clone()).await;
        let shown: String = extra.to_string().chars().take(80).collect();
        assert_eq!(
            (got, &error["param"], &error["code"]),
            (status, &json!(param), &json!(code)),
            "{shown}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(said), "{shown}: {error}");
    }
    // What clients and routers add without meaning anything by it.
    let fields = json!({"input": "a", "user": "u", "truncate_prompt_tokens": null, "encoding_format": null,
        "dimensions": null, "priority": 1, "metadata": {"run": "1"}});
    assert_eq!(vectors(&ask(&host, fields).await), vectors(&ask(&host, json!({"input": "a"})).await));
    // An input may fill the context: nothing follows it.
    assert_eq!(vectors(&ask(&host, json!({"input": vec![7; 32]})).await).len(), 1);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_that_embeds_by_no_word_of_its_checkpoint_names_the_flag() {
    let host = Host::start(config()).await;
    let (status, error) = refused(&host, json!({"input": "a"})).await;
    assert_eq!((status, &error["code"]), (400, &json!("no_embeddings")), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("`demo` makes no embeddings: "), "{message}");
    assert!(message.contains("modules.json") && message.contains("--pooling last"), "{message}");
    let card: Value =
        host.client.get(host.url("/v1/models/demo")).send().await.unwrap().json().await.unwrap();
    assert!(card.get("embedding_dimensions").is_none(), "{card}");
    assert_eq!(token_ids(&host.events(json!({})).await).len(), 8, "it still generates text");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_prefixes_and_running_streams_change_no_vector() {
    let host = Host::start(Config { prefill_chunk: 16, ..embedding() }).await;
    let long = "What is a prefix cache? ".repeat(12);
    let first = ask(&host, json!({"input": long})).await;
    let cached = async || {
        let state = host.admin_get("/admin/state").await;
        state["counters"]["prefix_hits"].as_u64().expect("a count")
    };
    assert_eq!(cached().await, 0);
    // The same with most of it cached, beside a stream, and with a salt of its own.
    let stream = host.complete(json!({"ignore_eos": true, "max_tokens": 200})).await;
    let second = ask(&host, json!({"input": long})).await;
    let hits = cached().await;
    let tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(hits > 0 && hits < tokens, "{hits} of {tokens}");
    let salted = ask(&host, json!({"input": long, "cache_salt": "other"})).await;
    assert_eq!(cached().await, hits, "another salt shares nothing");
    assert_eq!(vectors(&second), vectors(&first));
    assert_eq!(vectors(&salted), vectors(&first));
    // What was computed for vectors serves completions, and the other way round.
    let fields = json!({"prompt": long, "max_tokens": 4});
    assert_eq!(token_ids(&host.events(fields.clone()).await), token_ids(&host.events(fields).await));
    assert!(cached().await > hits);
    assert_eq!(vectors(&ask(&host, json!({"input": long})).await), vectors(&first));
    drop(common::events(stream).await);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_leaves_and_operator_that_cancels_end_all_inputs() {
    let host = Host::start(embedding()).await;
    host.server.engine().hold_steps();
    let post = |id: &str| {
        let body = body(json!({"input": TEXTS, "user": "u"}));
        host.client.post(host.url("/v1/embeddings")).header("x-request-id", id).json(&body).send()
    };
    let left = tokio::spawn(post("left"));
    let state = host.until("all wait", |state| state["queue"]["waiting"] == 3).await;
    let row = &state["requests"][0];
    assert_eq!((&row["max_tokens"], &row["user"]), (&json!(1), &json!("u")), "{row}");
    left.abort();
    host.until("all are gone", |state| state["counters"]["finished"]["cancelled"] == 3).await;

    let cancelled = tokio::spawn(post("cancelled"));
    host.until("all wait", |state| state["queue"]["waiting"] == 3).await;
    let ended = host.admin(Method::DELETE, "/admin/requests/cancelled").send().await.unwrap();
    assert_eq!(ended.status(), 200);
    let answer = cancelled.await.unwrap().unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-should-retry"]),
        (503, &"false".parse().unwrap())
    );
    assert!(!answer.headers().contains_key("retry-after"), "{:?}", answer.headers());
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "cancelled");
    host.server.engine().release_steps();
    ask(&host, json!({"input": "a"})).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_vectors_as_requests_without_tokens() {
    let host = Host::start(embedding()).await;
    ask(&host, json!({"input": TEXTS})).await;
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_http_answers_total{path=\"/v1/embeddings\",status=\"200\"} 1",
        "infer_requests_submitted_total 3",
        "infer_requests_finished_total{reason=\"stop\"} 3",
        "infer_generated_tokens_total 0",
        "infer_time_to_first_token_seconds_count 3",
        "vllm:request_success_total{model_name=\"demo\",finished_reason=\"stop\"} 3",
    ] {
        assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_hold_vectors_as_requests_without_output() {
    let host = Host::start(embedding()).await;
    let start = host.admin(Method::POST, "/admin/trace/start?decisions=on").send().await.unwrap();
    assert_eq!(start.status(), 200);
    let reading = tokio::spawn(start.text());
    ask(&host, json!({"input": TEXTS})).await;
    host.events(json!({})).await;
    host.admin(Method::POST, "/admin/trace/stop").send().await.unwrap();
    let text = reading.await.unwrap().unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter_map(|line| line.get(kind).cloned()).collect::<Vec<_>>();
    let requests: Vec<Value> = of("request").iter().map(|request| request["max"].clone()).collect();
    assert_eq!(requests, [1, 1, 1, 8]);
    let embed: Vec<bool> = of("request").iter().map(|request| request["embed"] == true).collect();
    assert_eq!(embed, [true, true, true, false]);
    let ends: Vec<(Value, Value)> =
        of("end").iter().map(|end| (end["reason"].clone(), end["output"].clone())).collect();
    assert_eq!(ends[..3], vec![(json!("stop"), json!(0)); 3]);
    assert_eq!(ends[3].1, 8);
    let drawn: u64 = of("step")
        .iter()
        .flat_map(|step| step["drew"].as_array().cloned().unwrap())
        .map(|drew| drew.as_u64().unwrap())
        .sum();
    assert_eq!(drawn, 8, "steps of vectors draw nothing");
    host.server.shutdown().await;
}

/// A checkpoint in Qwen3-Embedding's layout, which says itself that it embeds and how.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_that_embeds_gives_the_vectors_of_the_reference() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/qwen3-embedding-bf16");
    let golden = std::fs::read_to_string(format!("{folder}/embeddings.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    let host = Host::start(Config { model: folder.to_owned(), dtype: Some(DType::F32), ..config() }).await;
    let texts: Vec<&Value> = prompts.iter().map(|prompt| &prompt["text"]).collect();
    let got = ask(&host, json!({"model": folder, "input": texts})).await;
    for (got, prompt) in vectors(&got).iter().zip(prompts) {
        let wanted = prompt["vector"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
        let error = floats(got).iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>();
        assert!(error.sqrt() < 1e-4, "{}: off by {:.1e}", prompt["text"], error.sqrt());
    }
    let counted: usize = prompts.iter().map(|prompt| prompt["ids"].as_array().unwrap().len()).sum();
    assert_eq!(got["usage"]["prompt_tokens"], counted, "each ends with the end token");
    // Without it, the last token is another one.
    let other = ask(&host, json!({"model": folder, "input": texts, "add_special_tokens": false})).await;
    assert_eq!(other["usage"]["prompt_tokens"], counted - prompts.len());
    assert!(vectors(&other).iter().zip(&vectors(&got)).all(|(a, b)| a != b));
    host.server.shutdown().await;
}
