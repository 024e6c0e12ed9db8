//! `infer health`: asks a host whether it takes requests, for supervisors without an HTTP client of their own.

use std::time::Duration;

use clap::Args;

use super::Failure;

/// Arguments of `infer health`.
#[derive(Args)]
pub struct HealthArgs {
    /// Data plane of the host
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
}

/// Exit code 0 where the host is ready.
pub fn run(args: &HealthArgs) -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(5))
            .build()
            .map_err(Failure::failed)?;
        let url = format!("{}/health/ready", args.url.trim_end_matches('/'));
        let answer = client.get(&url).send().await.map_err(|e| Failure::Failed(format!("{url}: {e}")))?;
        let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
        println!("{text}");
        if status.is_success() { Ok(()) } else { Err(Failure::Failed(format!("{url} answers {status}"))) }
    })
}
