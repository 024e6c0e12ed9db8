//! The flags that name a host's data plane, for commands that are its clients.
//!
//! Without --url it is the host that the environment and infer.toml describe, so a container's check needs no arguments
//! that its host doesn't need.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, base_url};
use crate::config::{Environment, Settings, local_url};
use crate::web::Trust;

/// Shown where a URL is wrong.
const EXAMPLE: &str = "http://127.0.0.1:8000";

/// The flags that name a host, and the certificates to trust there.
#[derive(Args)]
pub struct DataPlane {
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

impl DataPlane {
    /// The base URL, without a slash at its end, and the certificates to trust there.
    pub fn target(&self) -> Result<(String, Trust), Failure> {
        if let Some(url) = &self.url {
            return Ok((base_url("--url", url, EXAMPLE)?.0, self.trust.clone()));
        }
        let settings = Settings::of_running(&Environment::of_process(), self.config.as_deref())?;
        // A certificate is for the name that clients use, not for loopback. Kubernetes' probes don't check it
        // either.
        let trust = Trust { insecure: self.trust.cacert.is_none(), ..self.trust.clone() };
        Ok((local_url(&settings)?, trust))
    }
}
