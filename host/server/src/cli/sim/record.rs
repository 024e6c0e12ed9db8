//! `infer sim record`: records a running host into a file.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::Method;

use super::super::admin::{AdminArg, Host};
use super::Failure;

/// Arguments of `infer sim record`.
#[derive(Args)]
pub struct RecordArgs {
    /// File for the recording
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also record the inputs and answers of policies, for `infer sim decisions`
    #[arg(long)]
    decisions: bool,
    /// Stop after this many seconds [default: on Ctrl-C or POST /admin/trace/stop]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Stop at this size
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..))]
    max_mib: u64,
    #[command(flatten)]
    admin: AdminArg,
}

/// Records until the recording ends.
pub fn run(args: &RecordArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::failed)?.block_on(record(args))
}

async fn record(args: &RecordArgs) -> Result<(), Failure> {
    let host = Host::of(&args.admin)?;
    let decisions = if args.decisions { "on" } else { "off" };
    let path = format!("/admin/trace/start?decisions={decisions}&max_mib={}", args.max_mib);
    let shown = args.out.display();
    let unwritable = |error: std::io::Error| Failure::Failed(format!("can't write {shown}: {error}"));
    // Truncate an existing file only after the host has started to record.
    let mut answer = host.open(Method::POST, &path, None).await?;
    let mut file = std::io::BufWriter::new(std::fs::File::create(&args.out).map_err(unwritable)?);
    eprintln!("recording to {shown}");
    let mut given_up = std::pin::pin!(stop(&host, args.seconds));
    loop {
        let chunk = tokio::select! {
            () = &mut given_up => {
                let why = format!("interrupted before the host ended the recording; {shown} holds what was received");
                return file.flush().map_err(unwritable).and(Err(Failure::Failed(why)));
            }
            chunk = answer.chunk() => chunk.map_err(|error| host.unreachable(&error))?,
        };
        let Some(chunk) = chunk else { break };
        file.write_all(&chunk).map_err(unwritable)?;
    }
    file.flush().map_err(unwritable)?;
    let bytes = std::fs::metadata(&args.out).map_err(unwritable)?.len();
    eprintln!("{bytes} bytes in {shown}");
    Ok(())
}

/// Stops the recording after `seconds` or on Ctrl-C, which ends the response. Returns on a second Ctrl-C.
async fn stop(host: &Host, seconds: Option<u64>) {
    over(seconds).await;
    let stop = async {
        // If the recording has already ended, this fails, and the file is complete all the same.
        if let Err(Failure::Failed(why) | Failure::Usage(why)) =
            host.ask(Method::POST, "/admin/trace/stop", None).await
        {
            eprintln!("can't stop the recording: {why}");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

async fn over(seconds: Option<u64>) {
    let limit = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = limit => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
