//! `infer sim record`: a running host's recording, into a file.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use reqwest::Method;

use super::super::admin::Host;
use super::Failure;

/// Arguments of `infer sim record`.
#[derive(Args)]
pub struct RecordArgs {
    /// Where the recording goes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also records what policies are shown and answer, for `infer sim decisions`
    #[arg(long)]
    decisions: bool,
    /// Ends after so many seconds [default: by Ctrl-C, or POST /admin/trace/stop]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Ends at this size
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..))]
    max_mib: u64,
    /// Admin plane of the host
    #[arg(long, value_name = "URL", env = "INFER_ADMIN", default_value = "http://127.0.0.1:8001")]
    admin: String,
}

/// Records until told otherwise.
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
    // What stands in the file goes once there is something to write, not before.
    let mut answer = host.open(Method::POST, &path, None).await?;
    let mut file = std::io::BufWriter::new(std::fs::File::create(&args.out).map_err(unwritable)?);
    eprintln!("recording to {shown}");
    let mut given_up = std::pin::pin!(stop(&host, args.seconds));
    loop {
        let chunk = tokio::select! {
            () = &mut given_up => {
                let why = format!("the host had not ended the recording; what came of it is in {shown}");
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

/// Ends the recording when its time is over or at Ctrl-C; its lines come to their end then. Returns at another Ctrl-C.
async fn stop(host: &Host, seconds: Option<u64>) {
    over(seconds).await;
    let stop = async {
        // Where it has ended by itself meanwhile, the file is as whole.
        if let Err(Failure::Failed(why) | Failure::Usage(why)) =
            host.ask(Method::POST, "/admin/trace/stop", None).await
        {
            eprintln!("the host could not be told to stop: {why}");
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
