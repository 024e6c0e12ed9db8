//! What must hold under load and abuse, whatever the machine: no token lost or out of place, refusals that say
//! when to come back, bounded memory, honest clients unharmed. The long versions are `infer bench streams`,
//! `overload` and `abuse`.

use std::path::Path;

use infer_server::bench::robust::{Storm, abuse, overload, streams};
use infer_server::cli::raise_open_files;

/// The program: each host under test is a process of its own. This one may open a socket per client.
fn exe() -> &'static Path {
    raise_open_files(1 << 16);
    Path::new(env!("CARGO_BIN_EXE_infer"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_bring_every_token_in_its_place() {
    let report = streams(exe(), 300, 40, 1).await.unwrap();
    assert!(report.is_right(), "{}", report.text());
    let text = report.text();
    assert!(text.contains("bare hyper") && report.host.tokens_per_s.len() == 1, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_the_load_is_turned_away_properly_and_leaves_no_trace() {
    let storm = Storm { times: 10.0, seconds: 1.0, rounds: 2, waiting: 2 };
    let report = overload(exe(), storm).await.unwrap();
    let text = report.text();
    assert_eq!(report.wrong, 0, "{text}");
    let turned_away: usize =
        report.answers.iter().filter(|(status, _)| **status != 200).map(|(_, n)| n).sum();
    assert!(turned_away > report.answers[&200], "most can't be served: {text}");
    assert!(report.answers.keys().all(|status| [200, 429, 503].contains(status)), "{text}");
    assert_eq!(report.ttft_after_ms.count, report.ttft_alone_ms.count, "all is as before: {text}");
    let [before, .., after] = report.resident_bytes[..] else { panic!("{text}") };
    assert!(report.resident_bytes.len() == 3 && after < before + (64 << 20), "{text}");
    assert!(report.open_files[1] <= report.open_files[0] + 2, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_mean_harm_harm_nobody() {
    let report = abuse(exe(), 12, 3.0).await.unwrap();
    let text = report.text();
    assert_eq!(report.harmed, 0, "{text}");
    assert!(report.honest > 3 && report.sent_bytes > 64 << 20, "{text}");
    // Each connection has its buffers, and no body is kept beyond its bound.
    assert!(report.resident_bytes[1] < report.resident_bytes[0] + (512 << 20), "{text}");
    assert!(report.open_files[1] <= report.open_files[0] + 2, "all have left: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_goes_on_until_honest_requests_have_been_made() {
    let report = abuse(exe(), 1, 0.0).await.unwrap();
    let text = report.text();
    assert!(report.honest > 3 && report.harmed == 0 && report.seconds > 0.0, "{text}");
}
