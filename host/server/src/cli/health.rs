//! `infer health`: readiness check for supervisors that have no HTTP client.

use std::time::Duration;

use clap::Args;
use hyper::Request;

use super::Failure;
use crate::web::{Trust, Web};

/// How long to wait for the response to begin, and for each further part.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `infer health`.
#[derive(Args)]
pub struct HealthArgs {
    /// Data plane of the host
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    #[command(flatten)]
    trust: Trust,
}

/// Succeeds if the host is ready.
pub fn run(args: &HealthArgs) -> Result<(), Failure> {
    let url = format!("{}/health/ready", args.url.trim_end_matches('/'));
    let web = Web::new(&url, &args.trust, PATIENCE).map_err(Failure::Usage)?;
    let request = Request::get(&url).body(hyper::body::Bytes::new().into()).map_err(Failure::failed)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let failed = |error: String| Failure::Failed(format!("{url}: {error}"));
        let reply = web.send(request).await.map_err(failed)?;
        let status = reply.status();
        println!("{}", reply.text().await.map_err(failed)?);
        if status.is_success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("{url} responded with {status}")))
        }
    })
}
