//! `--model ORG/NAME` against fake hubs: found in the cache, downloaded, resumed and refused, with hubs that
//! break off, stall, lie and redirect. Deliberately absent: the real hub; tests need no network.

mod cache;
mod failures;
mod fake;
mod files;
mod trust;

use std::path::PathBuf;
use std::time::Duration;

use infer_server::startup::checkpoint::{Hub, Patience};
use tempfile::TempDir;

use fake::{COMMIT, FakeHub};

/// Every request and response of a hub that doesn't stall stays far below this, however busy the machine is.
const PATIENT: Duration = Duration::from_secs(30);

fn hub(server: &FakeHub, cache: &TempDir) -> Hub {
    Hub {
        cache: Some(cache.path().join("hub")),
        offline: false,
        endpoint: Some(server.endpoint.clone()),
        token: Some("secret".to_owned()),
        certificates: None,
        patience: Patience { silence: PATIENT, pause: Duration::from_millis(1) },
    }
}

fn snapshot(cache: &TempDir, name: &str) -> PathBuf {
    cache.path().join(format!("hub/models--org--{name}/snapshots")).join(COMMIT)
}
