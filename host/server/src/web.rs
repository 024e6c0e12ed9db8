//! The HTTP client of commands that reach servers anywhere: with or without TLS, with flags named as in curl.
//! The admin plane has no TLS and its own client.

use std::io::{self, ErrorKind};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use crate::trust::Trust;
use crate::trust::{cause, wrong_scheme};

/// Limit for establishing a connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest wait for the end of a body whose meaning is complete.
const LAST_BYTES: Duration = Duration::from_millis(500);
/// Maximum bytes read of a response as text.
const TEXT_BYTES: usize = 64 << 10;

/// Sends requests. Clones share connections.
#[derive(Clone)]
pub struct Web {
    inner: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    trust: Trust,
    encrypted: bool,
    silence: Duration,
}

/// A response with its body unread.
pub struct Reply {
    response: Response<Incoming>,
    silence: Duration,
}

impl Web {
    /// A client for `url` and others of its scheme. A response that sends nothing for `silence` fails.
    pub fn new(url: &str, trust: &Trust, silence: Duration) -> Result<Self, String> {
        let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let uri = url.parse::<Uri>().ok().filter(is_http);
        let uri = uri.ok_or_else(|| format!("{url}: expected http://HOST:PORT or https://HOST:PORT"))?;
        let encrypted = uri.scheme_str() == Some("https");
        let tls = trust.client_config(encrypted)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let inner = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { inner, trust: trust.clone(), encrypted, silence })
    }

    /// The same client, with another limit.
    pub fn with_silence(&self, silence: Duration) -> Self {
        Self { silence, ..self.clone() }
    }

    /// Sends a request and reads the head of the response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Reply, String> {
        match tokio::time::timeout(self.silence, self.inner.request(request)).await {
            Err(_) => Err(format!("no response within {} s", self.silence.as_secs())),
            Ok(Err(error)) => Err(self.explained(&error)),
            Ok(Ok(response)) => Ok(Reply { response, silence: self.silence }),
        }
    }

    /// Why there is no response.
    fn explained(&self, error: &(dyn std::error::Error + 'static)) -> String {
        let other_scheme = || wrong_scheme(error, self.encrypted).map(str::to_owned);
        let why = self.trust.refusal(error).or_else(other_scheme).or_else(|| no_listener(error));
        why.unwrap_or_else(|| in_full(error))
    }
}

impl Reply {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The next part of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            match tokio::time::timeout(self.silence, self.response.body_mut().frame()).await {
                Err(_) => return Err(silent(self.silence)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(in_full(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads what is left of a body whose meaning is complete, so that the connection can be used again; a new one would
    /// delay the next response.
    pub async fn end(mut self) {
        let rest = async { while let Ok(Some(_)) = self.chunk().await {} };
        let _ = tokio::time::timeout(LAST_BYTES, rest).await;
    }

    /// The body, truncated if it is long.
    pub async fn text(mut self) -> Result<String, String> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
            if all.len() > TEXT_BYTES {
                all.truncate(TEXT_BYTES);
                break;
            }
        }
        Ok(String::from_utf8_lossy(&all).into_owned())
    }
}

/// What to do if the machine is there but no process that listens.
fn no_listener(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let refused = cause::<io::Error>(error).filter(|error| error.kind() == ErrorKind::ConnectionRefused)?;
    Some(format!(
        "no host answers there: {refused}; start one with `infer serve`, or name another with --url"
    ))
}

fn silent(silence: Duration) -> String {
    format!("no data for {} s", silence.as_secs())
}

/// An error with its causes: the outermost one says only that a request failed.
pub fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_addresses_and_files_are_named() {
        let wrong = |url: &str, trust: Trust| Web::new(url, &trust, CONNECT_TIME).map(|_| ()).unwrap_err();
        for url in ["localhost:8000", "ftp://x", "http://", "/v1"] {
            assert!(wrong(url, Trust::default()).contains(url), "{url}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let trust = Trust { cacert: Some(file.path().to_owned()), insecure: false };
        assert!(wrong("https://localhost", trust).contains("has no PEM certificate"));
        let trust = Trust { cacert: Some("/nowhere.pem".into()), insecure: false };
        assert!(wrong("https://localhost", trust).starts_with("--cacert: /nowhere.pem: "));
    }
}
