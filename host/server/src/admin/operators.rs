//! Operators: who may use the admin plane, and for what.
//!
//! The host's own token (`token`) is that of the operator `admin`, who may do everything. The file of `--operators` names
//! further ones, with digests of their tokens as a tenants file has them of keys:
//!
//! ```toml
//! [operators.ana]
//! role = "viewer"              # sees everything but text of prompts; `operator` may also change everything
//! tokens = ["sha256:..."]      # from `infer keys hash`; list two while one replaces the other
//! ```
//! Errors name the line and the key. A reload that takes a token away also ends the streams that it has open.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use infer_api::admin::OperatorInfo;
use tokio::sync::watch;

use super::token::{Token, VARIABLE};
use crate::config::{Config, ConfigError, Document, Entry, read_text};
use crate::engine::By;
use crate::tenants::{self, KeyDigest};

/// The operator with the host's own token.
const OWN: &str = "admin";
/// Most tokens of a file. Every request is compared with all of them.
const MAX_TOKENS: usize = 1_024;
const KEYS: [&str; 2] = ["role", "tokens"];

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See the host's state, but change nothing and read no text of prompts.
    Viewer,
    /// Everything.
    Operator,
}

impl Role {
    const ALL: [Self; 2] = [Self::Viewer, Self::Operator];

    /// The name in the file and in responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// An operator with one of the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// For the log and the history of policies.
    pub name: String,
    /// What the operator may do.
    pub role: Role,
    /// `None` for the host's own token.
    token: Option<KeyDigest>,
}

/// An operator at an address, who asks for something.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Who.
    pub operator: Arc<Operator>,
    /// Where from; a proxy's address, if there is one.
    pub peer: SocketAddr,
}

impl Caller {
    /// As the engine notes it with a change.
    pub fn by(&self) -> By {
        By { operator: self.operator.name.clone(), peer: self.peer }
    }

    /// As consoles see it.
    pub fn info(&self) -> OperatorInfo {
        OperatorInfo { name: self.operator.name.clone(), role: self.operator.role.name().to_owned() }
    }
}

/// All operators.
#[derive(Debug)]
pub struct Operators {
    own: Arc<Operator>,
    token: Token,
    file: Option<PathBuf>,
    /// Those of the file, one for each token.
    listed: watch::Sender<Vec<Arc<Operator>>>,
}

impl Operators {
    /// Takes the host's own token, and reads the file of `--operators`.
    ///
    /// # Errors
    /// Names what is wrong with the file.
    pub fn open(config: &Config, token: Token) -> Result<Self, ConfigError> {
        let own = Operator { name: OWN.to_owned(), role: Role::Operator, token: None };
        let file = config.operators.clone();
        let all = Self { own: Arc::new(own), token, file, listed: watch::Sender::new(Vec::new()) };
        all.reload().map_err(|wrong| ConfigError(format!("--operators: {wrong}")))?;
        Ok(all)
    }

    /// Whether there is a file to reload.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Number of tokens in the file.
    pub fn token_count(&self) -> usize {
        self.listed.borrow().len()
    }

    /// Reloads the file. On an error nothing changes.
    pub fn reload(&self) -> Result<(), String> {
        let Some(path) = &self.file else { return Ok(()) };
        let fresh = read(path)?;
        let own = KeyDigest::of(self.token.as_str());
        // Otherwise the role of its owner would depend on which of the two is found.
        if let Some(twice) = fresh.iter().find(|operator| operator.token == Some(own)) {
            let shown = path.display();
            return Err(format!("{shown}: `{}` has the host's own token ({VARIABLE})", twice.name));
        }
        self.listed.send_replace(fresh.into_iter().map(Arc::new).collect());
        Ok(())
    }

    /// The operator with a token. Always compares all tokens in constant time.
    pub fn find(&self, given: &str) -> Option<Arc<Operator>> {
        let digest = KeyDigest::of(given);
        let mut found = self.token.matches(given).then(|| Arc::clone(&self.own));
        for operator in self.listed.borrow().iter() {
            if operator.token.as_ref().is_some_and(|token| token.matches(&digest)) {
                found = Some(Arc::clone(operator));
            }
        }
        found
    }

