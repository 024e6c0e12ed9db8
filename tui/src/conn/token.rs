//! Finds the admin token.
//!
//! Every connection looks for it again, because a host that restarts makes a new one. The last one found is
//! kept, because a pipe can be read only once; a read that still waits for the pipe's writer is not started a
//! second time. The token is never printed, only where it came from, and the token of a host on this machine
//! is sent to no other machine.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use infer_api::admin::place::{is_this_machine, token_directories, token_file};
use reqwest::Url;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

use super::ConnError;

/// Environment variable that holds the token itself.
pub const TOKEN_VARIABLE: &str = "INFER_ADMIN_TOKEN";
/// Longest token that is read from a file.
const MAX_BYTES: u64 = 4_096;

/// Where to look: the flag's file, else the variable, else the files that hosts on this machine write.
#[derive(Clone, Debug)]
pub struct TokenSource {
    explicit_file: Option<PathBuf>,
    variable: Option<String>,
    /// In order of preference; empty for a host on another machine.
    default_files: Vec<PathBuf>,
}

impl TokenSource {
    /// From the flag, the environment and the admin plane's address.
    #[must_use]
    pub fn from_environment(explicit_file: Option<PathBuf>, address: &Url) -> Self {
        let variable = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
        let directories = token_directories(rustix::process::getuid().as_raw());
        Self::new(explicit_file, variable, &directories, address)
    }

    /// From given places; `directories` are those that may hold a token file, most preferred first.
    #[must_use]
    pub fn new(
        explicit_file: Option<PathBuf>,
        variable: Option<String>,
        directories: &[PathBuf],
        address: &Url,
    ) -> Self {
        let name = token_file(address.port_or_known_default().unwrap_or(80));
        let directories = match is_this_machine(address.host_str().unwrap_or_default()) {
            true => directories,
            false => &[],
        };
        let default_files = directories.iter().map(|directory| directory.join(&name)).collect();
        Self { explicit_file, variable, default_files }
    }

    /// The token; `None` if there is none anywhere, and the host then says whether it needs one.
    ///
    /// # Errors
    /// [`ConnError::Token`] if the flag's file can't be read, or if default files exist and none of them can.
    pub fn find(&self) -> Result<Option<String>, ConnError> {
        match (&self.explicit_file, &self.variable) {
            (Some(path), _) => read(path).map(Some),
            (None, Some(token)) => Ok(Some(token.trim().to_owned())),
            (None, None) => {
                let mut unreadable = None;
                for path in self.default_files.iter().filter(|path| is_there(path)) {
                    match read(path) {
                        Ok(token) => return Ok(Some(token)),
                        Err(error) => unreadable = unreadable.or(Some(error)),
                    }
                }
                unreadable.map_or(Ok(None), Err)
            }
        }
    }

    /// Whether the token can be read only once: a second read of a pipe finds its end, or waits for another
    /// writer.
    fn is_read_once(&self) -> bool {
        let path = self.explicit_file.as_ref();
        path.and_then(|path| path.metadata().ok()).is_some_and(|file| !file.is_file())
    }

    /// What to do after the host has refused the token.
    #[must_use]
    pub fn advice(&self) -> String {
        match (&self.explicit_file, &self.variable, &self.default_files[..]) {
            (Some(path), ..) => format!("the token of --token-file {} is not this host's", path.display()),
            (None, Some(_), _) => format!("the token in {TOKEN_VARIABLE} is not this host's"),
            (None, None, []) => format!(
                "no token found: {TOKEN_VARIABLE} is not set, and the token of a host on this machine is sent only to \
                 127.0.0.1 and localhost"
            ),
            (None, None, files) => match files.iter().find(|file| is_there(file)) {
                Some(file) => format!("the token in {} is not this host's", file.display()),
                None => {
                    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
                    format!(
                        "no token found: {TOKEN_VARIABLE} is not set and there is no {}",
                        files.join(" or ")
                    )
                }
            },
        }
    }
}

fn is_there(path: &Path) -> bool {
    !path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn read(path: &Path) -> Result<String, ConnError> {
    let wrong = |message: String| ConnError::Token { path: path.to_owned(), message };
    let mut token = String::new();
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(MAX_BYTES).read_to_string(&mut token).map_err(|error| wrong(error.to_string()))?;
    match token.trim() {
        "" => Err(wrong("it is empty".to_owned())),
        several if several.contains(char::is_whitespace) => {
            Err(wrong("it must have one word on one line".to_owned()))
        }
        token => Ok(token.to_owned()),
    }
}

/// The token that was found last.
#[derive(Debug)]
pub struct Token {
    source: TokenSource,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    token: Option<String>,
    is_current: bool,
    /// A read in progress; the caller that started it may have stopped waiting.
    look: Option<JoinHandle<Option<Look>>>,
}

type Look = Result<Option<String>, ConnError>;

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Found(..)")
    }
}

impl Token {
    /// Looks for nothing yet.
    #[must_use]
    pub fn new(source: TokenSource) -> Self {
        Self { source, found: Mutex::default() }
    }

