//! Which certificates of servers a command trusts: those that the system's authorities vouch for, those of a file, or
//! any. Also tells why a connection failed, if that is a matter of TLS.
//!
//! A certificate in the file is trusted as an authority's and as a server's own, as in curl. The latter matters because
//! `openssl req -x509` marks its self-signed certificates as an authority's, which webpki accepts from no server.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::http::pem_words;
use crate::utc::utc;

/// Which certificates to trust.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Trust {
    /// PEM file of certificates to trust for https URLs, authorities' or the server's own [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, short = 'k')]
    pub insecure: bool,
}

impl Trust {
    /// Returns a client's TLS settings. Reads certificates only if the connection is `encrypted`.
    pub fn client_config(&self, encrypted: bool) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        if !encrypted {
            return Ok(tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        }
        let verifier = Arc::new(self.verifier(provider)?);
        Ok(tls.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
        let trusted = if self.insecure { None } else { Some(self.trusted(Arc::clone(&provider))?) };
        Ok(Verifier { provider, trusted })
    }

    fn trusted(&self, provider: Arc<CryptoProvider>) -> Result<Trusted, String> {
        let pinned = self.file()?;
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.cacert {
            for certificate in &pinned {
                roots.add(certificate.clone()).map_err(|e| format!("--cacert: {}: {e}", path.display()))?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this machine has no trusted certificates; give some with --cacert".to_owned());
            }
        }
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Trusted { webpki: webpki.build().map_err(|e| e.to_string())?, pinned })
    }

    /// Returns the certificates of the file; none if no file is given.
    fn file(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let Some(path) = &self.cacert else { return Ok(Vec::new()) };
        let wrong = |e: &dyn std::fmt::Display| format!("--cacert: {}: {e}", path.display());
        let certificates =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|e| wrong(&pem_words(&e)))?;
        if certificates.is_empty() { Err(wrong(&"has no PEM certificate")) } else { Ok(certificates) }
    }

    /// Says why a server's certificate was refused, if that is what made a request fail.
    pub fn refusal(&self, error: &(dyn std::error::Error + 'static)) -> Option<String> {
        let what = self.words(certificate_error(error)?);
        Some(format!("the server's certificate {what} (--insecure accepts any)"))
    }

    /// What is wrong with a certificate, as the rest of a sentence about it.
    fn words(&self, error: &CertificateError) -> String {
        match error {
            CertificateError::NotValidForNameContext { expected, presented } => {
                format!("is not for {}, but for {}", expected.to_str(), names(presented))
            }
            CertificateError::ExpiredContext { not_after, .. } => format!("expired on {}", date(*not_after)),
            CertificateError::NotValidYetContext { not_before, .. } => {
                format!("is not valid before {}", date(*not_before))
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => match &self.cacert {
                Some(path) => format!("is not in {}, nor is the one that signed it", path.display()),
                None => "is signed by no authority that this machine trusts; give the authority's, or the server's \
                         own, with --cacert"
                    .to_owned(),
            },
            error if is_authority(error) => {
                "is an authority's, which is trusted as a server's only if --cacert has exactly this one".to_owned()
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "is not meant for servers (see its extended key usage)".to_owned()
            }
            _ => "is damaged, or of a kind that is not supported".to_owned(),
        }
    }
}

/// Checks servers' certificates, and in every case that the server has the certificate's key.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None` accepts every certificate.
    trusted: Option<Trusted>,
}

