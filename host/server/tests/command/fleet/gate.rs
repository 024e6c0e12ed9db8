//! What comes between a rollout and its host: held swaps and lost connections.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::{Fleet, TOKEN, json, with_token};
use crate::process::{Home, complaint};

/// In front of a host: holds swaps back until they may pass, and loses connections.
struct Gate {
    fleet: Fleet,
    rollout: Child,
    pass: Sender<()>,
    /// How many looks at the policies get no answer.
    lost: Arc<AtomicU32>,
}

impl Gate {
    /// Begins a rollout through it, to one host and at once. Returns when the swap is held.
    fn before_a_swap() -> Self {
        let home = Home::new();
        let hosts = vec![with_token(&home, TOKEN, &[])];
        let fleet = Fleet { home, hosts, token: None };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let behind = fleet.hosts[0].admin.trim_start_matches("http://").to_owned();
        let ((holds, held), (pass, passes)) = (channel(), channel());
        let (lost, passes) = (Arc::<AtomicU32>::default(), Arc::new(Mutex::new(passes)));
        let loses = Arc::clone(&lost);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let host = TcpStream::connect(&behind).unwrap();
                let (mut from, mut to) = (host.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || io::copy(&mut from, &mut to));
                let (holds, passes, loses) = (holds.clone(), Arc::clone(&passes), Arc::clone(&loses));
                std::thread::spawn(move || relay(client, host, &holds, &passes, &loses));
            }
        });
        let at_once = ["rollout", "scheduler", "srpt", "--canaries", "none", "--admin", &address];
        let mut rollout = fleet.command(&at_once);
        rollout.env("INFER_ADMIN_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::piped());
        let rollout = rollout.spawn().expect("sh starts");
        held.recv_timeout(Duration::from_secs(60)).expect("it swaps");
        Self { fleet, rollout, pass, lost }
    }

    fn live(&self) -> Value {
        let host = &self.fleet.hosts[0].admin;
        let mut describe = self.fleet.command(&["describe", "scheduler", "--json", "--admin", host]);
        let output = describe.env("INFER_ADMIN_TOKEN", TOKEN).output().unwrap();
        json(&String::from_utf8(output.stdout).unwrap())["name"].clone()
    }
}

/// Hands a client's requests on to a host.
fn relay(
    mut client: TcpStream,
    mut host: TcpStream,
    holds: &Sender<()>,
    passes: &Mutex<Receiver<()>>,
    loses: &AtomicU32,
) {
    let mut part = [0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut part) {
        if part.starts_with(b"PUT ") {
            let _ = holds.send(());
            let _ = passes.lock().unwrap().recv();
        }
        if part.starts_with(b"GET /admin/policies ") && loses.load(Ordering::SeqCst) > 0 {
            loses.fetch_sub(1, Ordering::SeqCst);
            let _ = client.shutdown(Shutdown::Both);
            break;
        }
        let _ = host.write_all(&part[..length]);
    }
    let _ = host.shutdown(Shutdown::Both);
}

#[test]
fn rollout_that_is_interrupted_during_its_last_swap_is_rolled_back() {
    let mut gate = Gate::before_a_swap();
    let pid = gate.rollout.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut said = BufReader::new(gate.rollout.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("stopping, and rolling back what was swapped; ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    gate.pass.send(()).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(gate.rollout.wait().unwrap().code(), Some(1), "{rest}");
    assert!(rest.ends_with("error: the rollout stopped: it was interrupted\n"), "{rest}");
    assert_eq!(gate.live(), "continuous", "{rest}");
    gate.fleet.ends();
}

#[test]
fn lost_connection_does_not_stop_a_rollout() {
    let gate = Gate::before_a_swap();
    gate.lost.store(2, Ordering::SeqCst);
    gate.pass.send(()).unwrap();
    let Gate { fleet, rollout, .. } = gate;
    let output = rollout.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    fleet.ends();
}
