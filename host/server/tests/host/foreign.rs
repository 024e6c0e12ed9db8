//! What clients send that were made for other servers, or were given a base URL in another form.

use crate::common::{Host, config, request};
use infer_server::config::Config;
use infer_server::tenants::KeyDigest;
use serde_json::{Value, json};

/// The message of an error with this status.
async fn refused(answer: reqwest::Response, status: u16) -> String {
    let (given, body) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(given, status, "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_with_slashes_too_many_are_served_under_the_same_rules() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("k"))).unwrap();
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let get = |path: &str| host.client.get(host.url(path));
    let body = request(json!({"stream": false}));
    let chat = json!({"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]});
    for (path, body) in [("//v1/completions/", body), ("/v1//chat/completions", chat)] {
        let post = || host.client.post(host.url(path)).json(&body);
        assert_eq!(post().bearer_auth("k").send().await.unwrap().status(), 200, "{path}");
        assert_eq!(post().send().await.unwrap().status(), 401, "{path}");
        let wrong_method = get(path).bearer_auth("k").send().await.unwrap();
        assert_eq!(wrong_method.headers()["allow"], "POST", "{path}");
        assert!(refused(wrong_method, 405).await.ends_with(" accepts POST only"), "{path}");
    }
    for path in ["/v1/models/demo", "//v1/models//demo", "/v1/models/demo/"] {
        let card: Value = get(path).bearer_auth("k").send().await.unwrap().json().await.unwrap();
        assert_eq!(card["id"], "demo", "{path}");
        assert_eq!(get(path).send().await.unwrap().status(), 401, "{path}");
    }
    let wrong_method = host.client.post(host.url("/v1/models")).bearer_auth("k").send().await.unwrap();
    assert_eq!(wrong_method.headers()["allow"], "GET, HEAD");
    assert_eq!(refused(wrong_method, 405).await, "/v1/models accepts GET and HEAD only");
    assert_eq!(get("/v1/models/demo/x").bearer_auth("k").send().await.unwrap().status(), 404);
    // The label is the route's, not the client's.
    let metrics = get("//metrics/").send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_http_answers_total{path=\"/v1/completions\",status=\"200\"} 1",
        "infer_http_answers_total{path=\"/v1/completions\",status=\"405\"} 1",
        "infer_http_answers_total{path=\"/v1/chat/completions\",status=\"401\"} 1",
        "infer_http_answers_total{path=\"/v1/models/{model}\",status=\"401\"} 3",
    ] {
        assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
    }
    for path in ["/chat/completions", "/v1/responses/resp_1", "/v1/rerank"] {
        let message = refused(host.post(path, &json!({})).await, 404).await;
        assert!(message.starts_with(&format!("no such path: {path}; ")), "{message}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn max_new_tokens_limits_completions_and_chats_that_have_no_other_limit() {
    let host = Host::start(config()).await;
    for (limits, generated) in [
        (json!({"max_new_tokens": 3}), 3),
        (json!({"max_new_tokens": 3, "max_tokens": null}), 3),
        (json!({"max_new_tokens": 3, "max_tokens": 5}), 5),
    ] {
        let completion = json!({"prompt": "Hello", "stream": false});
        let chat = json!({"messages": [{"role": "user", "content": "Hello"}]});
        for (path, mut body) in [("/v1/completions", completion), ("/v1/chat/completions", chat)] {
            let common = json!({"model": "demo", "ignore_eos": true});
            for (name, value) in [&common, &limits].into_iter().flat_map(|o| o.as_object().unwrap()) {
                body[name] = value.clone();
            }
            let answer: Value = host.post(path, &body).await.json().await.unwrap();
            assert_eq!(answer["usage"]["completion_tokens"], generated, "{path}, {limits}: {answer}");
        }
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_and_texts_that_are_refused_come_with_advice() {
    let host = Host::start(config()).await;
    for (fields, part) in [
        (json!({"num_beams": 4}), "this host has no beam search"),
        (json!({"repeat_penalty": 1.1}), "use `repetition_penalty`"),
        (json!({"enable_thinking": false}), "`chat_template_kwargs`"),
        (json!({"num_ctx": 8192}), "--max-seq-len"),
    ] {
        let message = refused(host.complete(fields.clone()).await, 422).await;
        assert!(message.contains(part), "{fields}: {message}");
    }
    let fine = json!({"num_beams": 1, "stream_options": {"include_obfuscation": true}});
    assert_eq!(host.complete(fine).await.status(), 200);
    let cut = r#"{"model": "demo", "prompt": "a cut emoji: \ud83d"}"#;
    let answer = host.client.post(host.url("/v1/completions")).body(cut).send().await.unwrap();
    let message = refused(answer, 400).await;
    assert!(message.contains("half of a surrogate pair"), "{message}");
    host.server.shutdown().await;
}