/// What webpki accepts, and exactly the pinned certificates.
#[derive(Debug)]
struct Trusted {
    webpki: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = self.pinned.iter().any(|own| own == end_entity);
        let intermediates = if is_pinned { &[] } else { intermediates };
        match self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki checks the time first, then whether it is an authority's, then who signed it, the name last.
            Err(Error::InvalidCertificate(error)) if is_pinned && lacks_authority(&error) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trusted {
            Some(trusted) => trusted.verify(end_entity, intermediates, server_name, ocsp_response, now),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether all that is wrong with a certificate is that no trusted authority vouches for it.
fn lacks_authority(error: &CertificateError) -> bool {
    matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature) || is_authority(error)
}

/// Whether a server's certificate was refused for being an authority's.
fn is_authority(error: &CertificateError) -> bool {
    let CertificateError::Other(OtherError(inner)) = error else { return false };
    matches!(inner.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Says which scheme a URL should have had, if a request failed for having the other one. `encrypted` tells which it has.
pub fn wrong_scheme(error: &(dyn std::error::Error + 'static), encrypted: bool) -> Option<&'static str> {
    if encrypted {
        // The first bytes of its answer are those of HTTP.
        let is_plain =
            matches!(cause::<Error>(error), Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)));
        return is_plain
            .then_some("the server does not speak TLS at this port; the URL should begin with http://");
    }
    is_no_http(error).then_some(
        "the server does not answer in plain HTTP; if it speaks TLS at this port, the URL should begin with https://",
    )
}

/// Whether a request without TLS failed because what came back isn't HTTP. A server with TLS answers with an alert, which
/// hyper takes for the head of a response.
pub fn is_no_http(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_other =
        |error: &hyper::Error| error.is_parse() && !error.is_parse_too_large() && !error.is_parse_status();
    cause::<hyper::Error>(error).is_some_and(is_other)
}

/// Finds what was wrong with a certificate among an error's causes.
fn certificate_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a CertificateError> {
    match cause::<Error>(error)? {
        Error::InvalidCertificate(error) => Some(error),
        _ => None,
    }
}

/// Finds an error of a type among an error and its causes.
pub fn cause<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    let mut cause = error;
    loop {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        // The source of an `io::Error` is not the error inside of it, but that one's source.
        let inside = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inside {
            Some(inside) => inside,
            None => cause.source()?,
        };
    }
}

/// Lists names of a certificate; webpki quotes each in the name of its kind.
fn names(presented: &[String]) -> String {
    let name = |name: &String| {
        let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inside.unwrap_or(name).trim_matches('"').to_owned()
    };
    let names: Vec<String> = presented.iter().map(name).collect();
    if names.is_empty() { "no name at all (see its subjectAltName)".to_owned() } else { names.join(", ") }
}

fn date(time: UnixTime) -> String {
    utc(std::time::Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    /// Between the first and the last moment of the certificates below.
    const NOW: Duration = Duration::from_secs(1_700_000_000);

    /// For `localhost`, from 2001 to 2049.
    fn params(is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = is_ca;
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2049, 1, 1);
        params
    }

    fn self_signed(params: &CertificateParams) -> Certificate {
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn authority() -> IsCa {
        IsCa::Ca(BasicConstraints::Unconstrained)
    }

    /// Whether a server is accepted that calls itself `name` and shows `own`, given the file, and if not, why.
    fn verify(own: &Certificate, name: &str, file: &[&Certificate], now: Duration) -> Result<(), String> {
        let mut pem = tempfile::NamedTempFile::new().unwrap();
        file.iter().for_each(|certificate| pem.write_all(certificate.pem().as_bytes()).unwrap());
        let trust = Trust { cacert: Some(pem.path().to_owned()), insecure: false };
        let verifier = trust.verifier(Arc::new(ring::default_provider())).unwrap();
        let (name, now) = (ServerName::try_from(name).unwrap(), UnixTime::since_unix_epoch(now));
        let verified = verifier.verify_server_cert(own.der(), &[], &name, &[], now);
        // As the layers above wrap it.
        let wrapped = |error: Error| io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        verified
            .map(drop)
            .map_err(|error| trust.refusal(&wrapped(error)).expect("it is about the certificate"))
    }

    #[test]
    fn certificates_of_the_file_are_trusted_as_authorities_and_as_the_servers_own() {
        let key = KeyPair::generate().unwrap();
        let root = params(authority()).self_signed(&key).unwrap();
        let mut of_root = params(IsCa::NoCa);
        of_root.distinguished_name.push(rcgen::DnType::CommonName, "a server");
        let issued =
            of_root.signed_by(&KeyPair::generate().unwrap(), &Issuer::new(params(authority()), key)).unwrap();
        assert_eq!(verify(&issued, "localhost", &[&root], NOW), Ok(()), "its authority is in the file");
        assert_eq!(verify(&issued, "localhost", &[&issued], NOW), Ok(()), "the file has it alone");
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, authority()] {
            let (own, other) = (self_signed(&params(is_ca)), self_signed(&params(is_ca)));
            assert_eq!(verify(&own, "localhost", &[&other, &own], NOW), Ok(()), "{is_ca:?}");
        }
    }

    #[test]
    fn other_names_times_and_certificates_are_refused_in_words() {
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, authority()] {
            let (own, other) = (self_signed(&params(is_ca)), self_signed(&params(is_ca)));
            let stranger = if is_ca == authority() { "only if --cacert has exactly" } else { "is not in " };
            let (early, late) = (Duration::from_secs(900_000_000), Duration::from_secs(2_500_000_000));
            for (name, file, now, says) in [
                ("127.0.0.1", &own, NOW, "is not for 127.0.0.1, but for localhost (--insecure"),
                ("example.com", &own, NOW, "is not for example.com, but for localhost (--insecure"),
                ("localhost", &own, early, "is not valid before 2001-01-01T00:00:00Z"),
                ("localhost", &own, late, "expired on 2049-01-01T00:00:00Z"),
                ("localhost", &other, NOW, stranger),
            ] {
                let error = verify(&own, name, &[file], now).expect_err(says);
                assert!(error.starts_with("the server's certificate ") && error.contains(says), "{error}");
            }
        }
        let mut nameless = params(authority());
        nameless.subject_alt_names.clear();
        let nameless = self_signed(&nameless);
        let error = verify(&nameless, "localhost", &[&nameless], NOW).unwrap_err();
        assert!(error.contains("but for no name at all"), "{error}");
    }
}
