//! TLS by rustls. Certificate and key come from files and can be reloaded while connections are open.
//!
//! An open connection keeps the certificate of its handshake. The admin plane has no TLS: it belongs on the
//! loopback interface.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
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
        .map_err(|e| of(cert, &format!("can't read a PEM certificate: {e}")))?;
    if chain.is_empty() {
        return Err(of(cert, &"contains no PEM certificate"));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| of(key, &format!("can't read a PEM private key: {e}")))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| of(cert, &format!("can't be used with the key of {}: {e}", key.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
