//! Client of a running host's admin plane, for commands.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use infer_api::admin::ErrorBody;
use infer_api::admin::place::is_this_machine;
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Failure, base_url};
use crate::admin::token::{self, Token};
use crate::config::Environment;
use crate::trust::is_no_http;
use crate::web::in_full;

const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8001";
/// Limit for establishing a connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a response may take before the host is asked for a sign of life, and how long that may take.
const PATIENCE: Patience = Patience { answer: Duration::from_secs(5), sign: Duration::from_secs(10) };

/// How long a host may be silent.
struct Patience {
    answer: Duration,
    sign: Duration,
}

/// What a request is for.
#[derive(Clone, Copy)]
enum Asks {
    ToKnow,
    ToDo,
}

impl Asks {
    fn of(method: &Method) -> Self {
        if method.is_safe() { Self::ToKnow } else { Self::ToDo }
    }
}

/// The flags that name a host and its token.
#[derive(Args)]
pub struct AdminArg {
    // Not clap's `env`: an empty variable counts as absent.
    /// Admin plane of the host [default: http://127.0.0.1:8001] [env: INFER_ADMIN]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// File with the host's admin token [default: INFER_ADMIN_TOKEN, else the file that a host on this machine
    /// wrote]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl AdminArg {
    fn address(&self) -> Result<String, Failure> {
        self.admin.clone().map_or_else(usual_address, Ok)
    }
}

/// The address of the host that no flag names.
pub(super) fn usual_address() -> Result<String, Failure> {
    let environment = Environment::of_process();
    Ok(environment.get("INFER_ADMIN")?.unwrap_or(DEFAULT_ADDRESS).to_owned())
}

/// The token in the file of `--token-file`.
pub(super) fn named_token(path: &Path) -> Result<Token, Failure> {
    if path.as_os_str().is_empty() {
        return Err(Failure::Usage("--token-file: an empty text names no file".to_owned()));
    }
    token::read(path).map_err(|error| Failure::Usage(format!("--token-file: {error}")))
}

/// The host, and the form of the output.
#[derive(Args)]
pub struct Target {
    // No doc comment: it would become the help of what follows.
    #[command(flatten)]
    pub admin: AdminArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A host's admin plane.
pub(super) struct Host {
    base: String,
    /// Or why there is none.
    token: Result<Token, String>,
    client: Client,
    patience: Patience,
}

impl Host {
    /// The admin plane that the flags or the environment name, with its token.
    pub fn of(arg: &AdminArg) -> Result<Self, Failure> {
        let address = arg.address()?;
        let token = arg.token_file.as_deref().map(named_token).transpose()?;
        Self::at("--admin", &address, token.map(Ok))
    }

    /// The admin plane at an address, which was given by `named`. Without a `token` it has the one that is found for
    /// this address, if there is one.
    pub fn at(named: &str, address: &str, token: Option<Result<Token, String>>) -> Result<Self, Failure> {
        let (base, url) = base_url(named, address, DEFAULT_ADDRESS)?;
        if url.scheme() == "https" {
            let why = "the admin plane has no TLS; its URL begins with http://";
            return Err(Failure::Usage(format!("{named}: {address}: {why}")));
        }
        let token = token.unwrap_or_else(|| find_token(&url));
        // A proxy of the environment must not see the token.
        let client = Client::builder().no_proxy().connect_timeout(CONNECT_TIME).build();
        let client = client.map_err(Failure::failed)?;
        Ok(Self { base, token, client, patience: PATIENCE })
    }

    /// Its URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request and returns the JSON of the response.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Value, Failure> {
        self.order(method, path, body).await?.map_err(Failure::Failed)
    }

