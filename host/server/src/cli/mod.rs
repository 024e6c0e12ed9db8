//! The command line. Exit codes: 0 success, 1 failure, 2 bad usage.

// First, because its macros are visible only in modules that follow.
#[macro_use]
mod out;

mod adapters;
mod admin;
mod bench;
mod chat;
mod completions;
mod config;
mod data_plane;
mod flags;
mod generate;
mod gpu;
mod health;
mod hosts;
mod keys;
mod operate;
mod policy;
mod serve;
mod sim;
mod table;

pub use serve::raise_open_files;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use reqwest::Url;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Settings;

/// What commands that run policies log unless `INFER_LOG` says otherwise: what these policies warn of.
const POLICY_LOG: &str = "off,policy=warn";

/// An inference host whose scheduling, admission and caching are swappable policies.
#[derive(Parser)]
#[command(name = "infer", version, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves a model over HTTP
    #[command(after_help = serve::AFTER_HELP)]
    Serve(serve::ServeArgs),
    /// Checks and prints settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Generates one completion in this process, without a server
    Generate(generate::GenerateArgs),
    /// Talks with a model of a running host, or of another server with OpenAI's interface
    #[command(after_help = chat::AFTER_HELP)]
    Chat(chat::ChatArgs),
    /// Creates and checks policies; lists and swaps those of a running host
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Operates a running host: its requests, queue, cache and adapters
    #[command(subcommand)]
    Admin(operate::AdminCommand),
    /// Checks whether a host is ready
    Health(health::HealthArgs),
    /// Creates API keys and lists tenants
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Simulates policies on virtual hardware in virtual time
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Checks the results of a GPU against references
    #[command(name = "gpu-check", after_help = gpu::AFTER_HELP)]
    GpuCheck(gpu::CheckArgs),
    /// Runs benchmarks
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Prints a script with which a shell completes commands and flags
    #[command(after_help = completions::AFTER_HELP)]
    Completions(completions::CompletionsArgs),
}

/// Why a command failed.
pub enum Failure {
    /// Another command line would help.
    Usage(String),
    /// The command line is fine, but the command failed.
    Failed(String),
}

impl Failure {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// What it says.
    fn message(self) -> String {
        match self {
            Self::Usage(why) | Self::Failed(why) => why,
        }
    }

    /// The same failure, which names the place where a setting was given instead of its flag.
    fn located(self, settings: &Settings) -> Self {
        match self {
            Self::Usage(why) => Self::Usage(settings.located(why)),
            Self::Failed(why) => Self::Failed(settings.located(why)),
        }
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<crate::serve::StartError> for Failure {
    fn from(error: crate::serve::StartError) -> Self {
        if error.is_usage() { Self::Usage(error.to_string()) } else { Self::Failed(error.to_string()) }
    }
}

/// A base URL without a slash at its end, and its parts; `HOST:PORT` is one of plain HTTP. Errors name the flag and show
/// an example.
fn base_url(flag: &str, given: &str, example: &str) -> Result<(String, Url), Failure> {
    let trimmed = given.trim();
    let full = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
    let base = full.trim_end_matches('/').to_owned();
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    let url = Url::parse(&base).ok().filter(is_http);
    let shown = if trimmed.is_empty() { "an empty text" } else { given };
    let url = url.ok_or_else(|| Failure::Usage(format!("{flag}: {shown} is not a URL like {example}")))?;
    Ok((base, url))
}

/// Runs the command of the process's arguments.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    match outlive_limit_of_files().map_err(Failure::failed).and_then(|()| run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => {
            eprintln!("error: {}", out::harmless(&message));
            ExitCode::from(1)
        }
        Err(Failure::Usage(message)) => {
            eprintln!("error: {}", out::harmless(&message));
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Config(command) => config::run(command),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(&args),
        Command::Policy(command) => policy::run(command),
        Command::Admin(command) => operate::run(command),
        Command::Health(args) => health::run(&args),
        Command::Keys(command) => keys::run(command),
        Command::Sim(command) => sim::run(command),
        Command::GpuCheck(args) => gpu::check(args),
        Command::Bench(command) => bench::run(command),
        Command::Completions(args) => completions::run(&args),
    }
}

/// Lets a write beyond the limit of file sizes (`ulimit -f`) fail, as one to a full disk does: its signal would end
/// the process without a word, perhaps while a host saves its cache.
fn outlive_limit_of_files() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    // What replaces the signal's default stays for as long as the process.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    use super::*;
    use crate::config::Environment;

    /// Variables in the help of a command and its subcommands.
    fn variables(command: &clap::Command) -> Vec<OsString> {
        let mut found = Vec::new();
        for arg in command.get_arguments() {
            found.extend(arg.get_env().map(OsString::from));
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let named = help.split_once("[env: ").and_then(|(_, rest)| rest.split_once(']'));
            found.extend(named.map(|(name, _)| OsString::from(name)));
        }
        found.extend(command.get_subcommands().flat_map(variables));
        found
    }

    /// The terminal breaks lines, too.
    #[test]
    fn paragraphs_below_the_flags_have_no_line_breaks_of_their_own() {
        fn check(command: &clap::Command) -> usize {
            let text = command.get_after_help().map(ToString::to_string);
            let lines: Vec<&str> = text.iter().flat_map(|text| text.lines()).collect();
            for pair in lines.windows(2) {
                let begins = pair[1].is_empty() || pair[1].starts_with(' ');
                let ended = pair[0].is_empty() || pair[0].starts_with(' ') || pair[0].ends_with('.');
                assert!(begins || ended, "{}: {pair:?}", command.get_name());
            }
            usize::from(!lines.is_empty()) + command.get_subcommands().map(check).sum::<usize>()
        }
        assert!(check(&Cli::command()) > 10, "most commands have such paragraphs");
    }

    #[test]
    fn base_urls_have_a_scheme_a_host_and_no_slash_at_their_end() {
        let base = |given: &str| base_url("--url", given, "http://x").map(|(base, _)| base);
        for (given, expected) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            (" https://gpu-box/v1/ ", "https://gpu-box/v1"),
            ("[::1]:8000", "http://[::1]:8000"),
        ] {
            assert!(matches!(base(given), Ok(base) if base == expected), "{given}");
        }
        for (given, shown) in [
            ("", "an empty text"),
            ("http://", "http://"),
            ("127.0.0.1:99999", "127.0.0.1:99999"),
            ("ftp://127.0.0.1", "ftp://127.0.0.1"),
        ] {
            let Err(Failure::Usage(why)) = base(given) else { panic!("{given:?} is accepted") };
            assert_eq!(why, format!("--url: {shown} is not a URL like http://x"));
        }
    }

    #[test]
    fn every_variable_of_the_help_is_accepted_by_every_command() {
        let mut command = Cli::command();
        command.build();
        let all = variables(&command);
        for name in
            ["INFER_ADMIN", "INFER_API_KEY", "INFER_API_KEYS", "INFER_CONFIG", "INFER_HOSTS", "INFER_MODEL"]
        {
            assert!(all.contains(&name.into()), "{name} is not in the help: {all:?}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for name in all {
            let environment = Environment::new([(name.clone(), "1".into())]);
            let gathered = Settings::gather(&Default::default(), &environment, Some(file.path()));
            assert!(gathered.is_ok(), "{name:?}: {:?}", gathered.err().map(|error| error.to_string()));
        }
    }
}
