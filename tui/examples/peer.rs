//! A scripted host to try the console without a model: `cargo run -p infer-tui --example peer`, then run the
//! command that it prints.

#[path = "../tests/support/mod.rs"]
mod support;

use support::peer::Peer;
use support::port::Port;

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let peer = Peer::start_on(Port::at(port), "example").await;
    println!("INFER_ADMIN_TOKEN=example infer-tui --admin http://{}", peer.address);
    std::future::pending::<()>().await;
}