    /// The token; looks for it if that is due.
    ///
    /// # Errors
    /// [`ConnError::Token`] if no token has been found yet and its file can't be read.
    pub async fn get(&self) -> Result<Option<String>, ConnError> {
        let mut found = self.found.lock().await;
        if !found.is_current {
            let (source, is_known) = (self.source.clone(), found.token.is_some());
            // The file may be a pipe, or on a slow network disk: the screen must not wait for it.
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

    /// Marks the known token as possibly outdated: the next use looks for it first.
    pub async fn look_again(&self) {
        self.found.lock().await.is_current = false;
    }

    /// What to do after the host has refused the token.
    #[must_use]
    pub fn advice(&self) -> String {
        self.source.advice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_wins_over_variable_which_wins_over_default_file() {
        let directory = tempfile::tempdir().unwrap();
        let named = directory.path().join("named");
        std::fs::write(&named, "from-flag\n").unwrap();
        std::fs::write(directory.path().join("admin-8001.token"), "from-default\n").unwrap();
        let source = |file: Option<&Path>, variable: Option<&str>, port| {
            let address = format!("http://127.0.0.1:{port}/").parse().unwrap();
            TokenSource::new(
                file.map(Path::to_owned),
                variable.map(str::to_owned),
                &[directory.path().to_owned()],
                &address,
            )
        };
        let find = |source: TokenSource| source.find().unwrap();
        assert_eq!(find(source(Some(&named), Some("v"), 8001)).as_deref(), Some("from-flag"));
        assert_eq!(find(source(None, Some(" v\n"), 8001)).as_deref(), Some("v"));
        let several = directory.path().join("several");
        std::fs::write(&several, "one\ntwo\n").unwrap();
        let error = source(Some(&several), None, 8001).find().unwrap_err().to_string();
        assert!(error.contains("one word on one line"), "{error}");
        assert_eq!(find(source(None, None, 8001)).as_deref(), Some("from-default"));
        assert_eq!(find(source(None, None, 8002)), None);
        assert!(source(None, None, 8002).advice().contains("admin-8002.token"));
    }

    #[test]
    fn first_default_file_that_can_be_read_wins() {
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [first, second] =
            directories.each_ref().map(|directory| directory.path().join("admin-8001.token"));
        let find = |host: &str| {
            let address = format!("http://{host}:8001/").parse().unwrap();
            let directories = directories.each_ref().map(|directory| directory.path().to_owned());
            TokenSource::new(None, None, &directories, &address).find()
        };
        assert_eq!(find("localhost").unwrap(), None);
        std::fs::write(&second, "second").unwrap();
        assert_eq!(find("localhost").unwrap().as_deref(), Some("second"));
        // A directory can't be read as a file, whoever runs this; nor can a file of another user.
        std::fs::create_dir(&first).unwrap();
        assert_eq!(find("localhost").unwrap().as_deref(), Some("second"));
        std::fs::remove_file(&second).unwrap();
        assert!(find("localhost").unwrap_err().to_string().contains(first.to_str().unwrap()));
        assert_eq!(find("gpu-box").unwrap(), None, "another machine");
        std::fs::remove_dir(&first).unwrap();
        std::fs::write(&first, "first").unwrap();
        assert_eq!(find("localhost").unwrap().as_deref(), Some("first"));
    }

    #[test]
    fn token_of_a_host_on_this_machine_is_sent_to_no_other_machine() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("admin-8001.token"), "from-default\n").unwrap();
        let source = |host: &str, variable: Option<&str>| {
            let address = format!("http://{host}:8001/").parse().unwrap();
            TokenSource::new(None, variable.map(str::to_owned), &[directory.path().to_owned()], &address)
        };
        assert_eq!(source("localhost", None).find().unwrap().as_deref(), Some("from-default"));
        let none = source("gpu-box", None);
        assert_eq!(none.find().unwrap(), None);
        assert!(none.advice().contains("only to 127.0.0.1 and localhost"), "{}", none.advice());
        assert_eq!(source("gpu-box", Some("given")).find().unwrap().as_deref(), Some("given"));
    }

    #[tokio::test]
    async fn last_token_is_kept_until_it_is_marked_outdated() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let address = "http://gpu-box:8001/".parse().unwrap();
        let token = Token::new(TokenSource::new(Some(file.clone()), None, &[], &address));
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
    async fn named_pipe_is_read_once_by_one_reader() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let address = "http://gpu-box:8001/".parse().unwrap();
        let token = Token::new(TokenSource::new(Some(pipe.clone()), None, &[], &address));
        for _ in 0..3 {
            let answer = tokio::time::timeout(std::time::Duration::ZERO, token.get()).await;
            assert!(answer.is_err(), "nothing has been written yet");
        }
        // Opens for one reader: a second read would take the token from the first, or wait for ever.
        let writer = std::thread::spawn(move || std::fs::write(pipe, "only\n"));
        assert_eq!(token.get().await.unwrap().as_deref(), Some("only"));
        writer.join().unwrap().unwrap();
        token.look_again().await;
        assert_eq!(token.get().await.unwrap().as_deref(), Some("only"));
    }

    #[test]
    fn missing_named_file_is_an_error_with_its_path() {
        let address = "http://127.0.0.1:1/".parse().unwrap();
        let source = TokenSource::new(Some("/nonexistent/token".into()), None, &[], &address);
        assert!(source.find().unwrap_err().to_string().contains("/nonexistent/token"));
    }
}