    /// Completes once a reload has taken the operator's token or role away.
    pub async fn dismissed(&self, operator: &Operator) {
        let is_gone = |listed: &Vec<Arc<Operator>>| {
            operator.token.is_some() && !listed.iter().any(|other| **other == *operator)
        };
        let mut listed = self.listed.subscribe();
        // Fails only if the sender is gone, which `self` holds.
        let _ = listed.wait_for(is_gone).await;
    }
}

/// Reads a file of operators.
fn read(path: &Path) -> Result<Vec<Operator>, String> {
    let shown = path.display().to_string();
    let text = read_text(path).map_err(|e| format!("can't read {shown}: {e}"))?;
    let all = parse(&shown, &text)?;
    // A file that is just being written is often empty.
    if all.is_empty() {
        return Err(format!(
            "{shown} has no tokens; `infer keys hash` prints the digest of one, and without --operators only the \
             host's own token is accepted"
        ));
    }
    Ok(all)
}

/// Parses a file's text; `shown` names the file in errors.
pub fn parse(shown: &str, text: &str) -> Result<Vec<Operator>, String> {
    let document = Document::parse(shown, text)?;
    let mut all: Vec<Operator> = Vec::new();
    for top in document.entries() {
        if top.key != "operators" {
            let near = document.near(&top.key, &["operators"]);
            return Err(document.wrong(&top, format!("unknown key{near}")));
        }
        for entry in document.table(&top)? {
            for operator in operators(&document, &entry)? {
                if let Some(other) = all.iter().find(|other| other.token == operator.token) {
                    let message = format!("the token belongs to `{}` already", other.name);
                    return Err(document.wrong(&entry, message));
                }
                all.push(operator);
            }
        }
    }
    if all.len() > MAX_TOKENS {
        return Err(format!("{shown}: {} tokens; the limit is {MAX_TOKENS}", all.len()));
    }
    Ok(all)
}

/// One operator for each of the tokens in a table.
fn operators(document: &Document<'_>, entry: &Entry<'_>) -> Result<Vec<Operator>, String> {
    let wrong = |message: String| document.wrong(entry, message);
    tenants::check_form("an operator's name", &entry.key).map_err(wrong)?;
    if entry.key.eq_ignore_ascii_case(OWN) {
        return Err(wrong(format!("`{OWN}` is who has the host's own token; choose another name")));
    }
    let (mut role, mut tokens) = (None, None);
    for field in document.table(entry)? {
        match field.key.as_str() {
            "role" => role = Some(role_of(document, &field)?),
            "tokens" => tokens = Some(tenants::digests(document, &field)?),
            other => {
                let near = document.near(other, &KEYS);
                return Err(document.wrong(&field, format!("unknown key{near}")));
            }
        }
    }
    let role = role.ok_or_else(|| wrong("needs a `role`, `viewer` or `operator`".to_owned()))?;
    let tokens = tokens.ok_or_else(|| wrong("needs `tokens`, a list of digests".to_owned()))?;
    // Of a digest that is there twice, one is enough.
    let unique: BTreeMap<String, KeyDigest> =
        tokens.iter().map(|token| (token.to_string(), *token)).collect();
    let operator = |token| Operator { name: entry.key.clone(), role, token: Some(token) };
    Ok(unique.into_values().map(operator).collect())
}

