//! Requests to a hub. Redirects are followed here, one by one, because only the hub may see the token, not
//! the servers it redirects to. Names from the hub become file names, so only plain ones are accepted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use ureq::http::{HeaderMap, HeaderValue, Method, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::CheckpointError::{self, Failed, Wrong};
use super::hub::Hub;

const PUBLIC: &str = "https://huggingface.co";
/// Maximum number of redirects in a row.
const MAX_HOPS: usize = 8;
/// Maximum size of a list of files, which usually has a few kilobytes.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Why a request failed.
pub(super) enum Trouble {
    /// Another try may succeed, but not before `after`, if the hub sent a `Retry-After`.
    Transient { why: String, after: Option<Duration> },
    /// No other try can succeed.
    Permanent(CheckpointError),
}

impl Trouble {
    pub(super) fn transient(why: String) -> Self {
        Self::Transient { why, after: None }
    }
}

impl From<Trouble> for CheckpointError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Transient { why, .. } => Failed(why),
            Trouble::Permanent(error) => error,
        }
    }
}

/// A repository on a hub.
pub(super) struct Site {
    /// The address as given, for messages.
    pub(super) endpoint: String,
    url: Url,
    name: String,
    /// The `authorization` header.
    token: Option<HeaderValue>,
    agent: Agent,
}

/// The contents of a repository.
pub(super) struct Listing {
    /// The commit of `main`. Every file is requested at this commit, so that all belong together.
    pub(super) commit: String,
    /// The files, with their sizes if the hub lists them.
    pub(super) sizes: BTreeMap<String, Option<u64>>,
}

/// A file on the hub.
pub(super) struct Remote {
    pub(super) file: String,
    /// Identifies the content; also the name of the file in the cache.
    pub(super) etag: String,
    pub(super) size: u64,
}

impl Remote {
    /// The SHA-256 in lower-case hexadecimal. Large files, such as weights, have it as their etag; small ones
    /// don't.
    pub(super) fn sha256(&self) -> Option<&str> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (self.etag.len() == 64 && self.etag.bytes().all(hex)).then_some(&self.etag)
    }
}

impl Site {
    /// The repository `name` (`ORG/NAME`) of the hub.
    pub(super) fn new(hub: &Hub, name: &str) -> Result<Self, CheckpointError> {
        let endpoint = hub.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
        let url = Url::parse(&endpoint).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let url = url.ok_or_else(|| Wrong(format!("HF_ENDPOINT: {endpoint} is not a URL like {PUBLIC}")))?;
        let token = hub.token.as_deref().map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let token = token.transpose().map_err(|_| {
            Wrong(
                "HF_TOKEN (or the token file of `hf auth login`) has characters that no token has".to_owned(),
            )
        })?;
        let roots = hub.certificates.as_deref().map(roots).transpose().map_err(Wrong)?;
        let silence = Some(hub.patience.silence);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("infer/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(TlsConfig::builder().root_certs(roots.unwrap_or(RootCerts::WebPki)).build())
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .build()
            .new_agent();
        Ok(Self { endpoint, url, name: name.to_owned(), token, agent })
    }

    /// Lists the files of `main`.
    pub(super) fn list(&self) -> Result<Listing, Trouble> {
        #[derive(serde::Deserialize)]
        struct File {
            rfilename: String,
            #[serde(default)]
            size: Option<u64>,
        }
        #[derive(serde::Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<File>,
        }
        let mut url = self.below(&["api", "models"], &["revision", "main"]);
        url.set_query(Some("blobs=true"));
        let (_, mut response) = self.ask(&Method::GET, url, 0, None)?;
        let text = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let text = text.map_err(|error| self.unreachable(&error))?;
        let wrong = |why: String| {
            Trouble::Permanent(Failed(format!("{} sent no valid list of files: {why}", self.endpoint)))
        };
        let info: Info = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if !is_plain(&info.sha) {
            return Err(wrong(format!("{:?} is not a commit", info.sha)));
        }
        let sizes = info.siblings.into_iter().map(|file| (file.rfilename, file.size)).collect();
        Ok(Listing { commit: info.sha, sizes })
    }

