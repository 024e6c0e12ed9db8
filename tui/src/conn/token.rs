//! Where the admin token is looked for. It is looked for at every connection, because a host that restarts
//! makes a new one, and kept between them: a pipe can be read once, and a look that waits for its writer is not
//! begun a second time. It is never printed, only where it came from, and the token of a host on this machine
//! goes to no other machine.

use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reqwest::Url;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

use super::ConnError;

/// Environment variable that holds the token itself.
pub const TOKEN_VARIABLE: &str = "INFER_ADMIN_TOKEN";
/// Longest token that is read from a file.
const MAX_BYTES: u64 = 4_096;

/// The places, in the order in which they count.
#[derive(Clone, Debug)]
pub struct TokenSource {
    explicit_file: Option<PathBuf>,
    variable: Option<String>,
    /// Of a host on this machine; none where the host is on another.
    default_file: Option<PathBuf>,
}

impl TokenSource {
    /// From the flag, the environment and the admin plane's address.
    #[must_use]
    pub fn from_environment(explicit_file: Option<PathBuf>, address: &Url) -> Self {
        let variable = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
        Self::new(explicit_file, variable, &runtime_directory(), address)
    }

    /// From given places.
    #[must_use]
    pub fn new(
        explicit_file: Option<PathBuf>,
        variable: Option<String>,
        directory: &Path,
        address: &Url,
    ) -> Self {
        let port = address.port_or_known_default().unwrap_or(80);
        let default_file = is_here(address).then(|| directory.join(format!("admin-{port}.token")));
        Self { explicit_file, variable, default_file }
    }

    /// The token; `None` where no place has one, so that the host says whether it wants one.
    ///
    /// # Errors
    /// [`ConnError::Token`] where a file is there or was named but has no token that can be read.
    pub fn find(&self) -> Result<Option<String>, ConnError> {
        let (path, named) = match (&self.explicit_file, &self.variable, &self.default_file) {
            (Some(path), ..) => (path, true),
            (None, Some(token), _) => return Ok(Some(token.trim().to_owned())),
            (None, None, Some(path)) => (path, false),
            (None, None, None) => return Ok(None),
        };
        let wrong = |message: String| ConnError::Token { path: path.clone(), message };
        let mut token = String::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut token));
        match read {
            Ok(_) if token.trim().is_empty() => Err(wrong("it is empty".to_owned())),
            Ok(_) => Ok(Some(token.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => Ok(None),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Whether a second look would find nothing: at the end of a pipe, or waiting for somebody who writes into it.
    fn is_read_once(&self) -> bool {
        let path = self.explicit_file.as_ref();
        path.and_then(|path| path.metadata().ok()).is_some_and(|file| !file.is_file())
    }

    /// What to tell a person whose token was refused.
    #[must_use]
    pub fn advice(&self) -> String {
        match (&self.explicit_file, &self.variable, &self.default_file) {
            (Some(path), ..) => format!("the token of --token-file {} is not this host's", path.display()),
            (None, Some(_), _) => format!("the token in {TOKEN_VARIABLE} is not this host's"),
            (None, None, Some(file)) if file.exists() => {
                format!("the token in {} is not this host's", file.display())
            }
            (None, None, Some(file)) => {
                format!("no token found: {TOKEN_VARIABLE} is not set and there is no {}", file.display())
            }
            (None, None, None) => format!(
                "no token found: {TOKEN_VARIABLE} is not set, and the token of a host on this machine is for \
                 127.0.0.1 and localhost alone"
            ),
        }
    }
}

/// The token as it was found last.
#[derive(Debug)]
pub struct Token {
    source: TokenSource,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    token: Option<String>,
    is_current: bool,
    /// A look that is not over: who wanted its answer may have stopped waiting.
    look: Option<JoinHandle<Option<Look>>>,
}

type Look = Result<Option<String>, ConnError>;

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Found(..)")
    }
}

impl Token {
    /// Not looked for yet.
    #[must_use]
    pub fn new(source: TokenSource) -> Self {
        Self { source, found: Mutex::default() }
    }

    /// The token; looks for it where that is due.
    ///
    /// # Errors
    /// [`ConnError::Token`] where it never was found and its file can't be read.
    pub async fn get(&self) -> Result<Option<String>, ConnError> {
        let mut found = self.found.lock().await;
        if !found.is_current {
            let (source, is_known) = (self.source.clone(), found.token.is_some());
            // A file may be a pipe, or far away: the screen must not wait for it.
            let look = move || (!is_known || !source.is_read_once()).then(|| source.find());
            let looked = found.look.get_or_insert_with(|| spawn_blocking(look)).await;
            found.look = None;
            match looked.expect("looking for a token doesn't panic") {
                Some(Ok(token)) => found.token = token,
                Some(Err(error)) if !is_known => return Err(error),
                _ => {}
            }
            found.is_current = true;
        }
        Ok(found.token.clone())
    }

