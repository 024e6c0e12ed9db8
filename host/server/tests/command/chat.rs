//! `infer chat` as a process without a terminal: one question by argument or pipe, its answer alone on stdout, and what
//! servers of other makes are sent. `tests/tests/terminal/chat.rs` has the chat in a terminal.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::{KEPT, serving};
use crate::port::Port;
use crate::process::{Home, Host, complaint};

/// How long the other side may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `infer chat` with this on stdin.
fn chat(home: &Home, before: &str, arguments: &[&str], piped: &str) -> Output {
    let mut command = home.command(before, &[&["chat"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("sh starts");
    // It may have ended without reading.
    let _ = child.stdin.take().expect("piped").write_all(piped.as_bytes());
    child.wait_with_output().unwrap()
}

/// What stderr has beside an answer that is not whole for its length alone.
const CUT: &str = "note: the answer was cut off at its maximum length";

/// What the host answers to these messages, and why it ends.
fn answer(host: &Host, messages: &Value) -> (String, Value) {
    let body = json!({"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 24}).to_string();
    let mut response = String::new();
    host.send("POST /v1/chat/completions", "", &body).read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let (_, body) = response.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"));
    let choice = &body["choices"][0];
    (choice["message"]["content"].as_str().expect("text").to_owned(), choice["finish_reason"].clone())
}

#[test]
fn server_that_accepts_connections_and_answers_nothing_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let output = chat(&Home::new(), "", &["--url", &url, "What is a block?"], "");
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{url}/v1/models: no response within 15 s")), "{said}");
}

#[test]
fn one_question_by_argument_or_pipe_gets_its_answer_alone() {
    let home = Home::new();
    let host = serving(&home);
    let user = |text: &str| json!({"role": "user", "content": text});
    let paged = "What is paged attention?";
    let lines = "What is a block?\n/quit\nWhat is a token?";
    let cases: [(&[&str], &str, Value); 6] = [
        (&[paged], "", json!([user(paged)])),
        (&["What", "is", "paged", "attention?"], "", json!([user(paged)])),
        (&[], "What is paged attention?\n", json!([user(paged)])),
        (&["Answer:"], "What is a block?\n", json!([user("Answer:\n\nWhat is a block?")])),
        (
            &["--system", "Be brief.", paged],
            "",
            json!([{"role": "system", "content": "Be brief."}, user(paged)]),
        ),
        // No conversation: all lines are one question.
        (&[], lines, json!([user(lines)])),
    ];
    let usual = ["--temperature", "0", "--max-tokens", "24", "--seed", "3"];
    for (arguments, piped, messages) in cases {
        let url = [&["--url", &*host.data], &usual[..], arguments].concat();
        let output = chat(&home, "", &url, piped);
        let said = complaint(&output);
        let (text, reason) = answer(&host, &messages);
        let note = if reason == "length" { CUT } else { "" };
        assert!(output.status.success() && said.trim_end() == note, "{arguments:?} {piped:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), text + "\n", "{arguments:?} {piped:?}");
    }

    let (_, port) = host.data.rsplit_once(':').expect("a port");
    let found = chat(&home, &format!("export INFER_PORT={port}"), &[&usual[..], &[paged]].concat(), "");
    assert!(found.status.success(), "the host of the same environment: {}", complaint(&found));
    assert!(!found.stdout.is_empty());
    host.ends();
}

#[test]
fn failures_are_told_on_stderr_by_exit_codes() {
    let home = Home::new();
    let host = Host::start(home.serve(&format!("{KEPT}\nexport INFER_API_KEY=the-key-of-this-test"), &[]));
    let nobody = Port::new();
    let nowhere = format!("127.0.0.1:{}", nobody.number);
    let key = "export INFER_API_KEY=the-key-of-this-test";
    let there = ["--url", &*host.data];
    let elsewhere = format!("{}/foo", host.data);
    let nobodys =
        "no host answers there: Connection refused (os error 111); start one with `infer serve`, or ";
    let cases: [(&str, &[&str], i32, &str); 15] = [
        ("", &["--url", &nowhere, "Hello"], 1, nobodys),
        (key, &["--url", &elsewhere, "Hello"], 1, "/foo/v1/models: 404 Not Found; the URL may be wrong"),
        (key, &["--url", "127.0.0.1:99999", "Hello"], 2, "--url: 127.0.0.1:99999 is not a URL like "),
        (key, &["--url", "", "Hello"], 2, "--url: an empty text is not a URL like "),
        (
            "unset INFER_API_KEY",
            &[&there[..], &["Hello"]].concat(),
            1,
            "variable INFER_API_KEY, which is not set",
        ),
        ("export INFER_API_KEY=another-key", &[&there[..], &["Hello"]].concat(), 1, "401 Unauthorized"),
        (key, &[&there[..], &["--model", "nope", "Hello"]].concat(), 1, "this host serves demo, not nope"),
        (key, &[&there[..], &["--max-tokens", "1000000", "Hello"]].concat(), 1, "422 Unprocessable Entity: "),
        (key, &there, 2, "there is no question"),
        (key, &["--url", "ftp://127.0.0.1", "Hello"], 2, "ftp://127.0.0.1"),
        (key, &["--temperature", "101", "Hello"], 2, "from 0 to 100"),
        (key, &["--max-tokens", "0", "Hello"], 2, "--max-tokens"),
        (key, &["--temperature", "-1", "Hello"], 2, "expected a number from 0 to 100"),
        (key, &["--seed", "-1", "Hello"], 2, "expected a whole number from 0 to 18446744073709551615"),
        (key, &["--max-tokens", "-1", "Hello"], 2, "-1 is not in 1.."),
    ];
    for (before, arguments, code, words) in cases {
        let output = chat(&home, before, arguments, "");
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{before} {arguments:?}: {said}");
        assert!(said.contains(words), "{before} {arguments:?}: `{words}` isn't in: {said}");
        assert!(output.stdout.is_empty(), "{before} {arguments:?}");
    }
    let output = chat(&home, key, &[&there[..], &["Hello"]].concat(), "");
    assert!(output.status.success(), "{}", complaint(&output));
    host.ends();
}

/// A server that lists no models and answers with these bodies in turn. Returns its address and what it is asked.
fn stranger(answers: [String; 5]) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        for connection in listener.incoming() {
            let mut connection = BufReader::new(connection.unwrap());
            let (line, body) = request(&mut connection);
            let response = match line.starts_with("POST /v1/chat/completions ") {
                true => {
                    sender.send(serde_json::from_slice(&body).unwrap()).unwrap();
                    let answer = answers.next().expect("an answer for each question");
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{answer}"
                    )
                }
                false => {
                    "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
                }
            };
            connection.get_mut().write_all(response.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

/// The first line of a request, and its body.
fn request(connection: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line: &String| !line.trim().is_empty()) {
        let mut line = String::new();
        assert!(connection.read_line(&mut line).unwrap() > 0, "the head breaks off: {lines:?}");
        lines.push(line);
    }
    let length = lines
        .iter()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    connection.read_exact(&mut body).unwrap();
    (lines.swap_remove(0), body)
}

#[test]
fn servers_of_other_makes_get_fields_of_openai_and_broken_answers_are_told() {
    let delta = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let begun =
        delta(json!({"reasoning": "hm"}), Value::Null) + &delta(json!({"content": "Pag"}), Value::Null);
    let whole = format!("{begun}{}", delta(json!({"content": "ed"}), json!("stop")));
    let failed = format!("{begun}data: {}\n\n", json!({"error": {"message": "out of memory"}}));
    let cancelled = begun.clone() + &delta(json!({}), json!("cancelled")) + "data: [DONE]\n\n";
    let cut = begun.clone() + &delta(json!({}), json!("length")) + "data: [DONE]\n\n";
    let (address, asked) = stranger([whole, begun, failed, cancelled, cut]);
    let home = Home::new();
    for (code, printed, words) in [
        (0, "Paged\n", ""),
        (1, "Pag\n", "error: the answer broke off: the stream ended before the answer did"),
        (1, "Pag\n", "error: the answer broke off: out of memory"),
        (1, "Pag\n", "error: the answer broke off: the server ended it (cancelled)"),
        (0, "Pag\n", CUT),
    ] {
        let arguments = ["--url", &*format!("http://{address}/v1"), "--model", "m", "--seed", "7", "Hello"];
        let output = chat(&home, "", &arguments, "");
        let said = complaint(&output);
        assert_eq!((output.status.code(), said.trim_end()), (Some(code), words));
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "the reasoning is left out");
        let expected = json!({
            "model": "m", "messages": [{"role": "user", "content": "Hello"}], "seed": 7, "stream": true,
            "stream_options": {"include_usage": true},
        });
        assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), expected);
    }
}
