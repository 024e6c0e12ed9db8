//! The host's own admin token: from `INFER_ADMIN_TOKEN`, or made at start and kept in a file that only this user can
//! read.
//!
//! [`place`] says where the file may be. The host writes to the first of those directories that it can make
//! private; clients on the same machine find the file by the admin plane's port.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use infer_api::admin::place;
use subtle::ConstantTimeEq;

use crate::config::Environment;

/// Environment variable that holds a token, for server and clients.
pub const VARIABLE: &str = "INFER_ADMIN_TOKEN";
/// Longest token that is read from a file.
const MAX_BYTES: u64 = 4_096;

/// A bearer token, hidden from `Debug`.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A given token; at least eight visible characters.
    pub fn given(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains(char::is_whitespace) {
            return Err("must be one word on one line".to_owned());
        }
        if text.len() < 8 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("must have at least 8 visible ASCII characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    /// A fresh token of 256 random bits.
    pub fn fresh() -> io::Result<Self> {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no randomness: {e}")))?;
        Ok(Self(bytes.iter().map(|b| format!("{b:02x}")).collect()))
    }

    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `given` is the token, compared in constant time.
    pub fn matches(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

/// A token file; removed when dropped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    token: Token,
}

impl TokenFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the token of the admin plane at `port`, readable by this user alone. The error names every file
    /// tried.
    pub fn write(port: u16, token: &Token) -> io::Result<Self> {
        Self::write_to_first(&files(port), token)
    }

    fn write_to_first(files: &[PathBuf], token: &Token) -> io::Result<Self> {
        let mut wrong = Vec::new();
        for path in files {
            match write_private(path, token) {
                Ok(()) => return Ok(Self { path: path.clone(), token: token.clone() }),
                Err(error) => wrong.push(format!("{}: {error}", path.display())),
            }
        }
        Err(io::Error::other(wrong.join("; ")))
    }
}

fn write_private(path: &Path, token: &Token) -> io::Result<()> {
    make_private_dir(path.parent().expect("the path has a directory"))?;
    // A host that was killed leaves its file. Creating a new one refuses links and files of other users.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(token.0.as_bytes()).inspect_err(|_| {
        // The disk is full: leave no partial token behind.
        let _ = std::fs::remove_file(path);
    })
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // The file may belong to another host, which has taken over the port.
        if std::fs::read_to_string(&self.path).is_ok_and(|found| self.token.matches(&found)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The token for a host on this machine: the variable's, else that of the first file for `port` that can be
/// read.
pub fn find(port: u16) -> Result<Token, String> {
    match given()? {
        Some(token) => Ok(token),
        None => read_first(&files(port)),
    }
}

fn read_first(files: &[PathBuf]) -> Result<Token, String> {
    let mut wrong = Vec::new();
    for path in files {
        let shown = path.display();
        match text_of(path) {
            Ok(text) => return Token::given(&text).map_err(|error| format!("{shown}: {error}")),
            Err(error) => wrong.push(format!("{shown} ({error})")),
        }
    }
    let files = wrong.join(" and ");
    Err(format!(
        "no admin token: {VARIABLE} is not set, can't read {files}; a host logs the path of its token file at its \
         start: name it with --token-file"
    ))
}

/// The token in a file.
pub fn read(path: &Path) -> Result<Token, String> {
    let shown = path.display();
    let text = text_of(path).map_err(|error| format!("can't read {shown}: {error}"))?;
    Token::given(&text).map_err(|error| format!("{shown}: {error}"))
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The variable's token.
pub fn given() -> Result<Option<Token>, String> {
    let environment = Environment::of_process();
    let text = environment.get(VARIABLE).map_err(|wrong| wrong.to_string())?;
    text.map(Token::given).transpose().map_err(|wrong| format!("{VARIABLE}: {wrong}"))
}

/// Files that may hold the token of the admin plane at `port`, most preferred first.
pub fn files(port: u16) -> Vec<PathBuf> {
    let directories = place::token_directories(rustix::process::getuid().as_raw());
    directories.into_iter().map(|directory| directory.join(place::token_file(port))).collect()
}

/// Creates the directory, or makes sure that an existing one belongs to this user alone: in a shared
/// temporary directory another user could have created it first.
fn make_private_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(false).mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = std::fs::symlink_metadata(dir)?;
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() {
        return Err(io::Error::other(format!("{} is not this user's directory", dir.display())));
    }
    if found.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_match_only_themselves() {
        let token = Token::fresh().unwrap();
        assert!(token.matches(token.as_str()));
        assert!(!token.matches(""));
        assert!(!token.matches(&token.as_str()[1..]));
        assert_ne!(token.as_str(), Token::fresh().unwrap().as_str());
        assert!(Token::given("short").is_err());
        for several in ["two words", "01234567\n89abcdef\n"] {
            assert_eq!(Token::given(several).unwrap_err(), "must be one word on one line", "{several}");
        }
        assert!(!format!("{token:?}").contains(token.as_str()));
    }

    #[test]
    fn file_and_its_directory_are_private() {
        let (home, token) = (tempfile::tempdir().unwrap(), Token::fresh().unwrap());
        let file = TokenFile::write_to_first(&[home.path().join("infer/admin-1.token")], &token).unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(file.path()), 0o600);
        assert_eq!(mode(file.path().parent().unwrap()), 0o700);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), token.as_str());
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn dropped_host_keeps_the_file_of_its_successor() {
        let [old, new] = [Token::fresh().unwrap(), Token::fresh().unwrap()];
        let home = tempfile::tempdir().unwrap();
        let files = [home.path().join("infer/admin-2.token")];
        let before = TokenFile::write_to_first(&files, &old).unwrap();
        let after = TokenFile::write_to_first(&files, &new).unwrap();
        drop(before);
        assert_eq!(std::fs::read_to_string(after.path()).unwrap(), new.as_str());
    }

    #[test]
    fn unusable_directory_is_skipped_by_writer_and_reader() {
        let home = tempfile::tempdir().unwrap();
        let [first, second] = ["run/infer", "tmp"].map(|name| home.path().join(name).join("admin-3.token"));
        std::fs::write(home.path().join("run"), "not a directory").unwrap();
        let files = [first.clone(), second.clone()];
        let missing = read_first(&files).unwrap_err();
        assert!(files.iter().all(|file| missing.contains(file.to_str().unwrap())), "{missing}");
        let token = Token::fresh().unwrap();
        let file = TokenFile::write_to_first(&files, &token).unwrap();
        assert_eq!(file.path(), second);
        assert!(token.matches(read_first(&files).unwrap().as_str()));
        drop(file);
        std::fs::remove_file(home.path().join("run")).unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        assert_eq!(TokenFile::write_to_first(&files, &token).unwrap().path(), first);
    }
}
