//! TLS by rustls. Certificate and key come from files and can be reloaded while connections are open.
//!
//! An open connection keeps the certificate of its handshake. The admin plane has no TLS: it belongs on the
//! loopback interface.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;

/// Accepts connections with the certificate that was loaded last.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    /// Loads the certificate (with its chain) and the key, both PEM.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, String> {
        let acceptor = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), acceptor })
    }

    /// Reloads both files. On an error the current ones stay in use.
    pub fn reload(&self) -> Result<(), String> {
        let fresh = read(&self.cert, &self.key)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Performs the handshake of a connection.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }
}

fn read(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let of = |path: &Path, wrong: &dyn std::fmt::Display| format!("{}: {wrong}", path.display());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|e| of(cert, &format!("can't read a PEM certificate: {}", pem_words(&e))))?;
    if chain.is_empty() {
        return Err(of(cert, &"contains no PEM certificate"));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| of(key, &format!("can't read a PEM private key: {}", pem_words(&e))))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| match e {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                of(cert, &format!("is for another key than that of {}", key.display()))
            }
            e => of(cert, &format!("can't be used with the key of {}: {e}", key.display())),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What is wrong with a PEM file. The library's own words show lines as lists of numbers.
pub fn pem_words(error: &pem::Error) -> String {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().escape_debug().to_string();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the file ends before the line -----END {}-----", shown(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => format!("no section begins like {}", shown(line)),
        pem::Error::NoItemsFound => "the file has none".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_files_are_explained_in_words() {
        let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (own, other) = (made(), made());
        let (cert, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let dir = tempfile::tempdir().unwrap();
        let (cert_path, key_path) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        for (cert, key, words) in [
            (
                &cert[..cert.len() / 2],
                &*key,
                "cert.pem: can't read a PEM certificate: the file ends before the line -----END CERTIFICATE-----",
            ),
            (
                &*cert,
                &key[..key.len() / 2],
                "key.pem: can't read a PEM private key: the file ends before the line -----END ",
            ),
            (&*cert, "", "key.pem: can't read a PEM private key: the file has none"),
            ("-----BEGIN CERTIFICATE\n", &*key, "no section begins like -----BEGIN CERTIFICATE"),
            (&*cert, &*other.signing_key.serialize_pem(), "cert.pem: is for another key than that of "),
        ] {
            std::fs::write(&cert_path, cert).unwrap();
            std::fs::write(&key_path, key).unwrap();
            let wrong = Tls::open(&cert_path, &key_path).err().expect("it is refused");
            assert!(wrong.contains(words), "{wrong}");
        }
    }
}
