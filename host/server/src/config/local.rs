//! Where and how a host with given settings listens, and where it is reached from its own machine.

use std::net::IpAddr;
use std::path::PathBuf;

use super::parse::{non_empty, path};
use super::settings::read;
use super::{ConfigError, Settings, parse};
use crate::sockets::without_brackets;

/// Host and port of the data plane.
pub(super) fn data_address(all: &Settings) -> Result<(String, u16), ConfigError> {
    let host = read(all, "host", "127.0.0.1".to_owned(), |text| {
        non_empty(text).map(|host| without_brackets(&host).to_owned())
    })?;
    Ok((host, read(all, "port", 8000, |t| parse::number(t, 0, u16::MAX))?))
}

/// Certificate and key of the data plane, both or none.
pub(super) fn tls(all: &Settings) -> Result<Option<(PathBuf, PathBuf)>, ConfigError> {
    match (read(all, "tls-cert", None, path)?, read(all, "tls-key", None, path)?) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError(format!("{}: needs --tls-key as well", all.origin("tls-cert")))),
        (None, Some(_)) => Err(ConfigError(format!("{}: needs --tls-cert as well", all.origin("tls-key")))),
    }
}

/// The URL of the data plane. Reads only the settings that it depends on, so that no other one can make a
/// running host look as if it were gone.
pub fn local_url(all: &Settings) -> Result<String, ConfigError> {
    let (host, port) = data_address(all)?;
    if port == 0 {
        let origin = all.origin("port");
        return Err(ConfigError(format!(
            "{origin}: with port 0 any free one was chosen; give the URL that the host printed as --url"
        )));
    }
    let scheme = if tls(all)?.is_some() { "https" } else { "http" };
    Ok(format!("{scheme}://{}:{port}", reachable(&host)))
}

/// The host of a URL for a listener. One that listens on all interfaces is reached on loopback.
fn reachable(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "[::1]".to_owned(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    fn url(pairs: &[(&'static str, &str)]) -> Result<String, String> {
        let flags = pairs.iter().map(|&(key, value)| (key, value.to_owned())).collect();
        let empty = tempfile::NamedTempFile::new().unwrap();
        let settings = Settings::gather(&flags, &Environment::default(), Some(empty.path())).unwrap();
        local_url(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn edited_file_does_not_hide_a_running_host() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "port = 9\nmax-batch-sise = 3\nstop = [1]\nmax-batch-size = [2]\n").unwrap();
        let environment = Environment::new([("INFER_MAX_BATCH_SISE".into(), "3".into())]);
        let settings = Settings::of_running(&Default::default(), &environment, Some(file.path())).unwrap();
        assert_eq!(local_url(&settings).unwrap(), "http://127.0.0.1:9");
        assert!(Settings::gather(&Default::default(), &Environment::default(), Some(file.path())).is_err());
    }

    #[test]
    fn host_is_reached_where_it_listens() {
        let tls = [("tls-cert", "c.pem"), ("tls-key", "k.pem")];
        for (pairs, expected) in [
            (&[][..], "http://127.0.0.1:8000"),
            (&[("port", "9")], "http://127.0.0.1:9"),
            (&[("host", "0.0.0.0")], "http://127.0.0.1:8000"),
            (&[("host", "::"), ("port", "9")], "http://[::1]:9"),
            (&[("host", "fe80::1")], "http://[fe80::1]:8000"),
            (&[("host", "[::1]")], "http://[::1]:8000"),
            (&[("host", "gpu-box")], "http://gpu-box:8000"),
            (&tls, "https://127.0.0.1:8000"),
            (&[("policy-config", "/nonexistent.json")], "http://127.0.0.1:8000"),
        ] {
            assert_eq!(url(pairs).as_deref(), Ok(expected), "{pairs:?}");
        }
        for (pairs, words) in [
            (&[("port", "0")][..], "--port: with port 0"),
            (&[("port", "x")], "--port: `x` is not"),
            (&tls[..1], "--tls-cert: needs --tls-key"),
        ] {
            assert!(url(pairs).unwrap_err().contains(words), "{pairs:?}");
        }
    }
}