    /// As `ask`, and tells a host that refuses, in its words, from one of which nobody knows what it did: it may have
    /// failed on the way (500), or something in between answered in its place (504).
    pub async fn order(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Result<Value, String>, Failure> {
        let asks = Asks::of(&method);
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = self.answered(asks, response.bytes()).await?;
        if !status.is_success() {
            let why = self.refusal(status, &bytes);
            let is_its_own = serde_json::from_slice::<ErrorBody>(&bytes).is_ok();
            return if status.is_client_error() && is_its_own {
                Ok(Err(why))
            } else {
                Err(Failure::Failed(why))
            };
        }
        let value = serde_json::from_slice(&bytes);
        value.map(Ok).map_err(|e| Failure::Failed(format!("can't read the host's response: {e}")))
    }

    /// Asks for something whose parts succeed or fail each by itself. Returns the JSON that tells of each, and whether
    /// all have succeeded: the response's status is an error if one has failed.
    pub async fn ask_for_parts(&self, method: Method, path: &str) -> Result<(Value, bool), Failure> {
        let asks = Asks::of(&method);
        let response = self.send(method, path, None).await?;
        let status = response.status();
        let bytes = self.answered(asks, response.bytes()).await?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(parts) if status.is_success() || parts.get("error").is_none() => {
                Ok((parts, status.is_success()))
            }
            _ => Err(Failure::Failed(self.refusal(status, &bytes))),
        }
    }

    /// Sends a request and returns the response with its body unread. An error status is a failure.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Response, Failure> {
        let asks = Asks::of(&method);
        let response = self.send(method, path, body).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = self.answered(asks, response.bytes()).await?;
        Err(Failure::Failed(self.refusal(status, &bytes)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Response, Failure> {
        let token = match &self.token {
            Ok(token) => token.as_str(),
            Err(missing) => return Err(self.without_token(missing).await),
        };
        let asks = Asks::of(&method);
        let mut request = self.client.request(method, format!("{}{path}", self.base)).bearer_auth(token);
        if let Some((content_type, bytes)) = body {
            request = request.header("content-type", content_type).body(bytes);
        }
        self.answered(asks, request.send()).await
    }

    /// Waits for a response for as long as the host answers at all: one that compiles a policy, or waits for the end of
    /// a step, takes its time.
    async fn answered<T>(
        &self,
        asks: Asks,
        response: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, Failure> {
        let Patience { answer, sign } = self.patience;
        let silence = async {
            loop {
                tokio::time::sleep(answer).await;
                // Any response will do, a refusal too; a failure is also that of the response that is waited for.
                if tokio::time::timeout(sign, self.client.get(&self.base).send()).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            response = response => response.map_err(|e| self.unreachable(&e)),
            () = silence => {
                let may = match asks {
                    Asks::ToKnow => "",
                    Asks::ToDo => "; if it is only busy, it may still do what was asked",
                };
                let base = &self.base;
                Err(Failure::Failed(format!("{base} accepts connections, but answers nothing{may}")))
            }
        }
    }

    /// The failure of a connection.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        // Its own text only says that a request to this URL failed.
        let why = match std::error::Error::source(error) {
            _ if is_no_http(error) => {
                "it does not answer in plain HTTP, as an admin plane does; is this the data plane's address?"
                    .to_owned()
            }
            Some(source) => in_full(source),
            None => error.to_string(),
        };
        Failure::Failed(format!("{} can't be reached: {why}{}", self.base, elsewhere(&self.base)))
    }

    /// What a response says that is neither a success nor tells of parts.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> String {
        if let Ok(ErrorBody { error }) = serde_json::from_slice::<ErrorBody>(body) {
            return error.message;
        }
        // Something between may answer so in place of the host.
        if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            return format!("the host answered {status}");
        }
        format!(
            "the host answered {status}, but not as an admin plane does; is {} another server?",
            self.base
        )
    }

    /// The failure for want of a token. Where no host responds, that is the reason for it.
    async fn without_token(&self, missing: &str) -> Failure {
        self.absence().await.unwrap_or_else(|| Failure::Failed(missing.to_owned()))
    }

    /// Why no host responds, if none does.
    pub async fn absence(&self) -> Option<Failure> {
        match tokio::time::timeout(CONNECT_TIME, self.client.get(&self.base).send()).await {
            Ok(Err(error)) => Some(self.unreachable(&error)),
            // Something is there, even if it doesn't answer.
            Ok(Ok(_)) | Err(_) => None,
        }
    }
}

/// How to name another host than the usual one, which nobody need have named.
fn elsewhere(base: &str) -> &'static str {
    match base {
        DEFAULT_ADDRESS => "; --admin HOST:PORT or INFER_ADMIN names a host elsewhere",
        _ => "",
    }
}

