//! A client of a running host's admin plane, for commands.

use std::net::IpAddr;

use infer_api::admin::ErrorBody;
use reqwest::{Client, Method, Response, Url};
use serde_json::Value;

use super::Failure;
use crate::admin::token::{self, Token};

/// A host's admin plane.
pub(super) struct Host {
    base: String,
    token: Token,
    client: Client,
}

impl Host {
    /// The plane at this address; its token is found.
    pub fn of(admin: &str) -> Result<Self, Failure> {
        let given = admin.trim_end_matches('/');
        let base = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let wrong = || Failure::Usage(format!("--admin: {given} is no URL like http://127.0.0.1:8001"));
        let url = Url::parse(&base).map_err(|_| wrong())?;
        if url.scheme() != "http" || url.host_str().is_none() {
            return Err(wrong());
        }
        let token = find_token(&url).map_err(Failure::Failed)?;
        // The token must not go to a proxy that happens to stand in the environment.
        let client = Client::builder().no_proxy().build().map_err(Failure::failed)?;
        Ok(Self { base, token, client })
    }

    /// Sends a request and reads the answer's JSON.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Value, Failure> {
        let answer = self.open(method, path, body).await?;
        let bytes = answer.bytes().await.map_err(|e| self.unreachable(&e))?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Failure::Failed(format!("the host's answer can't be read: {e}")))
    }

    /// Sends a request whose answer is read as it comes. An answer that is an error is one here, too.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Response, Failure> {
        let mut request =
            self.client.request(method, format!("{}{path}", self.base)).bearer_auth(self.token.as_str());
        if let Some((content_type, bytes)) = body {
            request = request.header("content-type", content_type).body(bytes);
        }
        let answer = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let bytes = answer.bytes().await.map_err(|e| self.unreachable(&e))?;
        let said = serde_json::from_slice::<ErrorBody>(&bytes).map(|b| b.error.message);
        Err(Failure::Failed(said.unwrap_or_else(|_| format!("the host answered {status}"))))
    }

    /// The host can't be talked to.
    pub fn unreachable(&self, error: &reqwest::Error) -> Failure {
        Failure::Failed(format!("{} can't be reached: {error}", self.base))
    }
}

/// The token for a host at this address. That of a host on this machine goes to this machine alone.
fn find_token(url: &Url) -> Result<Token, String> {
    let host = url.host_str().unwrap_or_default();
    if is_here(host) {
        return token::find(url.port_or_known_default().unwrap_or(80));
    }
    token::given()?.ok_or_else(|| {
        format!(
            "no admin token: {host} is another machine, and {} is not set; take the token from the file that the \
             host there named at its start",
            token::VARIABLE
        )
    })
}

/// Whether a URL's host is this machine by its name.
fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical());
    // A host that listens everywhere is asked at the address that it prints.
    address.map_or(host == "localhost", |address| address.is_loopback() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_gets_its_own_token() {
        for here in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"]
        {
            assert!(is_here(here), "{here}");
        }
        for elsewhere in
            ["gpu-box", "192.168.1.7", "127.0.0.1.example.org", "localhost.example.org", "[fe80::1]", ""]
        {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }
}
