//! The engine thread's mailbox, which may be full.

use protocol::{MailSender, mailbox};
use world::{Arc, AtomicBool, Ordering};

#[path = "../../../host/server/src/engine/mailbox/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "its own crate uses more of it, and in other places")]
mod protocol;

use crate::world;

/// Messages from clients.
enum Message {
    Gone(usize),
    Wake,
}

/// Disconnects a client: closes first, sends second.
fn leave(gone: &AtomicBool, mail: &MailSender<Message>, client: usize) {
    gone.store(true, Ordering::Release);
    if mail.send(Message::Gone(client)).is_err() {
        mail.request_scan(Message::Wake);
    }
}

/// Two clients disconnect, with room for one message: the engine thread notices both, and doesn't sleep forever.
#[test]
fn no_disconnect_is_missed() {
    world::check(3, || {
        let clients = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let (mail, inbox) = mailbox(1);
        let mail = Arc::new(mail);
        let (theirs, their_mail) = (Arc::clone(&clients), Arc::clone(&mail));
        let thread = world::spawn(move || leave(&theirs[0], &their_mail, 0));
        let (theirs, their_mail) = (Arc::clone(&clients), Arc::clone(&mail));
        let other = world::spawn(move || leave(&theirs[1], &their_mail, 1));
        // Same loop as in the engine thread.
        let mut noticed = [false; 2];
        let note = |message: Message, noticed: &mut [bool; 2]| {
            if let Message::Gone(client) = message {
                noticed[client] = true;
            }
        };
        loop {
            while let Ok(message) = inbox.try_next() {
                note(message, &mut noticed);
            }
            if inbox.must_scan() {
                for (noticed, gone) in noticed.iter_mut().zip(clients.iter()) {
                    *noticed |= gone.load(Ordering::Acquire);
                }
            }
            if noticed == [true; 2] {
                break;
            }
            let message = inbox.sleep(None).expect("a sender exists");
            note(message, &mut noticed);
        }
        thread.join().unwrap();
        other.join().unwrap();
    });
}
