//! The current keys and tenants, and the numbers and usage of every tenant since the host started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, StatusCode};
use infer_core::{TenantId, TenantTerms};

use super::file::{self, Grant};
use super::key::{self, KeyDigest};
use super::usage::{Usage, UsageSnapshot};
use crate::config::{Config, ConfigError};
use crate::http::ApiError;

/// Most names since the host started, over all reloads: each has a row in the engine.
const MAX_NAMES: usize = 4_096;
/// Tenants with metrics of their own; the rest are summed up as `other`.
const MAX_LABELS: usize = 128;
const OTHER: &str = "other";
/// The variable with the one key of a host without a tenants file.
pub const VARIABLE: &str = "INFER_API_KEY";
/// Anthropic's header of the key.
const PLAIN_KEY: &str = "x-api-key";

/// One tenant.
#[derive(Debug)]
pub struct Tenant {
    /// Its number in the engine.
    pub id: TenantId,
    /// Its name in the tenants file.
    pub name: String,
    /// What policies see of the tenant.
    pub terms: TenantTerms,
    /// Upper limit on the priority of its requests.
    pub max_priority: i32,
    /// Its usage since the host started.
    pub usage: Arc<Usage>,
}

/// All tenants. Without a tenants file there is one, `default`, and requests need its key, if it has one.
#[derive(Debug)]
pub struct Tenants {
    source: Source,
    book: RwLock<Arc<Book>>,
    names: Mutex<Names>,
}

/// Where keys come from.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    /// The key of `default`.
    Key(KeyDigest),
    /// Requests need no key.
    Nothing,
}

/// The tenants as loaded last.
#[derive(Debug, Default)]
struct Book {
    keys: Vec<(KeyDigest, Arc<Tenant>)>,
    /// The tenant of requests without a key, if those are allowed.
    anonymous: Option<Arc<Tenant>>,
    tenants: Vec<Arc<Tenant>>,
}

/// Every tenant since the start. Ids are positions in `usage` and never change.
#[derive(Debug, Default)]
struct Names {
    ids: BTreeMap<String, u32>,
    usage: Vec<(String, Arc<Usage>)>,
}

impl Tenants {
    /// Loads the tenants file, which must have a key, or takes the one key. Without either, every request belongs to
    /// `default`.
    ///
    /// # Errors
    /// Names what is wrong with the file, or with the key without showing it.
    pub fn open(config: &Config) -> Result<Self, ConfigError> {
        if let Some(path) = &config.api_keys {
            return Self::of_file(path).map_err(|wrong| ConfigError(format!("--api-keys: {wrong}")));
        }
        let source = match &config.api_key {
            Some(key) => {
                key::check_plain(key).map_err(|wrong| ConfigError(format!("{VARIABLE}: {wrong}")))?;
                Source::Key(KeyDigest::of(key))
            }
            None => Source::Nothing,
        };
        Self::load(source).map_err(ConfigError)
    }

