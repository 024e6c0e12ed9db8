//! A port that only this test's programs listen on, also between two of them.

use tokio::net::TcpSocket;

/// A port of 127.0.0.1. A bound socket that never listens keeps it: no other program is given the port, while those that
/// name it may still listen there, as they allow addresses to be reused. Other systems than Linux would refuse them, so
/// there the port is merely free now.
pub struct Port {
    pub number: u16,
    _kept: Option<TcpSocket>,
}

impl Port {
    /// Any.
    pub fn new() -> Self {
        Self::at(0)
    }

    /// This one.
    pub fn at(number: u16) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], number).into()).unwrap();
        let number = socket.local_addr().unwrap().port();
        Self { number, _kept: cfg!(target_os = "linux").then_some(socket) }
    }
}
