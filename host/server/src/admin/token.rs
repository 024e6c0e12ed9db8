//! The admin token: from `INFER_ADMIN_TOKEN`, or made at start and kept where only this user reads.
//!
//! The file is `<runtime dir>/infer/admin-<port>.token`, where the runtime dir is `$XDG_RUNTIME_DIR`;
//! without one that is this user's it is `<temp dir>/infer-<uid>/admin-<port>.token`, in a directory that must
//! belong to this user alone. Clients on the same machine find it by the admin plane's port.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

use crate::config::Environment;

/// Environment variable that holds a token, for server and clients.
pub const VARIABLE: &str = "INFER_ADMIN_TOKEN";
/// Longest token that is read from a file.
const MAX_BYTES: u64 = 4_096;

/// A bearer token. Not shown by `Debug`.
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

    /// As text, to hand it on.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `given` is the token; takes the same time wherever they differ.
    pub fn matches(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

/// A token file; removed when the server goes.
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

    /// Writes the token of the admin plane at `port`, readable by this user alone. Errors name the file.
    pub fn write(port: u16, token: &Token) -> io::Result<Self> {
        let path = path(port);
        let shown = path.display().to_string();
        Self::write_to(path, token).map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))
    }

    fn write_to(path: PathBuf, token: &Token) -> io::Result<Self> {
        make_private_dir(path.parent().expect("the path has a directory"))?;
        // A leftover of a host that was killed; creating anew refuses links and foreign files.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(error) = file.write_all(token.0.as_bytes()) {
            // The disk is full: nothing is left of it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self { path, token: token.clone() })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A host that took over the port may have written its own.
        if std::fs::read_to_string(&self.path).is_ok_and(|found| self.token.matches(&found)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The token for a host on this machine: the variable's, else the file's of the admin plane at `port`.
pub fn find(port: u16) -> Result<Token, String> {
    if let Some(token) = given()? {
        return Ok(token);
    }
    let path = path(port);
    let shown = path.display();
    let mut text = String::new();
    File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)).map_err(|e| {
        format!(
            "no admin token: {VARIABLE} is not set and {shown} can't be read ({e}); is a host running there?"
        )
    })?;
    Token::given(&text).map_err(|wrong| format!("{shown}: {wrong}"))
}

/// The variable's token.
pub fn given() -> Result<Option<Token>, String> {
    let environment = Environment::of_process().map_err(|wrong| wrong.to_string())?;
    let token = environment.get(VARIABLE).map(Token::given).transpose();
    token.map_err(|wrong| format!("{VARIABLE}: {wrong}"))
}

/// Where the token of the admin plane at `port` is kept.
pub fn path(port: u16) -> PathBuf {
    directory().join(format!("admin-{port}.token"))
}

fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    // Whoever became another user carries a variable that names the first one's directory, or one that has gone.
    let own = |dir: &PathBuf| {
        dir.is_absolute() && std::fs::metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == user)
    };
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own) {
        Some(dir) => dir.join("infer"),
        None => std::env::temp_dir().join(format!("infer-{user}")),
    }
}

/// Makes the directory, or makes sure that an existing one is this user's alone: in a shared temporary
/// directory somebody else could have put one there first.
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
        assert!(!format!("{token:?}").contains(token.as_str()));
    }

    #[test]
    fn the_file_and_its_directory_are_private() {
        let token = Token::fresh().unwrap();
        let file = TokenFile::write(1, &token).unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(file.path()), 0o600);
        assert_eq!(mode(file.path().parent().unwrap()), 0o700);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), token.as_str());
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_host_that_goes_leaves_the_file_of_the_one_that_took_over() {
        let [old, new] = [Token::fresh().unwrap(), Token::fresh().unwrap()];
        let before = TokenFile::write(2, &old).unwrap();
        let after = TokenFile::write(2, &new).unwrap();
        drop(before);
        assert_eq!(std::fs::read_to_string(after.path()).unwrap(), new.as_str());
    }
}
