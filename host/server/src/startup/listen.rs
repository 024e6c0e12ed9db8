//! Binds the host's sockets. An error names the flag at fault.

use std::io::ErrorKind;

use crate::config::Config;
use crate::http::Listener;
use crate::kv_events::{BindError, Publisher};
use crate::serve::StartError;

/// Checks that the host can listen on its addresses. One that is in use is fine: the host that uses it may be
/// the one whose settings are being checked.
pub async fn check_addresses(config: &Config) -> Result<(), StartError> {
    let free = |error: StartError| match error {
        StartError::Bind { error, .. } if error.kind() == ErrorKind::AddrInUse => Ok(()),
        error => Err(error),
    };
    data_plane(config).await.map(drop).or_else(free)?;
    admin_plane(config).await.map(drop).or_else(free)?;
    kv_events(config).await.map(drop).or_else(free)
}

/// Binds the data plane.
pub async fn data_plane(config: &Config) -> Result<Listener, StartError> {
    let flag = |error: &std::io::Error| match error.kind() {
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => "--port",
        // A name that doesn't resolve, or an address that this machine doesn't have.
        _ => "--host",
    };
    bind(&config.host, config.port, flag).await
}

/// Binds the admin plane.
pub async fn admin_plane(config: &Config) -> Result<Listener, StartError> {
    bind(&config.admin_host, config.admin_port, |_| "--admin").await
}

async fn bind(
    host: &str,
    port: u16,
    flag: impl Fn(&std::io::Error) -> &'static str,
) -> Result<Listener, StartError> {
    Listener::bind(host, port).await.map_err(|error| StartError::Bind {
        flag: flag(&error),
        address: format!("{host}:{port}"),
        error,
    })
}

/// Binds the sockets for KV events before anything is loaded, so that a wrong address fails at once.
pub async fn kv_events(config: &Config) -> Result<Option<Publisher>, StartError> {
    let Some(wanted) = &config.kv_events else { return Ok(None) };
    let publisher = Publisher::bind(wanted).await.map_err(|BindError { flag, endpoint, error }| {
        StartError::Bind { flag, address: endpoint.to_string(), error }
    })?;
    Ok(Some(publisher))
}
