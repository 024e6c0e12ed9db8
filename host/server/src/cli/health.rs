//! `infer health`: readiness check for supervisors that have no HTTP client.

use std::time::Duration;

use clap::Args;
use hyper::Request;

use super::Failure;
use super::data_plane::DataPlane;
use crate::web::Web;

/// How long to wait for the response to begin, and for each further part.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `infer health`.
#[derive(Args)]
pub struct HealthArgs {
    #[command(flatten)]
    host: DataPlane,
}

/// Succeeds if the host is ready.
pub fn run(args: &HealthArgs) -> Result<(), Failure> {
    let (base, trust) = args.host.target()?;
    let url = format!("{base}/health/ready");
    let web = Web::new(&url, &trust, PATIENCE).map_err(Failure::Usage)?;
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
