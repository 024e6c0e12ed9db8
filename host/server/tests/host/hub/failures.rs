//! Downloads that break off and resume, hubs with faults, and what the error says to do.

use std::fs;
use std::time::Duration;

use infer_server::startup::checkpoint::{CheckpointError, Hub, Patience, find};
use tempfile::TempDir;

use super::fake::{Act, FakeHub, State};
use super::files::{WEIGHTS, digest, weights};
use super::{hub, snapshot};

/// For hubs that stall once: far more than any other response takes.
const IMPATIENT: Duration = Duration::from_secs(5);
/// For a hub that stalls at every try. Any other request that takes longer is only sent again.
const HASTY: Duration = Duration::from_millis(1_500);

/// A client that gives up a stalling hub after this time.
fn waiting(silence: Duration, hub: Hub) -> Hub {
    Hub { patience: Patience { silence, ..hub.patience }, ..hub }
}

/// Names of the contents in the cache, including a part of the weights.
fn blobs(cache: &TempDir) -> Vec<String> {
    let all = fs::read_dir(cache.path().join("hub/models--org--tiny/blobs")).into_iter().flatten();
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Imitates a part of the weights that an earlier process left.
fn leave_part(cache: &TempDir, bytes: &[u8]) {
    let blobs = cache.path().join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", digest(&weights()))), bytes).unwrap();
}

#[test]
fn download_resumes_and_ends_with_the_hubs_weights() {
    let whole = weights();
    let (half, fifth, size) = (whole.len() / 2, whole.len() / 5, whole.len() as u64);
    let longer = [whole.clone(), whole.clone()].concat();
    let fifth_and_half = [(half + fifth) as u64, half as u64];
    type Case<'a> = (&'a str, &'a [u8], &'a [Act], &'a [u64]);
    let cases: [Case<'_>; 12] = [
        ("half", &whole[..half], &[], &[half as u64]),
        ("half, a refusal", &whole[..half], &[Act::Status(503)], &[half as u64; 2]),
        (
            "half, a refusal, a cut",
            &whole[..half],
            &[Act::Status(429), Act::Cut(fifth)],
            &[half as u64, half as u64, fifth_and_half[0]],
        ),
        ("all of it, not yet renamed", &whole, &[], &[]),
        ("more than all of it", &longer, &[], &[0]),
        ("other bytes of the right length", &vec![b'!'; whole.len()], &[], &[0]),
        ("half, of other bytes", &longer[fifth..half], &[], &[(half - fifth) as u64, 0]),
        (
            "nothing, cuts in the middle",
            &[],
            &[Act::Cut(fifth), Act::Cut(half)],
            &[0, fifth as u64, fifth_and_half[0]],
        ),
        ("nothing, a cut before the first byte", &[], &[Act::Cut(0)], &[0, 0]),
        ("half, a hub without ranges", &whole[..half], &[Act::FromTheFirstByte], &[half as u64]),
        ("half, a hub that stalls", &whole[..half], &[Act::Stall(fifth)], &[half as u64, fifth_and_half[0]]),
        ("a hub that stalls before it ends", &[], &[Act::Stall(whole.len() - 1)], &[0, size - 1]),
    ];
    for (what, left, acts, from) in cases {
        let (server, cache) = (FakeHub::acting(acts), tempfile::tempdir().unwrap());
        leave_part(&cache, left);
        let stalls = acts.iter().any(|act| matches!(act, Act::Stall(_)));
        let hub = hub(&server, &cache);
        let hub = if stalls { waiting(IMPATIENT, hub) } else { hub };
        find("org/tiny", &hub).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(fs::read(snapshot(&cache, "tiny").join(WEIGHTS)).unwrap() == whole, "{what}");
        assert!(!blobs(&cache).iter().any(|name| name.ends_with(".part")), "{what}");
        assert_eq!(server.weights_from(), from, "{what}");
    }
}

#[test]
fn faulty_hub_is_named_and_leaves_nothing_in_the_cache() {
    let etag = |etag: &str| (None, Some(etag.to_owned()));
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("written-by-the-hub").display().to_string();
    type Faults = (Option<Act>, Option<String>);
    let cases: [(Faults, &str); 10] = [
        ((Some(Act::Garbled), None), "SHA-256"),
        ((Some(Act::TooLong), None), "sends more of model.safetensors"),
        ((Some(Act::Status(503)), None), "status 503"),
        ((Some(Act::Status(416)), None), "status 416"),
        ((Some(Act::Stall(0)), None), "broke off"),
        ((Some(Act::Redirect(None)), None), "not a valid address"),
        ((Some(Act::Redirect(Some("file:///etc/passwd".to_owned()))), None), "not a valid address"),
        ((Some(Act::Redirect(Some(String::new()))), None), "times in a row"),
        (etag(&path), "not a plain name"),
        (etag(".."), "not a plain name"),
    ];
    for ((otherwise, etag), words) in cases {
        let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
        let case = format!("{otherwise:?} {etag:?}");
        let hub = hub(&server, &cache);
        let hub = if matches!(otherwise, Some(Act::Stall(_))) { waiting(HASTY, hub) } else { hub };
        *server.state.lock().unwrap() = State { otherwise, etag, ..State::default() };
        let error = find("org/tiny", &hub).unwrap_err();
        assert!(matches!(error, CheckpointError::Failed(_)), "{case}: {error:?}");
        assert!(error.to_string().contains(words), "{case}: {error}");
        assert!(!blobs(&cache).contains(&digest(&weights())), "{case}: {:?}", blobs(&cache));
        assert!(!snapshot(&cache, "tiny").join(WEIGHTS).exists(), "{case}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing is written outside the cache");
}

#[test]
fn failing_list_of_files_is_requested_again() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    server.state.lock().unwrap().lists.extend([503, 429, 500]);
    find("org/tiny", &hub(&server, &cache)).unwrap();
    let lists = server.asked().iter().filter(|(what, ..)| what.contains("/api/")).count();
    assert_eq!(lists, 4);
}

#[test]
fn failed_download_says_why_and_what_to_do() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let nowhere = Hub { endpoint: Some("http://127.0.0.1:1".to_owned()), ..hub.clone() };
    let garbled = Hub { token: Some("two\nlines".to_owned()), ..hub.clone() };
    let untrusted = Hub { certificates: Some("/nonexistent/ca.pem".into()), ..hub.clone() };
    let empty = tempfile::NamedTempFile::new().unwrap();
    let uncertain = Hub { certificates: Some(empty.path().to_owned()), ..hub.clone() };
    let silly = Hub { endpoint: Some("huggingface.co".to_owned()), ..hub.clone() };
    for (hub, name, wrong, parts) in [
        (&hub, "org/gated", true, &["refuses access to org/gated", "HF_TOKEN"][..]),
        (&hub, "org/absent", true, &["has no org/absent"]),
        (&hub, "org/pickled", true, &["has no model.safetensors", "GGUF"]),
        (&silly, "org/tiny", true, &["HF_ENDPOINT", "not a URL"]),
        (&garbled, "org/tiny", true, &["HF_TOKEN", "characters"]),
        (&untrusted, "org/tiny", true, &["/nonexistent/ca.pem", "SSL_CERT_FILE"]),
        (&uncertain, "org/tiny", true, &["has no certificate", "SSL_CERT_FILE"]),
        (&hub, "org/incomplete", false, &["lists chat_template.jinja", "does not have it"]),
        (&hub, "org/huge", false, &["MiB free", "HF_HUB_CACHE"]),
        (&hub, "org/broken", false, &["status 500", "later"]),
        (&nowhere, "org/tiny", false, &["can't be reached", "hf download org/tiny"]),
    ] {
        let error = find(name, hub).unwrap_err();
        assert_eq!(matches!(error, CheckpointError::Wrong(_)), wrong, "{name}: bad usage or not");
        let error = error.to_string();
        assert!(
            error.starts_with("--model: ") && parts.iter().all(|part| error.contains(part)),
            "{name}: {error}"
        );
    }
}
