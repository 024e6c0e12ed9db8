//! Opens the data plane and the admin plane: TLS, the admin token, warnings of open doors, the limits of connections.
//!
//! Deliberately absent: binding the sockets (`startup::listen`), and what requests do (`data`, `admin`).

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::StartError;
use crate::admin;
use crate::admin::token::{Token, TokenFile};
use crate::app::App;
use crate::config::{Config, ConfigError};
use crate::data;
use crate::http::{Backlog, Connections, Listener, ListenerOptions, Patience, REQUEST_TIME, Tls, Unsent};
use crate::tenants::Tenants;

/// Both planes, each until its signal.
pub(super) struct Planes {
    pub data: JoinHandle<()>,
    pub control: JoinHandle<()>,
}

/// When the planes close.
pub(super) struct Closing {
    pub data: watch::Receiver<bool>,
    pub control: watch::Receiver<bool>,
}

/// Accepts connections on both planes.
pub(super) fn serve_planes(app: &Arc<App>, data: Listener, control: Listener, closing: Closing) -> Planes {
    let bounds = &app.config.bounds;
    let patience = Patience {
        head: bounds.header_timeout,
        idle: bounds.idle_timeout,
        request: REQUEST_TIME,
        write: bounds.write_timeout,
    };
    let data_options = ListenerOptions {
        max_connections: bounds.max_connections,
        waiting_room: bounds.waiting_room,
        room_time: bounds.room_time,
        patience,
        tls: app.tls.clone(),
        connections: app.connections.clone(),
        unsent: app.unsent.clone(),
        backlog: Backlog::new(app.config.max_body_memory_bytes),
    };
    let admin_options = ListenerOptions {
        max_connections: bounds.admin_connections,
        waiting_room: bounds.waiting_room,
        room_time: bounds.room_time,
        patience,
        tls: None,
        connections: Connections::default(),
        unsent: Unsent::default(),
        backlog: Backlog::new(app.config.max_body_memory_bytes),
    };
    let for_data = Arc::clone(app);
    let for_admin = Arc::clone(app);
    Planes {
        data: tokio::spawn(data.serve(data_options, closing.data, move |peer, request| {
            data::route(Arc::clone(&for_data), peer, request)
        })),
        control: tokio::spawn(control.serve(admin_options, closing.control, move |peer, request| {
            admin::route(Arc::clone(&for_admin), peer, request)
        })),
    }
}

/// Reads certificate and key of the data plane, if they are configured.
pub(super) fn open_tls(config: &Config) -> Result<Option<Arc<Tls>>, ConfigError> {
    let Some((cert, key)) = &config.tls else { return Ok(None) };
    let tls = Tls::open(cert, key).map_err(|wrong| ConfigError(format!("--tls-cert: {wrong}")))?;
    Ok(Some(Arc::new(tls)))
}

/// Says in the log who can reach the planes.
pub(super) fn warn_of_open_doors(data: SocketAddr, control: SocketAddr, tenants: &Tenants) {
    if !data.ip().is_loopback() && !tenants.need_keys() {
        tracing::warn!(
            "the data plane at {data} accepts requests from other machines without a key; see INFER_API_KEY and --api-keys"
        );
    }
    if !control.ip().is_loopback() {
        tracing::warn!(
            "the admin plane at {control} can be reached from other machines, and its tokens cross the network unencrypted"
        );
    }
    if tenants.need_keys() {
        tracing::info!(keys = tenants.key_count(), "requests need an API key");
    }
}

/// The configured token of the admin plane; else a fresh one, and the file that holds it.
pub(super) fn admin_token(config: &Config, port: u16) -> Result<(Token, Option<TokenFile>), StartError> {
    if let Some(text) = &config.admin_token {
        let token = Token::given(text)
            .map_err(|wrong| ConfigError(format!("{}: {wrong}", admin::token::VARIABLE)))?;
        return Ok((token, None));
    }
    let wrong = |error| {
        StartError::Io("can't write a file for the admin token (set INFER_ADMIN_TOKEN instead)", error)
    };
    let token = Token::fresh().map_err(wrong)?;
    let file = TokenFile::write(port, &token).map_err(wrong)?;
    Ok((token, Some(file)))
}