    /// The one that is known may be an earlier one: it is looked for before it is used again.
    pub async fn look_again(&self) {
        self.found.lock().await.is_current = false;
    }

    /// What to tell a person whose token was refused.
    #[must_use]
    pub fn advice(&self) -> String {
        self.source.advice()
    }
}

/// Whether an address is this machine by its name.
fn is_here(address: &Url) -> bool {
    let host = address.host_str().unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| ip.to_canonical());
    // A host that listens everywhere is asked at the address that it prints.
    ip.map_or(host == "localhost", |ip| ip.is_loopback() || ip.is_unspecified())
}

/// Where a host of this user keeps its token files.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    // The host takes no other than an absolute path to this user's own directory, either.
    let own = |path: &PathBuf| {
        path.is_absolute() && path.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own) {
        Some(directory) => directory.join("infer"),
        None => std::env::temp_dir().join(format!("infer-{user}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_over_the_variable_and_that_over_the_default_file() {
        let directory = tempfile::tempdir().unwrap();
        let named = directory.path().join("named");
        std::fs::write(&named, "from-flag\n").unwrap();
        std::fs::write(directory.path().join("admin-8001.token"), "from-default\n").unwrap();
        let source = |file: Option<&Path>, variable: Option<&str>, port| {
            let address = format!("http://127.0.0.1:{port}/").parse().unwrap();
            TokenSource::new(
                file.map(Path::to_owned),
                variable.map(str::to_owned),
                directory.path(),
                &address,
            )
        };
        let find = |source: TokenSource| source.find().unwrap();
        assert_eq!(find(source(Some(&named), Some("v"), 8001)).as_deref(), Some("from-flag"));
        assert_eq!(find(source(None, Some(" v\n"), 8001)).as_deref(), Some("v"));
        assert_eq!(find(source(None, None, 8001)).as_deref(), Some("from-default"));
        assert_eq!(find(source(None, None, 8002)), None);
        assert!(source(None, None, 8002).advice().contains("admin-8002.token"));
    }

    #[test]
    fn the_token_of_a_host_on_this_machine_goes_to_no_other() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("admin-8001.token"), "from-default\n").unwrap();
        let source = |host: &str, variable: Option<&str>| {
            let address = format!("http://{host}:8001/").parse().unwrap();
            TokenSource::new(None, variable.map(str::to_owned), directory.path(), &address)
        };
        for here in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"] {
            assert_eq!(source(here, None).find().unwrap().as_deref(), Some("from-default"), "{here}");
        }
        for elsewhere in ["gpu-box", "192.168.1.7", "localhost.example.org", "[fe80::1]"] {
            let none = source(elsewhere, None);
            assert_eq!(none.find().unwrap(), None, "{elsewhere}");
            assert!(none.advice().contains("127.0.0.1 and localhost alone"), "{}", none.advice());
            assert_eq!(source(elsewhere, Some("given")).find().unwrap().as_deref(), Some("given"));
        }
    }

    #[tokio::test]
    async fn what_can_be_read_once_is_kept_and_what_changes_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let address = "http://gpu-box:8001/".parse().unwrap();
        let token = Token::new(TokenSource::new(Some(file.clone()), None, directory.path(), &address));
        std::fs::write(&file, "").unwrap();
        assert!(token.get().await.unwrap_err().to_string().contains("it is empty"));
        for (written, again, want) in [
            ("first", false, "first"),
            ("second", false, "first"),
            ("second", true, "second"),
            ("", true, "second"),
            ("third", true, "third"),
        ] {
            std::fs::write(&file, written).unwrap();
            if again {
                token.look_again().await;
            }
            assert_eq!(token.get().await.unwrap().as_deref(), Some(want), "{written:?} {again}");
        }
        assert!(!format!("{token:?}").contains("third"), "{token:?}");
    }

    #[tokio::test]
    async fn a_named_pipe_is_read_once_and_waited_for_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let address = "http://gpu-box:8001/".parse().unwrap();
        let token = Token::new(TokenSource::new(Some(pipe.clone()), None, directory.path(), &address));
        for _ in 0..3 {
            let answer = tokio::time::timeout(std::time::Duration::ZERO, token.get()).await;
            assert!(answer.is_err(), "nobody has written yet");
        }
        // Opens for one reader: a second look would take the token from the first, or wait for ever.
        let writer = std::thread::spawn(move || std::fs::write(pipe, "only\n"));
        assert_eq!(token.get().await.unwrap().as_deref(), Some("only"));
        writer.join().unwrap().unwrap();
        token.look_again().await;
        assert_eq!(token.get().await.unwrap().as_deref(), Some("only"));
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error_that_names_it() {
        let address = "http://127.0.0.1:1/".parse().unwrap();
        let source = TokenSource::new(Some("/nonexistent/token".into()), None, Path::new("/"), &address);
        assert!(source.find().unwrap_err().to_string().contains("/nonexistent/token"));
    }
}