/// The token for the host at this address, unless a file is named. A token file of this machine is used only
/// for this machine.
fn find_token(url: &Url) -> Result<Token, String> {
    let host = url.host_str().unwrap_or_default();
    if is_this_machine(host) {
        return token::find(url.port_or_known_default().unwrap_or(80));
    }
    token::given()?.ok_or_else(|| {
        format!(
            "no admin token: {host} is another machine, and {} is not set; copy the token from the file that the host \
             there logged at its start, or copy the file and name it with --token-file",
            token::VARIABLE
        )
    })
}

/// Prints JSON, indented.
pub(super) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Failure::failed)?);
    Ok(())
}

/// Reads a response.
pub(super) fn parse<T: DeserializeOwned>(response: Value) -> Result<T, Failure> {
    serde_json::from_value(response)
        .map_err(|e| Failure::Failed(format!("can't read the host's response: {e}")))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn host(address: SocketAddr, patience: Patience) -> Host {
        Host {
            base: format!("http://{address}"),
            token: Token::given("0123456789abcdef"),
            client: Client::builder().no_proxy().build().unwrap(),
            patience,
        }
    }

    /// What a command hears from a host.
    async fn state(address: SocketAddr, sign: Duration) -> Result<Value, Failure> {
        let host = host(address, Patience { answer: SHORT, sign });
        let answer = host.ask(Method::GET, "/admin/state", None);
        tokio::time::timeout(LONG, answer).await.expect("it ends by itself")
    }

    #[test]
    fn only_the_usual_host_may_be_the_wrong_one() {
        assert!(elsewhere("http://127.0.0.1:8001").contains("--admin HOST:PORT or INFER_ADMIN"));
        assert_eq!(elsewhere("http://10.0.0.1:8001"), "");
    }

    #[tokio::test]
    async fn host_that_answers_nothing_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answer = state(listener.local_addr().unwrap(), SHORT).await;
        let Err(Failure::Failed(why)) = answer else { panic!("it has no state") };
        assert!(why.ends_with(" accepts connections, but answers nothing"), "{why}");
        let host = host(listener.local_addr().unwrap(), Patience { answer: SHORT, sign: SHORT });
        let order = host.order(Method::POST, "/admin/policies/scheduler/rollback", None);
        let order = tokio::time::timeout(LONG, order).await.expect("it ends by itself");
        let Err(Failure::Failed(why)) = order else { panic!("nobody took it") };
        assert!(
            why.ends_with(" answers nothing; if it is only busy, it may still do what was asked"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn response_may_take_its_time_while_the_host_answers_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let signs = Arc::new(Semaphore::new(0));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let signs = Arc::clone(&signs);
                tokio::spawn(async move {
                    let mut head = [0; 4_096];
                    let length = stream.read(&mut head).await.unwrap();
                    if head[..length].starts_with(b"GET /admin/state ") {
                        signs.acquire_many(3).await.unwrap().forget();
                    } else {
                        signs.add_permits(1);
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                    // The command may have left after the last sign.
                    let _ = stream.write_all(answer).await;
                });
            }
        });
        assert!(matches!(state(address, LONG).await, Ok(Value::Object(_))));
    }

    /// What becomes of an order at a host that answers with this.
    async fn ordered(status: &str, body: &str) -> Result<Result<Value, String>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = host(listener.local_addr().unwrap(), Patience { answer: LONG, sign: LONG });
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4_096]).await.unwrap(), 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        host.order(Method::POST, "/admin/policies/scheduler/rollback", None).await
    }

    #[tokio::test]
    async fn only_what_a_host_says_of_the_order_is_a_refusal() {
        let refused = r#"{"error": {"message": "it runs `fair`", "type": "conflict", "code": "not_there"}}"#;
        assert!(matches!(ordered("409 Conflict", refused).await, Ok(Err(why)) if why == "it runs `fair`"));
        for (status, body, says) in [
            ("500 Internal Server Error", refused, "it runs `fair`"),
            ("504 Gateway Timeout", "<html>", "the host answered 504"),
            ("408 Request Timeout", "", "the host answered 408"),
            (
                "404 Not Found",
                "<html>",
                "the host answered 404 Not Found, but not as an admin plane does; is ",
            ),
        ] {
            let Err(Failure::Failed(why)) = ordered(status, body).await else { panic!("{status}") };
            assert!(why.starts_with(says), "{why}");
        }
    }
}
