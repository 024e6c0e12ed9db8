//! A build without KV events. `Config` refuses `--kv-events`, so none of this is ever reached.

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::{EngineHandle, EngineStopped};

/// The addresses of the sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Of the PUB socket.
    pub events: String,
    /// Of the ROUTER socket.
    pub replay: Option<String>,
}

/// A publisher that can't exist.
pub enum Publisher {}

impl Publisher {
    /// Always fails.
    pub async fn bind(_: &Endpoints) -> Result<Self, &'static str> {
        Err("this build can't publish KV events")
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
