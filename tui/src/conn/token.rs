//! Where the admin token is looked for. It is looked up again at every connection, because a host that
//! restarts makes a new one; it is never printed, only where it came from.

use std::path::{Path, PathBuf};

use super::ConnError;

/// Environment variable that holds the token itself.
pub const TOKEN_VARIABLE: &str = "INFER_ADMIN_TOKEN";

/// The places, in the order in which they count.
#[derive(Clone, Debug)]
pub struct TokenSource {
    explicit_file: Option<PathBuf>,
    variable: Option<String>,
    default_file: PathBuf,
}

impl TokenSource {
    /// From the flag, the environment and the admin plane's port.
    #[must_use]
    pub fn from_environment(explicit_file: Option<PathBuf>, port: u16) -> Self {
        let variable = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
        Self::new(explicit_file, variable, &runtime_directory(), port)
    }

    /// From given places.
    #[must_use]
    pub fn new(
        explicit_file: Option<PathBuf>,
        variable: Option<String>,
        directory: &Path,
        port: u16,
    ) -> Self {
        Self { explicit_file, variable, default_file: directory.join(format!("admin-{port}.token")) }
    }

    /// The token; `None` where no place has one, so that the host says whether it wants one.
    ///
    /// # Errors
    /// [`ConnError::Token`] where a file is there or was named but can't be read.
    pub fn find(&self) -> Result<Option<String>, ConnError> {
        let (path, named) = match (&self.explicit_file, &self.variable) {
            (Some(path), _) => (path, true),
            (None, Some(token)) => return Ok(Some(token.trim().to_owned())),
            (None, None) => (&self.default_file, false),
        };
        match std::fs::read_to_string(path) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => Ok(None),
            Err(error) => Err(ConnError::Token { path: path.clone(), message: error.to_string() }),
        }
    }

    /// What to tell a person whose token was refused.
    #[must_use]
    pub fn advice(&self) -> String {
        match (&self.explicit_file, &self.variable) {
            (Some(path), _) => format!("the token of --token-file {} is not this host's", path.display()),
            (None, Some(_)) => format!("the token in {TOKEN_VARIABLE} is not this host's"),
            (None, None) if self.default_file.exists() => {
                format!("the token in {} is not this host's", self.default_file.display())
            }
            (None, None) => format!(
                "no token found: {TOKEN_VARIABLE} is not set and there is no {}",
                self.default_file.display()
            ),
        }
    }
}

/// Where a host of this user keeps its token files.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("infer"),
        None => std::env::temp_dir().join(format!("infer-{}", rustix::process::getuid().as_raw())),
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
            TokenSource::new(file.map(Path::to_owned), variable.map(str::to_owned), directory.path(), port)
        };
        let find = |source: TokenSource| source.find().unwrap();
        assert_eq!(find(source(Some(&named), Some("v"), 8001)).as_deref(), Some("from-flag"));
        assert_eq!(find(source(None, Some(" v\n"), 8001)).as_deref(), Some("v"));
        assert_eq!(find(source(None, None, 8001)).as_deref(), Some("from-default"));
        assert_eq!(find(source(None, None, 8002)), None);
        assert!(source(None, None, 8002).advice().contains("admin-8002.token"));
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error_that_names_it() {
        let source = TokenSource::new(Some("/nonexistent/token".into()), None, Path::new("/"), 1);
        assert!(source.find().unwrap_err().to_string().contains("/nonexistent/token"));
    }
}