fn role_of(document: &Document<'_>, field: &Entry<'_>) -> Result<Role, String> {
    let text = field.text().unwrap_or_default();
    let role = Role::ALL.into_iter().find(|role| role.name() == text);
    role.ok_or_else(|| document.wrong(field, "expected `viewer` or `operator`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS_OWN: &str = "the-hosts-own-token";

    fn table(name: &str, role: &str, tokens: &[&str]) -> String {
        let tokens: Vec<_> = tokens.iter().map(|token| format!("\"{}\"", KeyDigest::of(token))).collect();
        format!("[operators.{name}]\nrole = \"{role}\"\ntokens = [{}]\n", tokens.join(", "))
    }

    fn open(path: &Path) -> Result<Operators, String> {
        let config = Config { operators: Some(path.to_owned()), ..Config::default() };
        Operators::open(&config, Token::given(HOSTS_OWN).unwrap()).map_err(|error| error.to_string())
    }

    fn found(operators: &Operators, token: &str) -> Option<(String, Role)> {
        operators.find(token).map(|operator| (operator.name.clone(), operator.role))
    }

    #[test]
    fn tokens_lead_to_their_owners_also_after_a_reload_and_a_bad_file_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: String| std::fs::write(file.path(), text).unwrap();
        write(table("ana", "viewer", &["a1", "a2", "a2"]) + &table("bo", "operator", &["b"]));
        let operators = open(file.path()).unwrap();
        let (ana, bo) = (Some(("ana".to_owned(), Role::Viewer)), Some(("bo".to_owned(), Role::Operator)));
        let own = Some(("admin".to_owned(), Role::Operator));
        assert_eq!((found(&operators, "a1"), found(&operators, "a2")), (ana.clone(), ana));
        assert_eq!((found(&operators, "b"), found(&operators, HOSTS_OWN)), (bo.clone(), own.clone()));
        assert_eq!((found(&operators, "c"), found(&operators, ""), operators.token_count()), (None, None, 3));

        for (text, part) in [
            (String::new(), " has no tokens; "),
            ("[operators.bo]\nrole = 3\n".to_owned(), ":2: operators.bo.role: expected `viewer`"),
            (table("eve", "viewer", &[HOSTS_OWN]), ": `eve` has the host's own token"),
        ] {
            write(text);
            let error = operators.reload().unwrap_err();
            assert!(error.contains(part) && !error.contains(HOSTS_OWN), "{error}");
            assert_eq!((found(&operators, "b"), operators.token_count()), (bo.clone(), 3));
        }

        write(table("bo", "viewer", &["b"]));
        operators.reload().unwrap();
        assert_eq!(found(&operators, "b"), Some(("bo".to_owned(), Role::Viewer)));
        assert_eq!((found(&operators, "a1"), found(&operators, HOSTS_OWN)), (None, own));
    }

    #[tokio::test]
    async fn who_loses_the_token_or_the_role_is_dismissed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: String| std::fs::write(file.path(), text).unwrap();
        write(table("ana", "viewer", &["a1", "a2"]) + &table("bo", "operator", &["b"]));
        let operators = open(file.path()).unwrap();
        let [a1, a2, b, own] = ["a1", "a2", "b", HOSTS_OWN].map(|token| operators.find(token).unwrap());
        write(table("ana", "viewer", &["a2"]) + &table("bo", "viewer", &["b"]));
        operators.reload().unwrap();
        for (operator, is_gone) in [(a1, true), (a2, false), (b, true), (own, false)] {
            let mut dismissed = std::pin::pin!(operators.dismissed(&operator));
            assert_eq!(futures_util::poll!(dismissed.as_mut()).is_ready(), is_gone, "{operator:?}");
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        let twice = table("a", "viewer", &["k"]) + &table("b", "viewer", &["k"]);
        let [reserved, alike] = ["admin", "Admin"].map(|name| table(name, "viewer", &["k"]));
        let cases = [
            ("[operator.a]", "f:1: operator: unknown key; did you mean `operators`?"),
            ("[operators.a]\nrules = 2", "f:2: operators.a.rules: unknown key"),
            (
                "[operators.a]\nrole = \"owner\"\ntokens = []",
                "f:2: operators.a.role: expected `viewer` or `op",
            ),
            ("[operators.a]\ntokens = []", "f:1: operators.a: needs a `role`, `viewer` or `operator`"),
            ("\n[operators.a]\nrole = \"viewer\"", "f:2: operators.a: needs `tokens`"),
            ("[operators.a]\ntokens = 3", "f:2: operators.a.tokens: expected a list of digests"),
            ("[operators.a]\ntokens = [\n  \"hunter2\",\n]", "f:3: operators.a.tokens: expected `sha256:`"),
            ("[operators.\"a b\"]", "f:1: operators.a b: an operator's name must"),
            (reserved.as_str(), "f:1: operators.admin: `admin` is who has the host's own token"),
            (alike.as_str(), "f:1: operators.Admin: `admin` is who has the host's own token"),
            ("operators = 3", "f:1: operators: expected a table"),
            ("[operators.a", "f:1: "),
            (twice.as_str(), "f:4: operators.b: the token belongs to `a` already"),
        ];
        for (text, start) in cases {
            let error = parse("f", text).unwrap_err();
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }
}
