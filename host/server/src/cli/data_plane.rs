//! The flags that name a host's data plane, for commands that are its clients.
//!
//! Without --url it is the host that the environment and infer.toml describe. With --process the flags of that process
//! count too, so a container's check needs no arguments that its host doesn't need.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::{Args, Command, FromArgMatches};

use super::flags::Flags;
use super::{Failure, base_url};
use crate::config::local_url;
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
    /// The process that the host is, or that started it in its place (as `docker run --init` does): its flags count as if
    /// they were given here. In a container 1; Linux only
    #[arg(long, value_name = "PID", conflicts_with_all = ["url", "config"])]
    process: Option<u32>,
    #[command(flatten)]
    trust: Trust,
}

impl DataPlane {
    /// The base URL, without a slash at its end, and the certificates to trust there.
    pub fn target(&self) -> Result<(String, Trust), Failure> {
        if let Some(url) = &self.url {
            return Ok((base_url("--url", url, EXAMPLE)?.0, self.trust.clone()));
        }
        let flags = match self.process {
            Some(pid) => flags_of_process(pid)?,
            None => Flags::of_file(self.config.clone()),
        };
        let settings = flags.settings_of_running()?;
        // A certificate is for the name that clients use, not for loopback. Kubernetes' probes don't check it
        // either.
        let trust = Trust { insecure: self.trust.cacert.is_none(), ..self.trust.clone() };
        Ok((local_url(&settings)?, trust))
    }
}

fn flags_of_process(pid: u32) -> Result<Flags<true>, Failure> {
    let path = format!("/proc/{pid}/cmdline");
    let line = std::fs::read(&path)
        .map_err(|error| Failure::Usage(format!("--process {pid}: can't read {path}: {error}")))?;
    flags_in(&line).map_err(|error| Failure::Usage(format!("--process {pid}: {path}: {error}")))
}

/// The flags in a command line as Linux shows it: words that each end with a zero. One without `infer serve`, such as a
/// shell's, has none.
fn flags_in(line: &[u8]) -> Result<Flags<true>, clap::Error> {
    let words: Vec<OsString> = line
        .strip_suffix(b"\0")
        .unwrap_or(line)
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let is_infer = |word: &OsString| Path::new(word).file_name().is_some_and(|name| name == "infer");
    let serve = words.windows(2).position(|pair| is_infer(&pair[0]) && pair[1] == "serve");
    let Some(serve) = serve else { return Ok(Flags::default()) };
    let command = Flags::<true>::augment_args(Command::new("infer serve"));
    Flags::from_arg_matches(&command.try_get_matches_from(&words[serve + 1..])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(line: &str) -> String {
        let flags = flags_in(line.replace(' ', "\0").as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let settings = flags.settings_of_running().unwrap_or_else(|error| panic!("{error}"));
        local_url(&settings).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn flags_of_a_process_are_those_after_serve() {
        for (line, expected) in [
            ("infer serve ", "http://127.0.0.1:8000"),
            ("infer serve --port 9 --show-text ", "http://127.0.0.1:9"),
            ("/usr/local/bin/infer serve --tls-cert=c.pem --tls-key k.pem --port 9 ", "https://127.0.0.1:9"),
            ("/sbin/docker-init -- infer serve --host 0.0.0.0 --port 9 ", "http://127.0.0.1:9"),
            ("infer serve --model infer --port 9", "http://127.0.0.1:9"),
            ("sh -c sleep ", "http://127.0.0.1:8000"),
            ("other serve --port 9 ", "http://127.0.0.1:8000"),
            ("", "http://127.0.0.1:8000"),
        ] {
            assert_eq!(url(line), expected, "{line}");
        }
        assert!(flags_in(b"infer\0serve\0--prot\09\0").is_err());
    }
}
