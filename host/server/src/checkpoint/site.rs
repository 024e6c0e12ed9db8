//! Requests to a hub. Redirects are followed here, one by one: the token is for the hub alone, not for whomever it
//! sends its clients to. Names that a hub gives become names of files, so only plain ones are taken.

use std::collections::BTreeMap;

use reqwest::Url;
use ureq::http::{HeaderMap, Method, Response};
use ureq::{Agent, Body};

use super::CheckpointError::{self, Failed, Wrong};
use super::hub::Hub;

const PUBLIC: &str = "https://huggingface.co";
/// More redirects in a row are a circle.
const MAX_HOPS: usize = 8;
/// A list of files is kilobytes long.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Why a request came to nothing.
pub(super) enum Trouble {
    /// Asking again may help.
    Passing(String),
    /// It would not.
    Lasting(CheckpointError),
}

impl From<Trouble> for CheckpointError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Passing(why) => Failed(why),
            Trouble::Lasting(error) => error,
        }
    }
}

/// A repository on a hub.
pub(super) struct Site {
    /// As it was given, for messages.
    pub(super) endpoint: String,
    url: Url,
    name: String,
    token: Option<String>,
    agent: Agent,
}

/// What a repository holds.
pub(super) struct Listing {
    /// The commit that `main` names. Everything is asked for at it, so that no two files are of different ones.
    pub(super) commit: String,
    /// Files, and their sizes where the hub says them.
    pub(super) sizes: BTreeMap<String, Option<u64>>,
}

/// A file as the hub has it.
pub(super) struct Remote {
    pub(super) file: String,
    /// The name of its content, and of the cache's file.
    pub(super) etag: String,
    pub(super) size: u64,
}

impl Remote {
    /// Its digest in lower-case hexadecimal: files that the hub keeps as blobs, weights among them, are named by it.
    pub(super) fn sha256(&self) -> Option<&str> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (self.etag.len() == 64 && self.etag.bytes().all(hex)).then_some(&self.etag)
    }
}

impl Site {
    /// The repository `name`, `ORG/NAME`, of the hub.
    pub(super) fn new(hub: &Hub, name: &str) -> Result<Self, CheckpointError> {
        let endpoint = hub.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
        let url = Url::parse(&endpoint).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let url = url.ok_or_else(|| Wrong(format!("HF_ENDPOINT: {endpoint} is no URL like {PUBLIC}")))?;
        let silence = Some(hub.patience.silence);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("infer/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .build()
            .new_agent();
        Ok(Self { endpoint, url, name: name.to_owned(), token: hub.token.clone(), agent })
    }

    /// What `main` holds now.
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
        let (_, mut answer) = self.ask(&Method::GET, url, 0)?;
        let text = answer.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
        let text = text.map_err(|error| self.unreachable(&error))?;
        let wrong =
            |why: String| Trouble::Lasting(Failed(format!("{} gave no list of files: {why}", self.endpoint)));
        let info: Info = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if !is_plain(&info.sha) {
            return Err(wrong(format!("{:?} is no commit", info.sha)));
        }
        let sizes = info.siblings.into_iter().map(|file| (file.rfilename, file.size)).collect();
        Ok(Listing { commit: info.sha, sizes })
    }

    /// What a file is, without its content.
    pub(super) fn look(&self, listing: &Listing, file: &str) -> Result<Remote, Trouble> {
        let (_, answer) = self.ask(&Method::HEAD, self.file(&listing.commit, file), 0)?;
        let headers = answer.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // Where the content is elsewhere, the hub says what it is like before it sends its clients there.
        let length = (!answer.status().is_redirection()).then(|| text("content-length")).flatten();
        let size = text("x-linked-size").or(length).and_then(|size| size.parse().ok());
        let size = size.or(listing.sizes.get(file).copied().flatten());
        let etag = text("x-linked-etag").or(text("etag")).unwrap_or_default();
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let wrong = |what: String| Trouble::Lasting(Failed(format!("{} {what} {file}", self.endpoint)));
        if !is_plain(etag) {
            return Err(wrong(format!("names {etag:?}, which is no plain name, as the content of")));
        }
        let size = size.ok_or_else(|| wrong("doesn't say the length of".to_owned()))?;
        Ok(Remote { file: file.to_owned(), etag: etag.to_owned(), size })
    }

