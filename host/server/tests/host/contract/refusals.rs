//! Requests that are refused: the status, and the field that is named.

use serde_json::{Value, json};

use crate::common::{Host, config, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rejection_has_its_status_and_names_the_field() {
    let host = Host::start(config()).await;
    let cases = [
        (json!({"prompt": ""}), 400, "prompt"),
        (json!({"prompt": []}), 400, "prompt"),
        (json!({"prompt": null}), 400, "prompt"),
        (json!({"prompt": 7}), 400, "prompt"),
        (json!({"model": null}), 400, "model"),
        (json!({"max_tokens": "many"}), 400, "max_tokens"),
        (json!({"model": "other"}), 422, "model"),
        (json!({"temperature": -1.0}), 422, "temperature"),
        (json!({"top_p": 1.5}), 422, "top_p"),
        (json!({"max_tokens": 0}), 422, "max_tokens"),
        (json!({"n": 0}), 422, "n"),
        (json!({"logit_bias": {"999999": 1}}), 422, "logit_bias"),
        (json!({"stop_token_ids": [999_999]}), 422, "stop_token_ids"),
        (json!({"max_token": 5}), 422, "max_token"),
        (json!({"foo": "bar"}), 422, "foo"),
        (json!({"max_tokens": 1_000_000}), 422, "max_tokens"),
        (json!({"prompt": [999_999_999]}), 422, "prompt"),
        (json!({"prompt": [-1]}), 422, "prompt"),
        (json!({"prompt": vec!["x"; 1_025]}), 422, "prompt"),
        (json!({"prompt": vec![[1]; 1_025]}), 422, "prompt"),
    ];
    for (extra, status, param) in cases {
        let answer = host.complete(extra.clone()).await;
        assert_eq!(answer.status(), status, "{extra}");
        assert!(answer.headers().contains_key("x-request-id"), "{extra}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{extra}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(param), "{extra}: {body}");
        assert!(body["error"]["type"].is_string() && body["error"]["code"].is_string(), "{body}");
    }
    for raw in ["", "{", "[]", "{\"model\": \"demo\", \"model\": \"demo\"}", "{\"temperature\": NaN}", "{} x"]
    {
        let answer = host.client.post(host.url("/v1/completions")).body(raw).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{raw}");
    }
    let types = [
        ("text/plain", 415),
        ("application/json; charset=utf-8", 400),
        ("application/x-www-form-urlencoded", 400),
    ];
    for (content_type, status) in types {
        let answer = host
            .client
            .post(host.url("/v1/completions"))
            .header("content-type", content_type)
            .body("{")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{content_type}");
    }
    assert_eq!(host.client.get(host.url("/nothing")).send().await.unwrap().status(), 404);
    let wrong_method = host.client.get(host.url("/v1/completions")).send().await.unwrap();
    assert_eq!(
        (wrong_method.status().as_u16(), &wrong_method.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_too_many_values_is_valid_json_and_has_a_code_of_its_own() {
    let host = Host::start(config()).await;
    let body = json!({"model": "demo", "metadata": vec![0; 100_000]});
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/detokenize",
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(answer.status(), 422, "{path}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["type"] == "error", path == "/v1/messages", "Anthropic's form: {body}");
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!("too_many_values")),
            "{path}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains("more than 100000 values"), "{error}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_body_is_a_415_that_asks_for_a_plain_one() {
    let host = Host::start(config()).await;
    let body = request(json!({"stream": false})).to_string();
    for (coding, status) in [("gzip", 415), ("zstd, br", 415), ("identity", 200), ("Identity", 200)] {
        let post = host.client.post(host.url("/v1/completions")).header("content-encoding", coding);
        let answer = post.body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), status, "{coding}");
        if status == 415 {
            let error = &answer.json::<Value>().await.unwrap()["error"];
            assert_eq!(error["code"], "unsupported_media_type", "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("content-encoding `{coding}`")), "{message}");
            assert!(message.contains("uncompressed"), "{message}");
        }
    }
    host.server.shutdown().await;
}