    /// Looks up a file's size and etag.
    pub(super) fn look(&self, listing: &Listing, file: &str) -> Result<Remote, Trouble> {
        let (_, response) = self.ask(&Method::HEAD, self.file(&listing.commit, file), 0, Some(file))?;
        let headers = response.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // A redirect to the content has its size and etag in `x-linked-*`; its own length is that of the
        // redirect.
        let length = (!response.status().is_redirection()).then(|| text("content-length")).flatten();
        let size = text("x-linked-size").or(length).and_then(|size| size.parse().ok());
        let size = size.or(listing.sizes.get(file).copied().flatten());
        let etag = text("x-linked-etag").or(text("etag")).unwrap_or_default();
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let wrong = |what: String| Trouble::Permanent(Failed(format!("{} {what} {file}", self.endpoint)));
        if !is_plain(etag) {
            return Err(wrong(format!("sent {etag:?}, which is not a plain name, as the etag of")));
        }
        let size = size.ok_or_else(|| wrong("did not send the length of".to_owned()))?;
        Ok(Remote { file: file.to_owned(), etag: etag.to_owned(), size })
    }

    /// Opens a file's content at byte `from`. Returns where it begins: `from`, or 0 if the server ignored the
    /// range.
    pub(super) fn open(&self, commit: &str, file: &str, from: u64) -> Result<(u64, Body), Trouble> {
        let (url, response) = self.ask(&Method::GET, self.file(commit, file), from, Some(file))?;
        let begins = match response.status().as_u16() {
            206 => begin_of(response.headers()),
            _ => Some(0),
        };
        match begins {
            Some(begins) if begins == from || begins == 0 => Ok((begins, response.into_body())),
            _ => Err(Trouble::transient(format!("{} sent another range than requested", host(&url)))),
        }
    }

    fn below(&self, before: &[&str], after: &[&str]) -> Url {
        let mut url = self.url.clone();
        let mut path = url.path_segments_mut().expect("http has paths");
        path.pop_if_empty().extend(before).extend(self.name.split('/')).extend(after);
        drop(path);
        url
    }

    fn file(&self, commit: &str, file: &str) -> Url {
        let path: Vec<&str> = ["resolve", commit].into_iter().chain(file.split('/')).collect();
        self.below(&[], &path)
    }

