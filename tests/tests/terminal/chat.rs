//! `infer chat` in a real terminal (tmux): turns and their figures, commands, lines that continue, and Ctrl-C while an
//! answer streams and at the prompt.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use crate::tmux::{Host, PATIENCE, Terminal, infer, missing, number};
use serde_json::{Value, json};

const SIZE: (u16, u16) = (100, 40);

fn open(name: &str, folder: &tempfile::TempDir, url: &str) -> Terminal {
    open_with("", name, folder, url)
}

/// `variables` are set for the chat alone.
fn open_with(variables: &str, name: &str, folder: &tempfile::TempDir, url: &str) -> Terminal {
    let (program, folder_name) = (infer().expect("looked for before"), folder.path().display());
    // Ctrl-C is for the shell, too, which would end after the chat.
    let chat = format!("'{}' chat --url {url} --temperature 0", program.display());
    let command = format!("trap : INT; cd '{folder_name}'; {variables} {chat}");
    Terminal::open(name, SIZE, folder.path(), &command)
}

/// Types a line at the prompt. What comes before it is for the terminal, not for the chat.
fn enter(terminal: &Terminal, text: &str) {
    at_prompt(terminal);
    terminal.press(&["-l", text]);
    terminal.press(&["Enter"]);
}

fn at_prompt(terminal: &Terminal) {
    terminal.until("an empty prompt", |screen| screen.trim_end().ends_with("\n>"));
}

/// Waits until a text was shown so many times.
fn shows(terminal: &Terminal, times: usize, text: &str) -> String {
    terminal.until(text, |screen| screen.matches(text).count() == times)
}

#[test]
fn chat_in_a_terminal_shows_turns_and_what_was_cached() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("writable");
    let host = Host::start(folder.path(), "0", "127.0.0.1:0");
    let terminal = open("chat", &folder, &host.data);
    terminal.shows("demo at http://127.0.0.1:");
    enter(&terminal, "What is paged attention?");
    shows(&terminal, 1, " prompt tokens cached");
    enter(&terminal, "What is a \\");
    terminal.shows("> What is a \\");
    terminal.press(&["-l", "block?"]);
    terminal.press(&["Enter"]);
    let screen = shows(&terminal, 2, " prompt tokens cached");
    let figures = screen.lines().rfind(|line| line.contains(" prompt tokens cached")).expect("just seen");
    assert!(u128::from(number(figures, "TTFT ")) < PATIENCE.as_millis(), "{figures}");
    let cached = figures.rsplit(", ").next().expect("the last part");
    assert!(!cached.starts_with("0 of "), "the second turn repeats the first: {screen}");

    enter(&terminal, "/save chat.json");
    terminal.shows("saved to chat.json");
    enter(&terminal, "/save chat.json");
    terminal.shows("chat.json exists already");
    let saved = std::fs::read_to_string(folder.path().join("chat.json")).expect("saved");
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    assert_eq!(saved[0]["content"], "What is paged attention?");
    assert_eq!(
        (&saved[2]["content"], saved.as_array().map(Vec::len)),
        (&json!("What is a \nblock?"), Some(4))
    );

    enter(&terminal, "/nonsense");
    terminal.shows("/nonsense is no command");
    enter(&terminal, "/help");
    terminal.shows("/retry         asks the last question again");
    at_prompt(&terminal);
    terminal.press(&["-l", "caf"]);
    terminal.shows("> caf");
    terminal.press(&["-H", "e9", "0d"]);
    terminal.shows("what was typed is no UTF-8, and is left out");
    // What is typed is dropped by the first one.
    at_prompt(&terminal);
    terminal.press(&["-l", "never mind"]);
    terminal.shows("> never mind");
    terminal.press(&["C-c"]);
    let told = "Ctrl-C again, or Ctrl-D, ends";
    shows(&terminal, 1, told);
    // It ends only if nothing is typed between the two.
    at_prompt(&terminal);
    terminal.press(&["-l", "nor this"]);
    terminal.shows("> nor this");
    terminal.press(&["C-c"]);
    shows(&terminal, 2, told);
    at_prompt(&terminal);
    terminal.press(&["Up"]);
    terminal.until("the last line of the history", |screen| screen.trim_end().ends_with("\n> /help"));
    terminal.press(&["C-c"]);
    shows(&terminal, 3, told);
    at_prompt(&terminal);
    terminal.press(&["-l", "\"\"\"a block\"\"\" goes on"]);
    terminal.shows("goes on  (\"\"\" ends the text only at the end of a line)");
    terminal.press(&["Enter"]);
    terminal.shows("(\"\"\" ends the text, Ctrl-C drops it)");
    terminal.press(&["C-c"]);
    shows(&terminal, 4, told);
    at_prompt(&terminal);
    terminal.press(&["C-c"]);
    terminal.shows("ended with 0");
    terminal.is_restored();
}

