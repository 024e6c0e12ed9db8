//! What web pages of other origins may do (CORS), as browsers ask for it.

use crate::common::{Host, config, request};
use infer_server::config::Config;
use infer_server::http::AllowedOrigins;
use infer_server::tenants::KeyDigest;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;

const PAGE: &str = "http://localhost:3000";
const ALLOWED: &str = "https://app.example.org, http://localhost:3000";

async fn host(origins: &str) -> Host {
    let allowed_origins = Some(AllowedOrigins::parse(origins).unwrap());
    Host::start(Config { allowed_origins, ..config() }).await
}

/// The preflight that a browser sends before a page posts JSON with a key.
fn preflight(host: &Host, path: &str, origin: &str) -> RequestBuilder {
    host.client
        .request(Method::OPTIONS, host.url(path))
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os")
}

fn header<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    answer.headers().get(name).map(|value| value.to_str().unwrap())
}

fn allowed(answer: &Response) -> Option<&str> {
    header(answer, "access-control-allow-origin")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preflight_needs_no_key_and_allows_the_headers_of_clients() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("k"))).unwrap();
    let allowed_origins = Some(AllowedOrigins::parse(ALLOWED).unwrap());
    let host =
        Host::start(Config { allowed_origins, api_keys: Some(file.path().to_owned()), ..config() }).await;
    for (path, method) in
        [("/v1/chat/completions", "POST"), ("/v1/models", "GET"), ("/v1/models/demo", "GET")]
    {
        let answer = preflight(&host, path, PAGE).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), allowed(&answer)), (204, Some(PAGE)), "{path}");
        assert_eq!(header(&answer, "access-control-allow-methods"), Some(method), "{path}");
        assert_eq!(
            header(&answer, "access-control-allow-headers"),
            Some("authorization,content-type,x-stainless-os")
        );
        assert_eq!(header(&answer, "access-control-max-age"), Some("600"));
        assert!(answer.headers().contains_key("x-request-id"));
        assert_eq!(answer.text().await.unwrap(), "");
    }
    // The page can read why the request after a preflight fails.
    let answer = host.client.get(host.url("/v1/models")).header("origin", PAGE).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), allowed(&answer)), (401, Some(PAGE)));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allowed_page_reads_bodies_streams_errors_and_request_ids() {
    let host = host(ALLOWED).await;
    let post = |path: &str, body| host.client.post(host.url(path)).json(&body);
    let get = |path: &str| host.client.get(host.url(path));
    let cases = [
        (get("/v1/models"), 200),
        (get("/metrics"), 200),
        (post("/v1/completions", request(json!({"stream": false}))), 200),
        (post("/v1/completions", request(json!({}))), 200),
        (post("/v1/completions", request(json!({"temperature": -1}))), 422),
        (get("/v1/completions"), 405),
        (get("/nothing"), 404),
    ];
    for (asked, status) in cases {
        let name = format!("{asked:?}");
        let answer = asked.header("origin", PAGE).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), allowed(&answer)), (status, Some(PAGE)), "{name}");
        let exposed = header(&answer, "access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-request-id") && exposed.contains("retry-after"), "{name}: {exposed}");
        assert_eq!(header(&answer, "vary"), Some("origin"), "{name}");
        assert!(!answer.headers().contains_key("access-control-allow-credentials"));
        let text = answer.text().await.unwrap();
        assert!(!text.is_empty(), "{name}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_pages_get_no_permission() {
    let host = host(ALLOWED).await;
    for origin in ["http://localhost:3001", "https://localhost:3000", "https://evil.example.org", "null"] {
        let answer = preflight(&host, "/v1/completions", origin).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), allowed(&answer)), (403, None), "{origin}");
        let error: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(error["error"]["code"], "origin_not_allowed", "{error}");
        // Browsers send this without a preflight.
        let blind = host.client.post(host.url("/v1/completions")).body(request(json!({})).to_string());
        let answer = blind.header("origin", origin).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), allowed(&answer)), (403, None), "{origin}");
        assert_eq!(header(&answer, "vary"), Some("origin"));
        let answer = host.client.get(host.url("/health")).header("origin", origin).send().await.unwrap();
        assert_eq!(answer.status(), 200, "open paths stay open");
    }
    // Pages of the host itself, and programs.
    let own = host.url("");
    for origin in [Some(own.as_str()), None] {
        let mut asked = host.client.get(host.url("/v1/models"));
        if let Some(origin) = origin {
            asked = asked.header("origin", origin);
        }
        assert_eq!(asked.send().await.unwrap().status(), 200, "{origin:?}");
    }
    // A cache must not give this response to a page either.
    let answer = host.client.get(host.url("/v1/models")).send().await.unwrap();
    assert_eq!((allowed(&answer), header(&answer, "vary")), (None, Some("origin")));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asterisk_allows_every_page_but_not_on_the_admin_plane() {
    let host = host("*").await;
    for origin in [PAGE, "null"] {
        let answer = preflight(&host, "/v1/completions", origin).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), allowed(&answer)), (204, Some("*")), "{origin}");
        let answer = host.client.get(host.url("/v1/models")).header("origin", origin).send().await.unwrap();
        assert_eq!((allowed(&answer), header(&answer, "vary")), (Some("*"), None), "{origin}");
    }
    let answer = host.admin(Method::GET, "/admin/state").header("origin", PAGE).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), allowed(&answer)), (200, None));
    let url = format!("http://{}/admin/state", host.server.admin_addr);
    let asked = host.client.request(Method::OPTIONS, url).header("origin", PAGE);
    let answer = asked.header("access-control-request-method", "GET").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), allowed(&answer)), (401, None));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_page_is_allowed_by_default() {
    let host = Host::start(config()).await;
    let answer = preflight(&host, "/v1/completions", PAGE).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), allowed(&answer)), (405, None));
    let answer = host.client.get(host.url("/v1/models")).header("origin", PAGE).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), allowed(&answer), header(&answer, "vary")), (200, None, None));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_give_a_local_host_a_name_of_theirs_are_refused() {
    let ask = |host: &Host, name: &str, origin: &str| {
        let url = host.url("/v1/completions");
        let ask = host.client.post(url).header("host", name).header("origin", origin);
        ask.json(&request(json!({"stream": false}))).send()
    };
    let host = Host::start(config()).await;
    let answer = ask(&host, "evil.example:8000", "http://evil.example:8000").await.unwrap();
    assert_eq!(answer.status(), 403);
    let error: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(error["error"]["code"], "origin_not_allowed");
    assert!(error["error"]["message"].as_str().unwrap().contains("http://evil.example:8000"), "{error}");
    // Pages of this machine, and pages of others, which may not read the response.
    for (name, origin) in [
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:3000"),
    ] {
        assert_eq!(ask(&host, name, origin).await.unwrap().status(), 200, "{origin}");
    }
    host.server.shutdown().await;
    // Behind a proxy that keeps the name, its operator lists it; keys protect by themselves.
    let listed = self::host("https://chat.example.org").await;
    let answer = ask(&listed, "chat.example.org", "https://chat.example.org").await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(ask(&listed, "evil.example", "http://evil.example").await.unwrap().status(), 403);
    listed.server.shutdown().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("k"))).unwrap();
    let keyed = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let answer = ask(&keyed, "chat.example.org", "https://chat.example.org").await.unwrap();
    assert_eq!(answer.status(), 401, "it needs a key, whatever its name");
    keyed.server.shutdown().await;
}