    /// Loads a tenants file.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        Self::load(Source::File(path.to_path_buf()))
    }

    fn load(source: Source) -> Result<Self, String> {
        let all = Self { source, book: RwLock::default(), names: Mutex::default() };
        all.note("default");
        all.reload()?;
        Ok(all)
    }

    /// Reloads the file. On an error nothing changes.
    pub fn reload(&self) -> Result<(), String> {
        let book = match &self.source {
            Source::File(path) => {
                let grants = file::read(path)?;
                // A file that is just being written is often empty.
                if grants.iter().all(|grant| grant.keys.is_empty()) {
                    let shown = path.display();
                    // Nothing can be added to a device.
                    let advice = if path.is_file() {
                        format!("`infer keys new TENANT --file {shown}` adds one")
                    } else {
                        "give a file, to which `infer keys new` adds some".to_owned()
                    };
                    return Err(format!("{shown} has no keys, so nobody could use the host; {advice}"));
                }
                self.book_of(grants)?
            }
            Source::Key(key) => self.book_of(vec![Self::everyone(vec![*key])])?,
            Source::Nothing => {
                let book = self.book_of(vec![Self::everyone(Vec::new())])?;
                Book { anonymous: book.tenants.first().cloned(), ..book }
            }
        };
        *self.book.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(book);
        Ok(())
    }

    /// The tenant of a host without a tenants file.
    fn everyone(keys: Vec<KeyDigest>) -> Grant {
        let name = "default".to_owned();
        Grant { name, keys, terms: TenantTerms::default(), max_priority: i32::MAX }
    }

    /// Whether requests need an API key.
    pub fn need_keys(&self) -> bool {
        self.now().anonymous.is_none()
    }

    /// Number of valid API keys.
    pub fn key_count(&self) -> usize {
        self.now().keys.len()
    }

    /// Whether any tenant has a rate limit.
    pub fn has_rates(&self) -> bool {
        self.now().tenants.iter().any(|tenant| tenant.terms.rate_per_minute > 0)
    }

    /// What the engine needs to know of the tenants.
    pub fn terms(&self) -> Vec<(TenantId, TenantTerms)> {
        self.now().tenants.iter().map(|tenant| (tenant.id, tenant.terms)).collect()
    }

    /// Finds the tenant by `Authorization: Bearer`, or by `x-api-key`, as Anthropic's clients send it. Always compares
    /// all keys, so the time taken reveals nothing.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, ApiError> {
        let book = self.now();
        if let Some(anonymous) = &book.anonymous {
            return Ok(Arc::clone(anonymous));
        }
        let (authorization, plain) = (headers.get(AUTHORIZATION), headers.get(PLAIN_KEY));
        if authorization.or(plain).is_none() {
            let message = "missing API key; send `Authorization: Bearer KEY` or `x-api-key: KEY`";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "missing_api_key", message));
        }
        let bearer = authorization.and_then(|given| given.to_str().ok()).and_then(|v| {
            let (scheme, key) = v.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let plain = plain.and_then(|given| given.to_str().ok()).map(str::trim);
        let find = |given: &str| {
            let digest = KeyDigest::of(given);
            let mut found = None;
            for (key, tenant) in &book.keys {
                if key.matches(&digest) {
                    found = Some(tenant);
                }
            }
            found
        };
        // Clients that send both may have the key of another service in one of them.
        bearer.and_then(find).or_else(|| plain.and_then(find)).cloned().ok_or_else(|| {
            let message =
                "unknown API key; send a key of this host as `Authorization: Bearer KEY` or `x-api-key: KEY`";
            ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
        })
    }

    /// The usage of all tenants by number; a last entry `other` sums up those beyond the first `MAX_LABELS`.
    pub fn usage(&self) -> Vec<(String, UsageSnapshot)> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let own = names.usage.iter().take(MAX_LABELS);
        let mut all: Vec<_> = own.map(|(name, usage)| (name.clone(), usage.snapshot())).collect();
        if names.usage.len() > MAX_LABELS {
            let mut rest = UsageSnapshot::default();
            names.usage[MAX_LABELS..].iter().for_each(|(_, usage)| rest += usage.snapshot());
            all.push((OTHER.to_owned(), rest));
        }
        all
    }

    /// A tenant's name and usage, by its number. Every number that the engine has seen is known.
    pub fn find(&self, id: TenantId) -> Option<(String, Arc<Usage>)> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.usage.get(id.0 as usize).cloned()
    }

    /// The number of a tenant by its name, if it may use the host now.
    pub fn current(&self, name: &str) -> Option<TenantId> {
        self.now().tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.id)
    }

    /// Whether each tenant has sent a request that has ended or was refused. One lock for all, and no name is copied:
    /// consoles ask several times a second about every tenant there is.
    pub fn used(&self, ids: impl Iterator<Item = TenantId>) -> Vec<bool> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        ids.map(|id| names.usage.get(id.0 as usize).is_some_and(|(_, usage)| usage.any())).collect()
    }

    /// Which entry of `usage` counts a tenant.
    pub fn label(&self, id: TenantId) -> String {
        let own = self.find(id).filter(|_| (id.0 as usize) < MAX_LABELS);
        own.map_or_else(|| OTHER.to_owned(), |(name, _)| name)
    }

    fn now(&self) -> Arc<Book> {
        Arc::clone(&self.book.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn book_of(&self, grants: Vec<Grant>) -> Result<Book, String> {
        let known = self.names.lock().unwrap_or_else(PoisonError::into_inner).ids.clone();
        let fresh = grants.iter().filter(|grant| !known.contains_key(&grant.name)).count();
        if known.len() + fresh > MAX_NAMES {
            return Err(format!(
                "{MAX_NAMES} tenants have been loaded since the start, the limit; restart the host to add more"
            ));
        }
        let mut book = Book::default();
        for grant in grants {
            let keys = grant.keys.clone();
            let tenant = self.tenant(grant);
            book.keys.extend(keys.into_iter().map(|key| (key, Arc::clone(&tenant))));
            book.tenants.push(tenant);
        }
        Ok(book)
    }

    fn tenant(&self, grant: Grant) -> Arc<Tenant> {
        let (id, usage) = self.note(&grant.name);
        let Grant { name, terms, max_priority, .. } = grant;
        Arc::new(Tenant { id, name, terms, max_priority, usage })
    }

    fn note(&self, name: &str) -> (TenantId, Arc<Usage>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let next = names.usage.len() as u32;
        let id = *names.ids.entry(name.to_owned()).or_insert(next);
        if id == next {
            names.usage.push((name.to_owned(), Arc::default()));
        }
        (TenantId(id), Arc::clone(&names.usage[id as usize].1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(value: &str) -> HeaderMap {
        [(AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn reload_keeps_numbers_and_usage_and_ignores_a_bad_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: String| std::fs::write(file.path(), text).unwrap();
        let key = |name: &str, key: &str| format!("[tenants.{name}]\nkeys = [\"{}\"]\n", KeyDigest::of(key));
        write(key("bob", "b") + &key("alice", "a"));
        let tenants = Tenants::of_file(file.path()).unwrap();
        let bob = tenants.authenticate(&bearer("Bearer b")).unwrap();
        bob.usage.ended(3, 1, 2, false);
        let number = bob.id;
        assert_ne!(number, TenantId(0), "0 is the tenant of requests without a key");

        for (text, part) in [
            ("[tenants.bob]\nkeys = 3\n", ":2: tenants.bob.keys"),
            ("", " has no keys, "),
            ("[tenants.bob]\n", " has no keys, "),
        ] {
            write(text.to_owned());
            let error = tenants.reload().unwrap_err();
            assert!(error.contains(part), "{error}");
            tenants.authenticate(&bearer("bearer a")).unwrap();
        }
        let error = Tenants::of_file(file.path()).unwrap_err();
        assert!(
            error.contains(&format!("`infer keys new TENANT --file {}`", file.path().display())),
            "{error}"
        );
        let error = Tenants::of_file(Path::new("/dev/null")).unwrap_err();
        assert!(error.ends_with("; give a file, to which `infer keys new` adds some"), "{error}");

        write(key("carol", "c"));
        tenants.reload().unwrap();
        assert_eq!(tenants.authenticate(&bearer("Bearer b")).unwrap_err().reason(), "invalid_api_key");
        write(key("carol", "c") + &key("bob", "b2"));
        tenants.reload().unwrap();
        let bob = tenants.authenticate(&bearer("Bearer b2")).unwrap();
        assert_eq!((bob.id, bob.usage.snapshot().prompt_tokens), (number, 3));
        assert_eq!(tenants.usage().iter().map(|(_, usage)| usage.requests).sum::<u64>(), 1);
    }

    #[test]
    fn requests_need_a_key_only_if_there_are_any() {
        let open = Tenants::load(Source::Nothing).unwrap();
        assert_eq!(open.authenticate(&HeaderMap::new()).unwrap().name, "default");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("a"))).unwrap();
        let closed = Tenants::of_file(file.path()).unwrap();
        assert!(closed.need_keys());
        assert_eq!(closed.authenticate(&HeaderMap::new()).unwrap_err().reason(), "missing_api_key");
        for odd in ["Bearer", "Bearer ", "Basic x", "Bearer \u{e9}"] {
            assert_eq!(closed.authenticate(&bearer(odd)).unwrap_err().status(), 401, "{odd}");
        }
        for (authorization, plain, expected) in [
            (None, "a", Ok("a")),
            (None, " a ", Ok("a")),
            (None, "", Err("invalid_api_key")),
            (None, "Bearer a", Err("invalid_api_key")),
            (Some("Bearer b"), "a", Ok("a")),
            (Some("Bearer a"), "b", Ok("a")),
            (Some("Bearer b"), "c", Err("invalid_api_key")),
            (Some("a"), "\u{e9}", Err("invalid_api_key")),
        ] {
            let mut headers = authorization.map(bearer).unwrap_or_default();
            headers.insert(PLAIN_KEY, plain.parse().unwrap());
            let found = closed.authenticate(&headers);
            let found = found.as_ref().map(|tenant| tenant.name.as_str()).map_err(ApiError::reason);
            assert_eq!(found, expected, "{authorization:?}, {plain}");
        }
    }

    #[test]
    fn one_key_is_of_the_default_tenant_and_stays_after_a_reload() {
        let config = |api_keys: Option<&Path>, key: &str| Config {
            api_keys: api_keys.map(Path::to_path_buf),
            api_key: Some(key.to_owned()),
            ..Config::default()
        };
        let tenants = Tenants::open(&config(None, "token-abc123")).unwrap();
        assert!(tenants.need_keys() && tenants.key_count() == 1 && !tenants.has_rates());
        for _ in 0..2 {
            let found = tenants.authenticate(&bearer("Bearer token-abc123")).unwrap();
            assert_eq!(
                (found.id, found.name.as_str(), found.max_priority),
                (TenantId(0), "default", i32::MAX)
            );
            for (headers, reason) in
                [(HeaderMap::new(), "missing_api_key"), (bearer("Bearer token"), "invalid_api_key")]
            {
                assert_eq!(tenants.authenticate(&headers).unwrap_err().reason(), reason);
            }
            tenants.reload().unwrap();
        }
        for secret in ["two words", "caf\u{e9}", &"x".repeat(513)] {
            let error = Tenants::open(&config(None, secret)).unwrap_err().to_string();
            assert!(error.starts_with("INFER_API_KEY: ") && !error.contains(secret), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("a"))).unwrap();
        let tenants = Tenants::open(&config(Some(file.path()), "b")).unwrap();
        assert_eq!(tenants.authenticate(&bearer("Bearer a")).unwrap().name, "a", "a file replaces the key");
        assert_eq!(tenants.authenticate(&bearer("Bearer b")).unwrap_err().reason(), "invalid_api_key");
    }

    #[test]
    fn usage_lists_a_bounded_number_of_tenants() {
        let key = |n: usize| KeyDigest::of(&n.to_string());
        let text: String = (0..200).map(|n| format!("[tenants.t{n}]\nkeys = [\"{}\"]\n", key(n))).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let tenants = Tenants::of_file(file.path()).unwrap();
        let usage = tenants.usage();
        assert_eq!((usage.len(), usage.last().unwrap().0.as_str()), (MAX_LABELS + 1, "other"));
        for (id, label) in [(0, "default"), (127, "t126"), (128, "other"), (5_000, "other")] {
            assert_eq!(tenants.label(TenantId(id)), label);
        }
        assert_eq!(tenants.find(TenantId(128)).unwrap().0, "t127");
    }
}