/// A server that begins each answer, up to the middle of a word, and waits until its client is gone. Returns its address, and what it was asked once
/// that has happened.
fn hesitant() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let (sender, left) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = BufReader::new(connection.expect("a client"));
            let body = request(&mut connection);
            let response = match &body {
                None => json!({"data": [{"id": "tale", "owned_by": "infer"}]}).to_string(),
                Some(_) => {
                    format!("data: {}\n\n", json!({"choices": [{"delta": {"content": "Once upon a"}}]}))
                }
            };
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            connection.get_mut().write_all(format!("{head}{response}").as_bytes()).expect("it listens");
            if let Some(body) = body {
                // An error if it closes with something unread.
                assert!(matches!(connection.read(&mut [0]), Ok(0) | Err(_)), "it says no more");
                if sender.send(body).is_err() {
                    return;
                }
            }
        }
    });
    (address, left)
}

/// The JSON that a request posts, if any.
fn request(connection: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).expect("a head");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).ok()
}

#[test]
fn ctrl_c_stops_an_answer_closes_its_connection_and_keeps_what_came() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("writable");
    let (address, left) = hesitant();
    let terminal = open("stop", &folder, &address);
    terminal.shows("tale at ");
    let stops = |times: usize| {
        shows(&terminal, times, "Once upon");
        terminal.press(&["C-c"]);
        shows(&terminal, times, "stopped, TTFT ");
        left.recv_timeout(PATIENCE).expect("the connection is closed")
    };
    enter(&terminal, "Tell me a tale.");
    let first = stops(1);
    assert!(first["session_id"].is_string(), "a host of ours: {first}");
    enter(&terminal, "And then?");
    let second = stops(2);
    let said: Vec<&Value> =
        second["messages"].as_array().expect("messages").iter().map(|message| &message["content"]).collect();
    assert_eq!(said, ["Tell me a tale.", "Once upon a", "And then?"]);
    assert_eq!(second["session_id"], first["session_id"]);
    enter(&terminal, "/retry");
    assert_eq!(stops(3)["messages"], second["messages"], "the last answer is left out");
    enter(&terminal, "/quit");
    terminal.shows("ended with 0");
    terminal.is_restored();
}

#[test]
fn terminal_without_editing_has_the_same_keys() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().expect("writable");
    let (address, left) = hesitant();
    let terminal = open_with("TERM=dumb", "dumb", &folder, &address);
    terminal.shows("tale at ");
    let told = "Ctrl-C again, or Ctrl-D, ends";
    at_prompt(&terminal);
    terminal.press(&["C-c"]);
    shows(&terminal, 1, told);
    enter(&terminal, "Tell me a tale.");
    terminal.shows("Once upon");
    terminal.press(&["C-c"]);
    terminal.shows("stopped, TTFT ");
    left.recv_timeout(PATIENCE).expect("the connection is closed");
    // The one that stopped the answer is not the first of two.
    at_prompt(&terminal);
    terminal.press(&["C-c"]);
    shows(&terminal, 2, told);
    enter(&terminal, "\"\"\"");
    terminal.press(&["-l", "never mind"]);
    terminal.press(&["Enter"]);
    terminal.until("the line", |screen| screen.trim_end().ends_with("\nnever mind"));
    terminal.press(&["C-d"]);
    shows(&terminal, 3, told);
    enter(&terminal, "And then?");
    shows(&terminal, 2, "Once upon");
    terminal.press(&["C-c"]);
    let second = left.recv_timeout(PATIENCE).expect("the connection is closed");
    assert_eq!(second["messages"][2]["content"], "And then?", "{second}");
    at_prompt(&terminal);
    terminal.press(&["C-d"]);
    terminal.shows("ended with 0");
    terminal.is_restored();
}
