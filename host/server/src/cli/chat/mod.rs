//! `infer chat`: talks with a model of a running host, or of any server with OpenAI's chat completions. In a terminal it
//! asks for one question after another; with a question in its arguments or on stdin it prints one answer, for scripts.
//!
//! The conversation is sent whole each time, so that the figures below an answer show the prefix cache at work.

mod answer;
mod conversation;
mod input;
mod plain;
mod server;
mod terminal;
mod wrap;

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Write as _};

use clap::Args;
use infer_api::chat::Message;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use self::answer::{Answer, CUT_AT_LENGTH};
use self::conversation::{Conversation, Sampling};
use self::input::Input;
use self::server::Server;
use self::terminal::{Screen, Terminal, complain, note};
use super::Failure;
use super::data_plane::DataPlane;
use crate::config::Environment;
use crate::tenants;

/// Shown below the flags.
pub const AFTER_HELP: &str = "\
In a terminal, /help lists what can be typed besides questions; Ctrl-C stops an answer. Below each answer are \
its tokens, its speed, the time to its first token, and how much of the prompt the host had cached.
With PROMPT, or if stdin is no terminal, one answer is printed and nothing else; what is on stdin follows PROMPT.
Exit codes: 0 after an answer, also one that was cut off at its maximum length, which a note on stderr tells; 1 if \
there is no whole answer, and 2 for a wrong command line, with the reason on stderr.
INFER_API_KEY is the key for the host. --url may name any server with OpenAI's chat completions.

Try:  infer chat
      infer chat --temperature 0 'What is a prefix cache?'
      infer chat 'What does this program do?' < main.rs";

/// Most bytes of a question on stdin; more fits into no context.
const STDIN_BYTES: u64 = 64 << 20;

/// Arguments of `infer chat`.
#[derive(Args)]
pub struct ChatArgs {
    /// A question, as one argument or several words; its answer is all that is printed [default: those typed in the
    /// terminal, or stdin]
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    #[command(flatten)]
    host: DataPlane,
    /// Model name in requests [default: the first that the host lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Sampling temperature; 0 always takes the likeliest token [default: the host's]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    temperature: Option<f64>,
    /// Maximum number of tokens of an answer and its reasoning [default: what there is room for]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Seed for sampling; the n-th /retry adds n [default: random]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<u64>,
}

/// Talks.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let question = args.question()?;
    // With a thread of its own: the connection of a stopped answer is closed while this one waits at the prompt.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let server = runtime.block_on(args.connect())?;
    let talk = Talk {
        conversation: Conversation::new(session()?, args.system.clone()),
        sampling: Sampling { temperature: args.temperature, max_tokens: args.max_tokens, seed: args.seed },
        runtime,
        server,
    };
    match question {
        Some(question) => talk.answer_one(question),
        None => talk.answer_all(),
    }
}

impl ChatArgs {
    /// The only question; `None` if the user types them.
    fn question(&self) -> Result<Option<String>, Failure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            if self.prompt.is_empty() && !std::io::stdout().is_terminal() {
                return Err(Failure::Usage("stdout is no terminal; give the question as PROMPT".to_owned()));
            }
            return match self.prompt.is_empty() {
                true => Ok(None),
                false => joined(&self.prompt.join(" "), "").map(Some),
            };
        }
        let mut piped = String::new();
        let read = stdin.lock().take(STDIN_BYTES + 1).read_to_string(&mut piped);
        read.map_err(|error| Failure::Failed(format!("stdin: {error}")))?;
        if piped.len() as u64 > STDIN_BYTES {
            return Err(Failure::Failed(format!("stdin: has more than {STDIN_BYTES} bytes")));
        }
        joined(&self.prompt.join(" "), &piped).map(Some)
    }

    async fn connect(&self) -> Result<Server, Failure> {
        let (base, trust) = self.host.target()?;
        let environment = Environment::of_process();
        let key = environment.get(tenants::VARIABLE)?;
        Server::connect(&base, &trust, key, self.model.as_deref()).await
    }
}

/// A question of two parts, of which one may be blank.
fn joined(prompt: &str, piped: &str) -> Result<String, Failure> {
    let parts = [prompt.trim_end(), piped.trim_end()].into_iter().filter(|part| !part.is_empty());
    let question = parts.collect::<Vec<_>>().join("\n\n");
    match question.is_empty() {
        true => Err(Failure::Usage("there is no question in PROMPT or on stdin".to_owned())),
        false => Ok(question),
    }
}

/// A name for a conversation.
fn session() -> Result<String, Failure> {
    Ok(format!("chat-{:016x}", getrandom::u64().map_err(Failure::failed)?))
}

/// A conversation with a server.
struct Talk {
    conversation: Conversation,
    sampling: Sampling,
    runtime: Runtime,
    server: Server,
}

/// How an answer ended.
enum Ended {
    Whole,
    /// The user stopped it.
    Stopped,
    Failed(String),
}

