//! A build without KV events. `Config` refuses `--kv-events`, so none of this is ever reached.

use std::io;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::endpoint::{BindError, Endpoints};
use crate::engine::{EngineHandle, EngineStopped};

/// A publisher that can't exist.
pub enum Publisher {}

impl Publisher {
    /// Always fails.
    pub async fn bind(endpoints: &Endpoints) -> Result<Self, BindError> {
        let error = io::Error::new(io::ErrorKind::Unsupported, "this build can't publish KV events");
        Err(BindError { flag: "--kv-events", endpoint: endpoints.events.clone(), error })
    }

    /// Where the sockets listen.
    pub fn endpoints(&self) -> Endpoints {
        match *self {}
    }

    /// Starts publishing.
    pub fn publish(
        self,
        _topic: String,
        _engine: &EngineHandle,
        _stop: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, EngineStopped> {
        match self {}
    }
}
