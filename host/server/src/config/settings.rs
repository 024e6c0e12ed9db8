//! Settings as text, each with where it came from: flags win over the environment, which wins over the file.
//!
//! Deliberately absent: what a value means, which `validate` parses once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::document::{Document, Entry, near, read_text};
use super::environment::{Environment, environment_name};
use super::table::{SETTINGS, known_keys};

/// Settings as text with their origins. Flags win over the environment, which wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (Origin, String)>,
}

/// Where a value came from; every error about the value names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--key`.
    Flag(&'static str),
    /// `INFER_KEY`.
    Environment(String),
    /// A key of a file, at a line.
    File(PathBuf, usize, String),
    /// Not given.
    Default(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) | Self::Default(key) => write!(f, "--{key}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path, line, key) => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// What a file may contain.
#[derive(Clone, Copy)]
enum Entries {
    /// Only settings.
    AllKnown,
    /// Anything; what is no setting is skipped.
    Any,
}

impl Settings {
    /// Merges the three sources. `file` is the one of `--config`; without it, `infer.toml` is read if it
    /// exists.
    pub fn gather(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        environment.refuse_misspelt()?;
        Self::merge(flags, environment, file, Entries::AllKnown)
    }

    /// Merges the sources of a host that is running already. Its file may have been edited since, so entries
    /// that would fail its next start are skipped.
    pub fn of_running(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        Self::merge(flags, environment, file, Entries::Any)
    }

    fn merge(
        flags: &BTreeMap<&'static str, String>,
        environment: &Environment,
        file: Option<&Path>,
        entries: Entries,
    ) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        let named = match file {
            Some(file) => Some(file.to_path_buf()),
            None => environment.get("INFER_CONFIG")?.map(PathBuf::from),
        };
        match named {
            Some(path) => all.read_file(&path, entries)?,
            None if Path::new("infer.toml").is_file() => all.read_file(Path::new("infer.toml"), entries)?,
            None => {}
        }
        for setting in SETTINGS {
            let name = environment_name(setting.key);
            if let Some(value) = environment.get(&name)? {
                all.values.insert(setting.key, (Origin::Environment(name.clone()), value.to_owned()));
            }
            if let Some(value) = flags.get(setting.key) {
                all.values.insert(setting.key, (Origin::Flag(setting.key), value.clone()));
            }
        }
        Ok(all)
    }

    /// The text of a setting and where it came from, if it was given.
    pub fn get(&self, key: &'static str) -> Option<(&Origin, &str)> {
        debug_assert!(SETTINGS.iter().any(|s| s.key == key), "unknown setting {key}");
        self.values.get(key).map(|(origin, value)| (origin, value.as_str()))
    }

    /// Where a setting came from; its flag if it was not given.
    pub fn origin(&self, key: &'static str) -> Origin {
        self.values.get(key).map_or(Origin::Default(key), |(origin, _)| origin.clone())
    }

    /// A message that begins with a setting's flag, with the place in its stead where the setting was given: a file's line
    /// or a variable.
    pub fn located(&self, message: String) -> String {
        let named = message.strip_prefix("--").and_then(|rest| rest.split_once(": "));
        let given = named.and_then(|(key, wrong)| Some((&self.values.get(key)?.0, wrong)));
        match given {
            Some((origin @ (Origin::File(..) | Origin::Environment(_)), wrong)) => {
                format!("{origin}: {wrong}")
            }
            _ => message,
        }
    }

    fn read_file(&mut self, path: &Path, entries: Entries) -> Result<(), ConfigError> {
        let shown = path.display();
        let text = read_text(path).map_err(|e| {
            ConfigError(format!("--config: can't read {shown}: {e}; give the path of a readable TOML file"))
        })?;
        self.take_text(path, &text, entries)
    }

    /// The settings in the text of a file; `path` names the file in errors.
    pub fn of_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut all = Self::default();
        all.take_text(path, text, Entries::AllKnown)?;
        Ok(all)
    }

    fn take_text(&mut self, path: &Path, text: &str, entries: Entries) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let document = Document::parse(&shown, text).map_err(ConfigError)?;
        for entry in document.entries() {
            match (self.take_entry(path, &document, &entry), entries) {
                (Err(wrong), Entries::AllKnown) => return Err(ConfigError(wrong)),
                (Ok(()), _) | (Err(_), Entries::Any) => {}
            }
        }
        Ok(())
    }

    /// Takes the setting of an entry, or returns what is wrong with it.
    fn take_entry(&mut self, path: &Path, document: &Document, entry: &Entry) -> Result<(), String> {
        let (key, text) = read_entry(document, entry)?;
        // TOML refuses a key that is there twice, but not with dashes and with underscores.
        if let Some((Origin::File(_, line, other), _)) = self.values.get(key) {
            let message = format!("line {line} has this setting as `{other}`; keep one of the two");
            return Err(document.wrong(entry, message));
        }
        let origin = Origin::File(path.to_path_buf(), document.line(entry), entry.key.clone());
        self.values.insert(key, (origin, text));
        Ok(())
    }
}

/// The value of a setting, or its default; an error names where the value was given.
pub(super) fn read<T>(
    all: &Settings,
    key: &'static str,
    default: T,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    match all.get(key) {
        None => Ok(default),
        Some((origin, text)) => parse(text).map_err(|wrong| ConfigError(format!("{origin}: {wrong}"))),
    }
}

