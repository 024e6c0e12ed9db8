//! TLS, and reloads of certificates, API keys and policy configurations while requests run.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, Host, config, first_chunk, request};
use infer_server::config::{Bounds, Config, PolicyChoice};
use infer_server::tenants::KeyDigest;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Runs the `infer` binary.
async fn infer(arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_infer"));
    command.args(arguments).env("SSL_CERT_FILE", "/nowhere").env_remove("SSL_CERT_DIR");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// Runs it until it succeeds, or fails and says this: it waits for seconds, and a busy host may need longer to answer.
async fn infer_says(arguments: &[&str], words: Option<&str>) {
    let begun = Instant::now();
    loop {
        let output = infer(arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = match words {
            None => output.status.success(),
            Some(words) => {
                assert!(!output.status.success(), "{arguments:?}: {said}");
                said.contains(words)
            }
        };
        if wanted {
            return;
        }
        assert!(begun.elapsed() < common::LONG, "{arguments:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_need_a_trusted_certificate_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::NoCa);
    let cert = dir.path().join("cert.pem");
    let tls = Some((cert.clone(), dir.path().join("key.pem")));
    let host = Host::start(Config { tls, ..config() }).await;
    let url = format!("https://localhost:{}", host.server.data_addr.port());
    let cert = cert.to_str().unwrap();
    let other = tempfile::tempdir().unwrap();
    certify(other.path(), IsCa::NoCa);
    let other = other.path().join("cert.pem");
    let by_number = format!("https://127.0.0.1:{}", host.server.data_addr.port());
    for (url, trust, says) in [
        (&url, &["--cacert", cert][..], None),
        (&url, &["--insecure"], None),
        (&by_number, &["-k"], None),
        (
            &url,
            &["--cacert", other.to_str().unwrap()],
            Some("nor is the one that signed it (--insecure accepts any)"),
        ),
        (
            &by_number,
            &["--cacert", cert],
            Some("the server's certificate is not for 127.0.0.1, but for localhost"),
        ),
        (&url, &[], Some("--cacert")),
    ] {
        infer_says(&[&["health", "--url", url], trust].concat(), says).await;
    }
    let once = ["bench", "serve", "--url", &url, "--workload", "w1", "--repeat", "1"];
    let output = infer(&[&once[..], &["--cacert", cert]].concat()).await;
    let (report, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && report.contains("W1"), "{report}{stderr}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_say_which_scheme_the_url_should_have_had() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::NoCa);
    let tls = Some((dir.path().join("cert.pem"), dir.path().join("key.pem")));
    let encrypted = Host::start(Config { tls, ..config() }).await;
    let plain = Host::start(config()).await;
    let (to_tls, to_plain) =
        (format!("http://{}", encrypted.server.data_addr), format!("https://{}", plain.server.data_addr));
    let (to_tls, to_plain) = (to_tls.as_str(), to_plain.as_str());
    let bench = ["bench", "serve", "--workload", "w1", "--repeat", "1", "--url"];
    for (arguments, says) in [
        (vec!["health", "--url", to_tls], "the URL should begin with https://"),
        (vec!["health", "--insecure", "--url", to_plain], "the URL should begin with http://"),
        ([&bench[..], &[to_tls]].concat(), "the URL should begin with https://"),
        ([&bench[..], &[to_plain, "--insecure"]].concat(), "the URL should begin with http://"),
        (vec!["admin", "state", "--admin", to_tls], "does not answer in plain HTTP, as an admin plane does"),
    ] {
        infer_says(&arguments, Some(says)).await;
    }
    encrypted.server.shutdown().await;
    plain.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_handshake_does_not_delay_a_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::NoCa);
    let tls = Some((dir.path().join("cert.pem"), dir.path().join("key.pem")));
    let hour = Duration::from_secs(3_600);
    let bounds = Bounds { header_timeout: hour, ..common::bounds() };
    let host = Host::start(Config { tls, bounds, ..config() }).await;
    let _silent = TcpStream::connect(host.server.data_addr).await.unwrap();
    // Connections are accepted in order.
    let url = format!("https://{}", host.server.data_addr);
    infer_says(&["health", "--url", &url, "--insecure"], None).await;
    host.server.finish_streams().await;
    let closed = tokio::time::timeout(Duration::from_secs(60), host.server.close_within(hour)).await;
    assert!(closed.is_ok(), "it waits for a handshake");
}

/// `openssl req -x509` marks its certificates as an authority's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_self_signed_certificate_is_trusted_as_the_servers_own() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path(), IsCa::Ca(BasicConstraints::Unconstrained));
    let cert = dir.path().join("cert.pem");
    let tls = Some((cert.clone(), dir.path().join("key.pem")));
    let host = Host::start(Config { tls, ..config() }).await;
    let port = host.server.data_addr.port();
    for (name, says) in [("localhost", None), ("127.0.0.1", Some("certificate"))] {
        let url = format!("https://{name}:{port}");
        infer_says(&["health", "--url", &url, "--cacert", cert.to_str().unwrap()], says).await;
    }
    host.server.shutdown().await;
}

/// Writes a certificate for `localhost` and its key into the directory. Returns roots that trust it.
fn certify(dir: &Path, is_ca: IsCa) -> RootCertStore {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.is_ca = is_ca;
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("cert.pem"), cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    roots
}

async fn get_over_tls(host: &Host, roots: RootCertStore) -> std::io::Result<String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(host.server.data_addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_serves_the_certificate_and_reloads_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = certify(dir.path(), IsCa::NoCa);
    let tls = Some((dir.path().join("cert.pem"), dir.path().join("key.pem")));
    let host = Host::start(Config { tls, ..config() }).await;
    assert!(host.server.data_url().starts_with("https://"));
    assert!(get_over_tls(&host, first.clone()).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(host.client.get(host.url("/health")).send().await.is_err(), "plain HTTP is not served");

    let second = certify(dir.path(), IsCa::NoCa);
    assert!(get_over_tls(&host, second.clone()).await.is_err(), "not before the reload");
    host.server.reload().await;
    assert!(get_over_tls(&host, second.clone()).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(get_over_tls(&host, first).await.is_err());

    // A key that doesn't match the certificate: the current one stays.
    let other = tempfile::tempdir().unwrap();
    certify(other.path(), IsCa::NoCa);
    std::fs::copy(other.path().join("key.pem"), dir.path().join("key.pem")).unwrap();
    let outcomes = host.server.reload().await;
    assert!(outcomes[0].error.as_ref().unwrap().contains("cert.pem"), "{outcomes:?}");
    assert!(get_over_tls(&host, second).await.unwrap().starts_with("HTTP/1.1 200 "));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_applies_valid_files_and_skips_invalid_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, policies) = (dir.path().join("tenants.toml"), dir.path().join("policies.json"));
    let table = |key: &str| format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of(key));
    std::fs::write(&keys, table("one")).unwrap();
    std::fs::write(&policies, "{}").unwrap();
    let start = Config { api_keys: Some(keys.clone()), policy_config: Some(policies.clone()), ..config() };
    let host = Host::start(start).await;
    let status = async |key: &str| {
        host.client.get(host.url("/v1/models")).bearer_auth(key).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("one").await, 200);

    std::fs::write(&keys, table("two") + "tokens-per-minute = 600\n").unwrap();
    std::fs::write(&policies, "{\"scheduler\": {\"nonsense\": 1}}").unwrap();
    let answer = host.admin(Method::POST, "/admin/reload").send().await.unwrap();
    assert_eq!(answer.status(), 422);
    let body: Value = answer.json().await.unwrap();
    let errors = body["reloaded"].as_array().unwrap().iter().filter(|o| o["error"].is_string());
    assert_eq!(errors.map(|o| &o["what"]).collect::<Vec<_>>(), [&json!("scheduler")], "{body}");
    assert_eq!((status("one").await, status("two").await), (401, 200));
    let slots = host.admin_get("/admin/policies").await;
    assert!(
        slots["slots"][1]["name"].as_str().unwrap().contains("token-bucket"),
        "a rate limit adds the token bucket: {slots}"
    );

    // During a stream: a valid policy configuration and an invalid keys file.
    let running = request(json!({"ignore_eos": true, "max_tokens": 300}));
    let running = host.client.post(host.url("/v1/completions")).bearer_auth("two").json(&running).send();
    let mut running = first_chunk(running.await.unwrap()).await;
    std::fs::write(&keys, "[tenants.a]\nkeys = 1\n").unwrap();
    std::fs::write(&policies, "{\"admission\": {\"max_in_flight\": 7}}").unwrap();
    let outcomes = host.server.reload().await;
    let wrong: Vec<_> = outcomes.iter().filter(|o| o.error.is_some()).map(|o| o.what).collect();
    assert_eq!(wrong, ["api-keys"], "{outcomes:?}");
    assert_eq!(status("two").await, 200);
    let slots = host.admin_get("/admin/policies").await;
    assert!(slots["slots"][1]["config"].to_string().contains("\"max_in_flight\":7"), "{slots}");
    let mut text = String::new();
    while let Some(chunk) = futures_util::StreamExt::next(&mut running).await {
        text.push_str(std::str::from_utf8(chunk.unwrap().as_ref()).unwrap());
    }
    assert!(text.contains("\"finish_reason\":\"length\""), "the stream is not affected");

    // A file that is just being written.
    std::fs::write(&keys, "").unwrap();
    let outcomes = host.server.reload().await;
    let error = outcomes.iter().find(|o| o.what == "api-keys").and_then(|o| o.error.as_deref());
    assert!(error.is_some_and(|error| error.contains("has no keys")), "{outcomes:?}");
    assert_eq!(status("two").await, 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_of_no_member_of_a_list_is_refused_at_the_start_and_in_a_reload() {
    let list = |config: &Value| PolicyChoice {
        name: "memory-aware,token-bucket".to_owned(),
        config: config.to_string(),
    };
    let says = "the configuration has `tokenbucket`, which is not one of memory-aware, token-bucket";
    let wrong = json!({"tokenbucket": {"tokens_per_minute": 600}});
    let started = infer_server::serve::start(Config { admission: list(&wrong), ..config() }).await;
    let error = started.err().unwrap();
    assert!(error.is_usage() && error.to_string().starts_with(&format!("--admission: {says}")), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policies.json");
    let right = json!({"token-bucket": {"tokens_per_minute": 600}});
    let start = Config { admission: list(&right), policy_config: Some(file.clone()), ..config() };
    let host = Host::start(start).await;
    let reload = async |admission: Value| {
        std::fs::write(&file, json!({"admission": admission}).to_string()).unwrap();
        let outcomes = host.server.reload().await;
        let slots = host.admin_get("/admin/policies").await;
        let tokens = slots["slots"][1]["config"][1]["config"]["tokens_per_minute"].clone();
        (outcomes.into_iter().find_map(|outcome| outcome.error).unwrap_or_default(), tokens)
    };
    let (error, tokens) = reload(wrong).await;
    assert!(error.starts_with(says), "{error}");
    assert_eq!(tokens, 600, "the configured one stays");
    let other = json!({"token-bucket": {"tokens_per_minute": 900}});
    assert_eq!(reload(other).await, (String::new(), json!(900)));
    host.server.shutdown().await;
}
