//! The HTTP client of commands that reach servers anywhere: with or without TLS, with flags named as in curl.
//! The admin plane has no TLS and its own client.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Limit for establishing a connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Maximum bytes read of a response as text.
const TEXT_BYTES: usize = 64 << 10;

/// Which certificates to trust.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Trust {
    /// PEM file of certificates to trust for https URLs [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, short = 'k')]
    pub insecure: bool,
}

/// Sends requests. Clones share connections.
#[derive(Clone)]
pub struct Web {
    inner: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
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
        let uri: Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(format!("{url}: expected http://HOST:PORT or https://HOST:PORT"));
        }
        let provider = Arc::new(ring::default_provider());
        let tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let tls = if trust.insecure {
            let anything = Arc::new(Anything(provider));
            tls.dangerous().with_custom_certificate_verifier(anything).with_no_client_auth()
        } else {
            let encrypted = uri.scheme_str() == Some("https");
            let roots = if encrypted { trust.roots()? } else { RootCertStore::empty() };
            tls.with_root_certificates(roots).with_no_client_auth()
        };
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
        Ok(Self { inner, silence })
    }

    /// Sends a request and reads the head of the response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Reply, String> {
        match tokio::time::timeout(self.silence, self.inner.request(request)).await {
            Err(_) => Err(silent(self.silence)),
            Ok(Err(error)) => {
                let text = in_full(&error);
                let advice = if text.contains("certificate") { " (see --cacert and --insecure)" } else { "" };
                Err(format!("{text}{advice}"))
            }
            Ok(Ok(response)) => Ok(Reply { response, silence: self.silence }),
        }
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

impl Trust {
    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.cacert {
            let wrong = |e: &dyn std::fmt::Display| format!("--cacert: {}: {e}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| wrong(&e))? {
                roots.add(certificate.map_err(|e| wrong(&e))?).map_err(|e| wrong(&e))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"has no PEM certificate"));
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this machine has no trusted certificates; give some with --cacert".to_owned());
            }
        }
        Ok(roots)
    }
}

/// Accepts every certificate; signatures are still checked.
#[derive(Debug)]
struct Anything(Arc<CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn silent(silence: Duration) -> String {
    format!("no data for {} s", silence.as_secs())
}

/// An error with its causes: the outermost one says only that a request failed.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
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