    /// Sends a request and follows redirects. For HEAD, a redirect that describes the content is the
    /// response. `file` is the file the request is about, for messages.
    fn ask(
        &self,
        method: &Method,
        mut url: Url,
        from: u64,
        file: Option<&str>,
    ) -> Result<(Url, Response<Body>), Trouble> {
        for _ in 0..MAX_HOPS {
            let mut request = if *method == Method::HEAD {
                self.agent.head(url.as_str())
            } else {
                self.agent.get(url.as_str())
            };
            if let Some(token) = self.token.as_ref().filter(|_| self.is_own(&url)) {
                request = request.header("authorization", token);
            }
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| self.unreachable(&error))?;
            let describes = *method == Method::HEAD && response.headers().contains_key("x-linked-etag");
            match response.status() {
                status if status.is_success() => return Ok((url, response)),
                status if status.is_redirection() && describes => return Ok((url, response)),
                status if status.is_redirection() => url = next(&url, response.headers())?,
                status => return Err(self.refused(&url, status.as_u16(), response.headers(), file)),
            }
        }
        Err(Trouble::Permanent(Failed(format!(
            "{} redirects more than {MAX_HOPS} times in a row",
            self.endpoint
        ))))
    }

    /// Whether a URL belongs to the hub, which alone may see the token.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.url.origin()
    }

    fn refused(&self, url: &Url, status: u16, headers: &HeaderMap, file: Option<&str>) -> Trouble {
        let Self { endpoint, name, .. } = self;
        let transient = |why: String| Trouble::Transient { why, after: retry_after(headers) };
        match (status, file) {
            (401 | 403, _) if self.is_own(url) => Trouble::Permanent(Wrong(format!(
                "{endpoint} refuses access to {name}: the name is wrong, or the repository is private or gated; accept \
                 its terms at {endpoint}/{name} and set HF_TOKEN to a token that may read it"
            ))),
            (404, Some(file)) if self.is_own(url) => Trouble::Permanent(Failed(format!(
                "{endpoint} lists {file} in {name} but does not have it; the repository or a mirror is incomplete"
            ))),
            (404, None) if self.is_own(url) => {
                Trouble::Permanent(Wrong(format!("{endpoint} has no {name}; check the name")))
            }
            (429, _) => transient(format!("{endpoint} limits the rate of requests; wait, or set HF_TOKEN")),
            // Links to the content expire, so another try may get a valid one.
            _ => transient(format!("{} responded with status {status}; try again later", host(url))),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Trouble {
        let Self { endpoint, name, .. } = self;
        let why = error.to_string();
        if why.contains("certificate") {
            return Trouble::Permanent(Wrong(format!(
                "{endpoint} has no trusted certificate ({why}); for a mirror or proxy with its own, name a PEM file of \
                 the certificates to trust in SSL_CERT_FILE"
            )));
        }
        Trouble::transient(format!(
            "{endpoint} can't be reached ({why}); without a network, download the checkpoint elsewhere (`hf download \
             {name}`) and copy it, or give its directory"
        ))
    }
}

/// The target of a redirect. Small files have no digest to check, so none may come unencrypted from an encrypted hub.
fn next(url: &Url, headers: &HeaderMap) -> Result<Url, Trouble> {
    let location = headers.get("location").and_then(|value| value.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    let is_as_safe = |next: &Url| match next.scheme() {
        "https" => true,
        "http" => url.scheme() == "http",
        _ => false,
    };
    next.filter(is_as_safe).ok_or_else(|| {
        Trouble::Permanent(Failed(format!(
            "{} redirects to {:?}, which is not a valid address, or not encrypted as its own is",
            host(url),
            location.unwrap_or("")
        )))
    })
}

/// The seconds of a `Retry-After` header; the form with a date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get("retry-after")?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The certificates of a PEM file, in place of the built-in ones.
fn roots(path: &Path) -> Result<RootCerts, String> {
    let shown = path.display();
    let advice =
        "give a PEM file with the certificates to trust, or unset SSL_CERT_FILE and REQUESTS_CA_BUNDLE";
    let pem = std::fs::read(path).map_err(|error| format!("can't read {shown}: {error}; {advice}"))?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| format!("{shown}: {error}; {advice}"))?
        {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(format!("{shown} has no certificate; {advice}")),
        false => Ok(RootCerts::Specific(Arc::new(certificates))),
    }
}

/// The first byte of `content-range: bytes FIRST-LAST/ALL`.
fn begin_of(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// Whether a name is safe as a file name: it can't leave its directory or be hidden.
fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use ureq::http::header::LOCATION;

    use super::*;

    #[test]
    fn redirects_lead_to_what_is_as_safe() {
        let leads = |from: &str, location: &'static str| {
            let headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]);
            next(&Url::parse(from).unwrap(), &headers).ok().map(String::from)
        };
        for (from, location, to) in [
            ("https://hub/a/b", "https://cdn/c", Some("https://cdn/c")),
            ("https://hub/a/b", "/c", Some("https://hub/c")),
            ("http://mirror/a", "http://mirror/c", Some("http://mirror/c")),
            ("http://mirror/a", "https://hub/c", Some("https://hub/c")),
            ("https://hub/a", "http://hub/a", None),
            ("https://hub/a", "file:///etc/passwd", None),
            ("http://mirror/a", "ftp://hub/a", None),
        ] {
            assert_eq!(leads(from, location).as_deref(), to, "{from} {location}");
        }
    }
}