impl Talk {
    /// Prints one answer.
    fn answer_one(mut self, question: String) -> Result<(), Failure> {
        self.conversation.ask(question);
        let request = self.conversation.request(self.server.model(), self.server.is_infer(), &self.sampling);
        let (mut answer, mut screen) = (Answer::default(), Screen::new(std::io::stdout().is_terminal()));
        let outcome =
            self.runtime.block_on(self.server.answer(&request, &mut answer, |chunk| screen.show(chunk)));
        screen.end_line();
        outcome.map_err(Failure::Failed)?;
        if let Some(reason) = answer.cut_by() {
            return Err(Failure::Failed(format!("the answer broke off: the server ended it ({reason})")));
        }
        if answer.is_cut_at_length() {
            eprintln!("note: the answer was {CUT_AT_LENGTH}");
        }
        Ok(())
    }

    /// Answers what the user types, until the end of it.
    fn answer_all(mut self) -> Result<(), Failure> {
        let mut terminal = Terminal::open()?;
        note(&format!("{} at {}; /help lists commands, Ctrl-D ends", self.server.model(), self.server.url()));
        while let Some(typed) = terminal.read(&self.runtime)? {
            match input::read(&typed) {
                Input::Nothing => {}
                Input::Question(question) => {
                    self.conversation.ask(question);
                    self.turn()?;
                }
                Input::Retry if self.conversation.ask_again() => self.turn()?,
                Input::Retry => complain("nothing was asked yet"),
                Input::Help => print!("{}", input::HELP),
                Input::System(text) => {
                    note(if text.is_some() { "the system message is set" } else { "no system message" });
                    self.conversation.set_system(text);
                }
                Input::Reset => {
                    self.conversation.reset(session()?);
                    note("a new conversation");
                }
                Input::Save(file) => match save(&file, &self.conversation.said()) {
                    Ok(()) => note(&format!("saved to {file}")),
                    Err(why) => complain(&why),
                },
                Input::Quit => break,
                Input::Wrong(why) => complain(&why),
            }
        }
        Ok(())
    }

    /// Gets the answer to what was asked. Only one that came, whole or stopped, becomes a part of the conversation.
    fn turn(&mut self) -> Result<(), Failure> {
        let request = self.conversation.request(self.server.model(), self.server.is_infer(), &self.sampling);
        let (mut answer, mut screen) = (Answer::default(), Screen::new(true));
        let ended = self.runtime.block_on(async {
            let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
            let streamed = self.server.answer(&request, &mut answer, |chunk| screen.show(chunk));
            // What is dropped here closes its connection, which cancels the request at the host.
            Ok::<_, Failure>(tokio::select! {
                _ = interrupts.recv() => Ended::Stopped,
                outcome = streamed => match outcome {
                    Ok(()) => Ended::Whole,
                    Err(why) => Ended::Failed(why),
                },
            })
        })?;
        screen.end_line();
        let stopped = matches!(ended, Ended::Stopped);
        match ended {
            Ended::Failed(why) => {
                complain(&why);
                note("the conversation is as it was before this question; /retry asks again");
            }
            Ended::Whole | Ended::Stopped => {
                note(&answer.figures(stopped));
                if answer.is_empty() {
                    note("there is no answer to keep; /retry asks again");
                } else {
                    self.conversation.keep(answer.reasoning, answer.text);
                }
            }
        }
        Ok(())
    }
}

/// Writes messages to a new file.
fn save(file: &str, messages: &[Message]) -> Result<(), String> {
    let text = serde_json::to_string_pretty(messages).map_err(|error| error.to_string())? + "\n";
    let written = File::create_new(file).and_then(|mut out| out.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => format!("{file} exists already; choose another name"),
        _ => format!("can't write {file}: {error}"),
    })
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piped_text_follows_the_prompt() {
        let question = |prompt, piped| joined(prompt, piped).ok();
        assert_eq!(question("Explain:", "  fn main() {}\n").as_deref(), Some("Explain:\n\n  fn main() {}"));
        assert_eq!(question("Hello", "").as_deref(), Some("Hello"));
        assert_eq!(question("", "Hello\n").as_deref(), Some("Hello"));
        assert_eq!(question(" ", "\n"), None);
    }

    #[test]
    fn conversation_is_saved_to_new_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chat.json");
        let mut conversation = Conversation::new("s".to_owned(), None);
        conversation.ask("one?".to_owned());
        conversation.keep(String::new(), "one.".to_owned());
        let file = file.to_str().unwrap();
        assert_eq!(save(file, &conversation.said()), Ok(()));
        let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let said = serde_json::json!([
            {"role": "user", "content": "one?"}, {"role": "assistant", "content": "one."},
        ]);
        assert_eq!(saved, said);
        assert_eq!(save(file, &[]), Err(format!("{file} exists already; choose another name")));
        assert_eq!(std::fs::read_to_string(file).unwrap().matches("one").count(), 2, "it is as it was");
        assert!(save("/nowhere/chat.json", &[]).unwrap_err().starts_with("can't write /nowhere/chat.json: "));
    }
}
