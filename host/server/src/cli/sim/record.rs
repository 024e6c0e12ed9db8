//! `infer sim record`: records a running host into a file. Each part is written as it arrives, so that whatever
//! ends this process leaves all that the host has sent.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use reqwest::{Method, Response};
use tokio::io::AsyncWriteExt as _;

use super::super::admin::{AdminArg, Host};
use super::super::serve::Signals;
use super::Failure;

/// Arguments of `infer sim record`.
#[derive(Args)]
pub struct RecordArgs {
    /// New file for the recording; an existing one is not overwritten
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also record the inputs and answers of policies, for `infer sim decisions`
    #[arg(long)]
    decisions: bool,
    /// Stop after this many seconds [default: on Ctrl-C, SIGTERM or POST /admin/trace/stop]
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
    let runtime = runtime.map_err(Failure::failed)?;
    let outcome = runtime.block_on(record(args));
    // A pipe whose reader has stopped may hold up a write for ever.
    runtime.shutdown_background();
    outcome
}

async fn record(args: &RecordArgs) -> Result<(), Failure> {
    let host = Host::of(&args.admin)?;
    // Before signals are caught: opening a pipe waits for its reader.
    let Output { file, is_new } = Output::open(&args.out)?;
    let mut signals = Signals::new().map_err(Failure::failed)?;
    let mut answer = tokio::select! {
        answer = start(&host, args) => answer,
        () = signals.next() => Err(Failure::Failed("interrupted before the recording started".to_owned())),
    }
    .inspect_err(|_| remove_empty(&args.out, is_new))?;
    let mut file = tokio::fs::File::from_std(file);
    let shown = args.out.display();
    eprintln!("recording to {shown}");
    let unwritable = |error: std::io::Error| Failure::Failed(format!("can't write {shown}: {error}"));
    let receive = async {
        let mut bytes = 0;
        while let Some(chunk) = answer.chunk().await.map_err(|error| host.unreachable(&error))? {
            file.write_all(&chunk).await.map_err(unwritable)?;
            file.flush().await.map_err(unwritable)?;
            bytes += chunk.len();
        }
        Ok::<_, Failure>(bytes)
    };
    let bytes = tokio::select! {
        () = stop(&host, args.seconds, &mut signals) => {
            let why = format!("interrupted before the recording ended; {shown} holds what was written");
            return Err(Failure::Failed(why));
        }
        bytes = receive => bytes.inspect_err(|_| remove_empty(&args.out, is_new))?,
    };
    eprintln!("{bytes} bytes in {shown}");
    Ok(())
}

/// Removes a file that was made for the recording and has nothing of it: it would only keep the next one from its name.
fn remove_empty(path: &Path, is_new: bool) {
    if is_new && path.metadata().is_ok_and(|found| found.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
}

async fn start(host: &Host, args: &RecordArgs) -> Result<Response, Failure> {
    let decisions = if args.decisions { "on" } else { "off" };
    let path = format!("/admin/trace/start?decisions={decisions}&max_mib={}", args.max_mib);
    host.open(Method::POST, &path, None).await
}

/// Where a recording goes.
struct Output {
    file: File,
    /// Whether the file was created for it.
    is_new: bool,
}

impl Output {
    /// Creates the file. Pipes and devices are opened as they are.
    fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("/dev/stdout") {
            // Opened by name, a file that the shell appends to would be overwritten.
            let stdout = std::io::stdout().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
            return Ok(Self { file: stdout.into(), is_new: false });
        }
        let is_stream = path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
        let is_new = !is_stream;
        let file = File::options().write(true).create_new(is_new).open(path).map_err(|error| {
            let shown = path.display();
            match error.kind() {
                ErrorKind::AlreadyExists => Failure::Usage(format!(
                    "--out: {shown} exists; choose another file, or remove this one first"
                )),
                _ => Failure::Failed(format!("can't write {shown}: {error}")),
            }
        })?;
        Ok(Self { file, is_new })
    }
}

/// Stops the recording after `seconds` or on a signal, which ends the response. Returns on a second signal.
async fn stop(host: &Host, seconds: Option<u64>, signals: &mut Signals) {
    over(seconds, signals).await;
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
        () = signals.next() => {}
    }
}

async fn over(seconds: Option<u64>, signals: &mut Signals) {
    let limit = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = limit => {}
        () = signals.next() => {}
    }
}