/// The setting of an entry and its text, or what is wrong with it.
fn read_entry(document: &Document, entry: &Entry) -> Result<(&'static str, String), String> {
    let Some(setting) = SETTINGS.iter().find(|s| s.key == entry.key.replace('_', "-")) else {
        let meant = near(&entry.key, &known_keys()).map_or_else(
            || "; `infer config print` lists the keys".to_owned(),
            |meant| format!("; did you mean `{meant}`?"),
        );
        return Err(document.wrong(entry, format!("unknown key{meant}")));
    };
    let list = if setting.repeats { entry.texts() } else { None };
    let text = list.map(|texts| texts.join(",")).or_else(|| entry.text()).ok_or_else(|| {
        let list = if setting.repeats { " or a list of strings" } else { "" };
        let message = format!("expected a string, a number or a boolean{list}, found {}", entry.kind());
        document.wrong(entry, message)
    })?;
    Ok((setting.key, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_environment_which_wins_over_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("infer.toml");
        std::fs::write(&path, "port = 1\nmax_batch_size = 2\nprefix-caching = false\n").unwrap();
        let variables = [("INFER_PORT", "5"), ("INFER_SEED", "5"), ("INFER_HOST", "")];
        let environment = Environment::new(variables.map(|(name, value)| (name.into(), value.into())));
        let flags = BTreeMap::from([("port", "9".to_owned())]);
        let all = Settings::gather(&flags, &environment, Some(&path)).unwrap();
        assert_eq!(all.get("host"), None, "an empty variable counts as absent");
        assert_eq!(all.get("port").unwrap(), (&Origin::Flag("port"), "9"));
        assert_eq!(all.get("seed").unwrap().1, "5");
        assert_eq!(all.get("max-batch-size").unwrap().1, "2");
        assert_eq!(all.get("prefix-caching").unwrap().1, "off");
        assert_eq!(all.origin("seed").to_string(), "INFER_SEED");
        assert!(all.origin("max-batch-size").to_string().ends_with("infer.toml:2: max_batch_size"));
    }

    #[test]
    fn errors_about_a_flag_are_located_where_the_setting_was_given() {
        let mut all =
            Settings::of_text(Path::new("x.toml"), "port = 1\nscheduler = 'a'\ntls_cert = 'b'\n").unwrap();
        all.values.insert("host", (Origin::Environment("INFER_HOST".to_owned()), "h".to_owned()));
        all.values.insert("admin", (Origin::Flag("admin"), "h:1".to_owned()));
        for (message, expected) in [
            (
                "--scheduler: there is no `a`: see --port: x",
                "x.toml:2: scheduler: there is no `a`: see --port: x",
            ),
            ("--tls-cert: b: not found", "x.toml:3: tls_cert: b: not found"),
            ("--host: can't listen", "INFER_HOST: can't listen"),
            ("--admin: can't listen", "--admin: can't listen"),
            ("--admission: unknown", "--admission: unknown"),
            ("the port: in use", "the port: in use"),
            ("--port is in use", "--port is in use"),
        ] {
            assert_eq!(all.located(message.to_owned()), expected);
        }
    }

    #[test]
    fn file_that_is_no_text_is_called_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, b"port = 1\n\xff").unwrap();
        let error =
            Settings::gather(&BTreeMap::new(), &Environment::default(), Some(&path)).unwrap_err().to_string();
        assert!(error.contains("x.toml: it is no text: byte 10 is not UTF-8; "), "{error}");
    }

    #[test]
    fn unknown_key_of_the_file_is_named_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, "\nmax-batch-sise = 2\n").unwrap();
        let error =
            Settings::gather(&BTreeMap::new(), &Environment::default(), Some(&path)).unwrap_err().to_string();
        assert!(
            error.contains("x.toml:2: max-batch-sise: unknown key; did you mean `max-batch-size`?"),
            "{error}"
        );
    }

    #[test]
    fn settings_with_several_values_take_a_list() {
        let of_text = |text: &str| Settings::of_text(Path::new("x.toml"), text);
        for text in ["lora = ['a=x', 'b=y']\n", "lora = 'a=x,b=y'\n"] {
            assert_eq!(of_text(text).unwrap().get("lora").unwrap().1, "a=x,b=y", "{text}");
        }
        assert_eq!(of_text("lora = []\n").unwrap().get("lora").unwrap().1, "");
        let origins = of_text("allowed-origins = ['https://a.org', 'https://b.org']\n").unwrap();
        assert_eq!(origins.get("allowed-origins").unwrap().1, "https://a.org,https://b.org");
        for text in ["lora = ['a=x', 3]\n", "lora = {a = 'x'}\n", "served-model-name = ['a', 'b']\n"] {
            let error = of_text(text).unwrap_err().to_string();
            assert!(error.starts_with("x.toml:1: ") && error.contains("expected a string"), "{error}");
        }
    }

    #[test]
    fn setting_that_a_file_has_twice_is_refused_however_it_is_spelt() {
        let of_text = |text: &str| Settings::of_text(Path::new("x.toml"), text);
        let error = of_text("drain-timeout = 60\nport = 1\ndrain_timeout = 900\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "x.toml:3: drain_timeout: line 1 has this setting as `drain-timeout`; keep one of the two"
        );
        assert!(of_text("drain_timeout = 60\nport = 1\n").is_ok());
    }
}
