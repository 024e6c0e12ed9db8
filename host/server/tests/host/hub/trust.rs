//! Where the token goes, and which servers are trusted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use infer_model::Model;
use infer_server::config::Config;
use infer_server::startup::checkpoint::{CheckpointError, Hub, Patience, find};

use super::fake::{Act, COMMIT, FakeHub};
use super::files::{SHARDS, WEIGHTS, content, digest};
use super::{PATIENT, hub, snapshot};
use crate::common::{Host, config};

#[test]
fn token_is_sent_to_the_hub_and_not_where_it_redirects() {
    let (server, elsewhere, cache) = (FakeHub::start(), FakeHub::start(), tempfile::tempdir().unwrap());
    let there = format!("{}/org/tiny/resolve/{COMMIT}/{WEIGHTS}", elsewhere.endpoint);
    server.state.lock().unwrap().otherwise = Some(Act::Redirect(Some(there)));
    let found = find("org/tiny", &hub(&server, &cache)).unwrap();
    Model::load(&found.source, None).unwrap();
    let (own, others) = (server.asked(), elsewhere.asked());
    assert!(own.len() > 1 && own.iter().all(|(_, _, token)| *token), "{own:?}");
    assert!(others.len() == 1 && others.iter().all(|(_, _, token)| !token), "{others:?}");
}

/// The public hub redirects HEAD requests for weights to another server, with the size and etag in
/// `x-linked-*`.
#[test]
fn redirects_of_the_public_hub_are_followed_without_the_token() {
    for name in ["tiny", "sharded"] {
        let (server, elsewhere) = (FakeHub::start(), FakeHub::start());
        let cache = tempfile::tempdir().unwrap();
        server.state.lock().unwrap().redirects_to = Some(elsewhere.endpoint.clone());
        let found = find(&format!("org/{name}"), &hub(&server, &cache)).unwrap();
        Model::load(&found.source, None).unwrap();
        let (own, others) = (server.asked(), elsewhere.asked());
        assert!(own.iter().all(|(_, _, token)| *token), "{name}: {own:?}");
        assert!(own.iter().any(|(what, ..)| what.starts_with("HEAD /cache/")), "{name}: {own:?}");
        let contents: &[&str] = if name == "tiny" { &[WEIGHTS] } else { &SHARDS };
        let paths: Vec<String> =
            contents.iter().map(|file| format!("GET /org/{name}/resolve/{COMMIT}/{file}")).collect();
        let asked: Vec<_> = others.iter().map(|(what, ..)| what.clone()).collect();
        assert_eq!(asked, paths, "only contents are elsewhere");
        assert!(others.iter().all(|(_, _, token)| !token), "{name}: {others:?}");
        let weights = fs::read_link(snapshot(&cache, name).join(contents[0])).unwrap();
        let digest = digest(&content(contents[0]).unwrap());
        assert_eq!(weights, Path::new("../../blobs").join(digest), "the content's etag, not the redirect's");
    }
}

/// A host stands in for the mirror: it speaks TLS and has no repositories.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_a_mirror_is_trusted_if_it_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| cache.path().join(name));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mirror = Host::start(Config { tls: Some((cert.clone(), key)), ..config() }).await;
    let hub = Hub {
        cache: Some(cache.path().join("hub")),
        endpoint: Some(format!("https://localhost:{}", mirror.server.data_addr.port())),
        patience: Patience { silence: PATIENT, pause: Duration::from_millis(1) },
        ..Hub::default()
    };
    for (certificates, words) in [(Some(cert), "has no org/none"), (None, "SSL_CERT_FILE")] {
        let hub = Hub { certificates, ..hub.clone() };
        let found = tokio::task::spawn_blocking(move || find("org/none", &hub)).await.unwrap();
        let error = found.unwrap_err();
        assert!(matches!(error, CheckpointError::Wrong(_)) && error.to_string().contains(words), "{error}");
    }
    mirror.server.shutdown().await;
}