    /// A file's content from a byte on. It may come from the first byte instead: then that is 0.
    pub(super) fn open(&self, commit: &str, file: &str, from: u64) -> Result<(u64, Body), Trouble> {
        let (url, answer) = self.ask(&Method::GET, self.file(commit, file), from)?;
        let begins = match answer.status().as_u16() {
            206 => begin_of(answer.headers()),
            _ => Some(0),
        };
        match begins {
            Some(begins) if begins == from || begins == 0 => Ok((begins, answer.into_body())),
            _ => Err(Trouble::Passing(format!("{} sent another part than was asked for", host(&url)))),
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
        self.below(&[], &["resolve", commit, file])
    }

    /// Asks, and follows redirects to who has the content. Where only heads are asked for, the redirect that says
    /// what the content is like is the answer.
    fn ask(&self, method: &Method, mut url: Url, from: u64) -> Result<(Url, Response<Body>), Trouble> {
        for _ in 0..MAX_HOPS {
            let mut request = if *method == Method::HEAD {
                self.agent.head(url.as_str())
            } else {
                self.agent.get(url.as_str())
            };
            if let Some(token) = self.token.as_deref().filter(|_| self.is_own(&url)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| self.unreachable(&error))?;
            let knows = *method == Method::HEAD && answer.headers().contains_key("x-linked-etag");
            match answer.status() {
                status if status.is_success() => return Ok((url, answer)),
                status if status.is_redirection() && knows => return Ok((url, answer)),
                status if status.is_redirection() => url = next(&url, answer.headers())?,
                status => return Err(self.refused(&url, status.as_u16())),
            }
        }
        Err(Trouble::Lasting(Failed(format!("{} redirects in a circle", self.endpoint))))
    }

    /// Whether it is the hub's own, which alone may see the token.
    fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.url.origin()
    }

    fn refused(&self, url: &Url, status: u16) -> Trouble {
        let Self { endpoint, name, .. } = self;
        match status {
            401 | 403 if self.is_own(url) => Trouble::Lasting(Wrong(format!(
                "{endpoint} refuses access to {name}: the name is wrong, or it is private or gated; accept its terms \
                 at {endpoint}/{name} and set HF_TOKEN to a token that may read it"
            ))),
            404 if self.is_own(url) => {
                Trouble::Lasting(Wrong(format!("{endpoint} has no {name}; check the name")))
            }
            429 => {
                Trouble::Passing(format!("{endpoint} takes no more requests for now; wait, or set HF_TOKEN"))
            }
            // Links to content elsewhere run out, so a new one may do.
            _ => Trouble::Passing(format!("{} answered with status {status}; try again later", host(url))),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Trouble {
        let Self { endpoint, name, .. } = self;
        Trouble::Passing(format!(
            "{endpoint} can't be reached ({error}); without a network, fetch the checkpoint elsewhere (`hf download \
             {name}`) and copy it, or give its directory"
        ))
    }
}

/// Where a redirect leads.
fn next(url: &Url, headers: &HeaderMap) -> Result<Url, Trouble> {
    let location = headers.get("location").and_then(|value| value.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    next.filter(|url| ["http", "https"].contains(&url.scheme())).ok_or_else(|| {
        Trouble::Lasting(Failed(format!(
            "{} redirects to {:?}, which is no address",
            host(url),
            location.unwrap_or("")
        )))
    })
}

/// The first byte of `content-range: bytes FIRST-LAST/ALL`.
fn begin_of(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// Whether it can be the name of a file, and of none but in its own folder.
fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}
