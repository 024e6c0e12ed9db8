//! `infer health`: readiness check for supervisors that have no HTTP client.
//!
//! Without --url it asks the host that the environment and infer.toml describe, so a container's check needs
//! no arguments that its host doesn't need.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::Request;

use super::{Failure, base_url};
use crate::config::{Environment, Settings, local_url};
use crate::web::{Trust, Web};

/// How long to wait for the response to begin, and for each further part.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `infer health`.
#[derive(Args)]
pub struct HealthArgs {
    /// Data plane of the host [default: on this machine, where `infer serve` listens with the same --config
    /// and environment; its certificate is not checked unless --cacert is given]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The host's TOML file [default: infer.toml if it exists] [env: INFER_CONFIG]
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    #[command(flatten)]
    trust: Trust,
}

/// Succeeds if the host is ready.
pub fn run(args: &HealthArgs) -> Result<(), Failure> {
    let (base, trust) = target(args)?;
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

/// The data plane to ask, and the certificates to trust there.
fn target(args: &HealthArgs) -> Result<(String, Trust), Failure> {
    if let Some(url) = &args.url {
        return Ok((base_url(url), args.trust.clone()));
    }
    let settings = Settings::of_running(&Environment::of_process(), args.config.as_deref())?;
    // A certificate is for the name that clients use, not for loopback. Kubernetes' probes don't check it
    // either.
    let trust = Trust { insecure: args.trust.cacert.is_none(), ..args.trust.clone() };
    Ok((local_url(&settings)?, trust))
}
