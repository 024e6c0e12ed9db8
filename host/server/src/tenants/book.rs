//! The current keys and tenants, and the numbers and usage of every tenant since the host started.
//!
//! With `--policy-state` tenants have the numbers of the host before, because what policies know is told in these. The
//! number of a tenant that is gone is kept for it, and never given to another one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, StatusCode};
use infer_core::{TenantId, TenantTerms};

use super::file::{self, Grant};
use super::key::{self, KeyDigest};
use super::models::{self, ModelList};
use super::requests::{Bucket, Requests};
use super::usage::{Usage, UsageSnapshot};
use crate::config::{Config, ConfigError};
use crate::http::ApiError;
use crate::shares::Holder;

/// Most names since the host started, over all reloads: each has a row in the engine. And most numbers that are known.
pub(crate) const MAX_NAMES: usize = 4_096;
/// Tenants with metrics of their own; the rest are summed up as `other`.
const MAX_LABELS: usize = 128;
const OTHER: &str = "other";
/// The variable with the one key of a host without a tenants file.
pub const VARIABLE: &str = "INFER_API_KEY";
/// Anthropic's header of the key.
const PLAIN_KEY: &str = "x-api-key";

/// One tenant, as one of its keys finds it.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its number in the engine.
    pub id: TenantId,
    /// Its name in the tenants file.
    pub name: String,
    /// The first digits of the key's digest there, for the log. `None` for what no file has: a single key may be short
    /// enough to be guessed by them.
    pub key: Option<String>,
    /// The models that it may use.
    pub models: ModelList,
    /// What policies see of the tenant.
    pub terms: TenantTerms,
    /// How many requests it may send.
    pub requests: Requests,
    /// Upper limit on the priority of its requests.
    pub max_priority: i32,
    /// Whether what its clients say of the length of outputs counts.
    pub output_hints: bool,
    /// Whether no other tenant may use the host.
    pub alone: bool,
    /// Its usage since the host started.
    pub usage: Arc<Usage>,
}

impl Tenant {
    /// The tenant, as one that holds memory.
    pub fn holder(&self) -> Holder {
        Holder { tenant: self.id, alone: self.alone }
    }
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

/// The numbers of tenants, by which policies know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbering {
    /// The name of each; that of 0 is `default`.
    pub names: BTreeMap<u32, String>,
    /// The next new tenant's. More than all of them: those that were forgotten are not given again.
    pub next: u32,
}

/// Every tenant since the start, and the numbers of those before it. Numbers never change.
#[derive(Debug, Default)]
struct Names {
    ids: BTreeMap<String, u32>,
    all: BTreeMap<u32, Named>,
    next: u32,
    /// Tenants since the start.
    here: usize,
}

/// A tenant with a number.
#[derive(Debug)]
struct Named {
    name: String,
    /// `None` until it may use this host.
    here: Option<Here>,
}

/// A tenant since the start.
#[derive(Debug)]
struct Here {
    usage: Arc<Usage>,
    /// What is left of its rate of requests.
    requests: Arc<Bucket>,
    /// Whether it has metrics of its own.
    has_label: bool,
}

impl Names {
    /// Those of an earlier host.
    fn of(earlier: &Numbering) -> Self {
        let ids = earlier.names.iter().map(|(&id, name)| (name.clone(), id)).collect();
        let named = |(&id, name): (&u32, &String)| (id, Named { name: name.clone(), here: None });
        Self { ids, all: earlier.names.iter().map(named).collect(), next: earlier.next, here: 0 }
    }

    /// The number and the state of a tenant that may use the host from now on.
    fn note(&mut self, name: &str) -> (TenantId, &Here) {
        let id = match self.ids.get(name) {
            Some(&id) => id,
            None => {
                let id = self.next;
                self.next += 1;
                self.ids.insert(name.to_owned(), id);
                self.all.insert(id, Named { name: name.to_owned(), here: None });
                id
            }
        };
        let count = &mut self.here;
        let named = self.all.get_mut(&id).expect("every number has a name");
        let here = &*named.here.get_or_insert_with(|| {
            *count += 1;
            Here { usage: Arc::default(), requests: Arc::default(), has_label: *count <= MAX_LABELS }
        });
        (TenantId(id), here)
    }

    /// Makes room for tenants that are to come: forgets those of earlier hosts that have not come back, the oldest
    /// first. Returns whether there is room for all.
    fn make_room(&mut self, wanted: &BTreeSet<&str>) -> bool {
        let fresh = wanted.iter().filter(|name| !self.ids.contains_key(**name)).count();
        let over = (self.ids.len() + fresh).saturating_sub(MAX_NAMES);
        let is_gone = |named: &Named| named.here.is_none() && !wanted.contains(named.name.as_str());
        let gone = self.all.iter().filter(|(_, named)| is_gone(named)).map(|(&id, _)| id);
        let gone: Vec<u32> = gone.take(over).collect();
        if gone.len() < over {
            return false;
        }
        for id in gone {
            if let Some(named) = self.all.remove(&id) {
                self.ids.remove(&named.name);
            }
        }
        true
    }

    /// A tenant since the start.
    fn find(&self, id: TenantId) -> Option<(&str, &Here)> {
        let named = self.all.get(&id.0)?;
        Some((&named.name, named.here.as_ref()?))
    }
}

impl Tenants {
    /// Loads the tenants file, which must have a key, or takes the one key. Without either, every request belongs to
    /// `default`.
    ///
    /// # Errors
    /// Names what is wrong with the file, or with the key without showing it.
    pub fn open(config: &Config) -> Result<Self, ConfigError> {
        Self::open_after(config, &Numbering::default())
    }

    /// Likewise, with the numbers of an earlier host.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_after(config: &Config, earlier: &Numbering) -> Result<Self, ConfigError> {
        if let Some(path) = &config.api_keys {
            let all = Self::load(Source::File(path.clone()), earlier);
            return all.map_err(|wrong| ConfigError(format!("--api-keys: {wrong}")));
        }
        let source = match &config.api_key {
            Some(key) => {
                key::check_plain(key).map_err(|wrong| ConfigError(format!("{VARIABLE}: {wrong}")))?;
                Source::Key(KeyDigest::of(key))
            }
            None => Source::Nothing,
        };
        Self::load(source, earlier).map_err(ConfigError)
    }

    /// Loads a tenants file.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        Self::load(Source::File(path.to_path_buf()), &Numbering::default())
    }

    fn load(source: Source, earlier: &Numbering) -> Result<Self, String> {
        let all = Self { source, book: RwLock::default(), names: Mutex::new(Names::of(earlier)) };
        all.names().note("default");
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
        let (models, terms) = (ModelList::default(), TenantTerms::default());
        let (max_priority, output_hints) = (i32::MAX, true);
        Grant { name, keys, models, terms, requests_per_minute: 0, max_priority, output_hints }
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

    /// Whether some tenant may not use, and so may not know, every model.
    pub fn limit_models(&self) -> bool {
        self.now().tenants.iter().any(|tenant| tenant.models.names().is_some())
    }

    /// Warns of models that tenants may use and that are not served.
    pub fn warn_of_unserved(&self, served: &[String]) {
        let book = self.now();
        let lists = book.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.models));
        for warning in models::unserved(lists, served) {
            tracing::warn!("{warning}");
        }
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

    /// The usage of all tenants since the start, by number; a last entry `other` sums up those beyond the first
    /// `MAX_LABELS`.
    pub fn usage(&self) -> Vec<(String, UsageSnapshot)> {
        let names = self.names();
        let (mut all, mut rest) = (Vec::new(), UsageSnapshot::default());
        for named in names.all.values() {
            match &named.here {
                Some(here) if here.has_label => all.push((named.name.clone(), here.usage.snapshot())),
                Some(here) => rest += here.usage.snapshot(),
                None => {}
            }
        }
        if names.here > MAX_LABELS {
            all.push((OTHER.to_owned(), rest));
        }
        all
    }

    /// A tenant's name and usage, by its number. Every number that the engine has seen is known.
    pub fn find(&self, id: TenantId) -> Option<(String, Arc<Usage>)> {
        self.names().find(id).map(|(name, here)| (name.to_owned(), Arc::clone(&here.usage)))
    }

    /// The numbers of all tenants, for the next host.
    pub fn numbering(&self) -> Numbering {
        let names = self.names();
        Numbering {
            names: names.all.iter().map(|(&id, named)| (id, named.name.clone())).collect(),
            next: names.next,
        }
    }

    /// The number of a tenant by its name, if it may use the host now.
    pub fn current(&self, name: &str) -> Option<TenantId> {
        self.now().tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.id)
    }

    /// Whether each tenant has sent a request that has ended or was refused. One lock for all, and no name is copied:
    /// consoles ask several times a second about every tenant there is.
    pub fn used(&self, ids: impl Iterator<Item = TenantId>) -> Vec<bool> {
        let names = self.names();
        ids.map(|id| names.find(id).is_some_and(|(_, here)| here.usage.any())).collect()
    }

    /// Which entry of `usage` counts a tenant.
    pub fn label(&self, id: TenantId) -> String {
        let names = self.names();
        let own = names.find(id).filter(|(_, here)| here.has_label);
        own.map_or(OTHER, |(name, _)| name).to_owned()
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Arc<Book> {
        Arc::clone(&self.book.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn book_of(&self, grants: Vec<Grant>) -> Result<Book, String> {
        let has_room = {
            let wanted: BTreeSet<&str> = grants.iter().map(|grant| grant.name.as_str()).collect();
            self.names().make_room(&wanted)
        };
        if !has_room {
            return Err(format!(
                "{MAX_NAMES} tenants have been loaded since the start, the limit; restart the host to add more"
            ));
        }
        let mut book = Book::default();
        let alone = grants.len() == 1;
        for grant in grants {
            let keys = grant.keys.clone();
            let tenant = self.tenant(grant, alone);
            for key in keys {
                let short = matches!(self.source, Source::File(_)).then(|| key.short());
                book.keys.push((key, Arc::new(Tenant { key: short, ..tenant.clone() })));
            }
            book.tenants.push(Arc::new(tenant));
        }
        Ok(book)
    }

    fn tenant(&self, grant: Grant, alone: bool) -> Tenant {
        let Grant { name, models, terms, requests_per_minute, max_priority, output_hints, .. } = grant;
        let mut names = self.names();
        let (id, here) = names.note(&name);
        let requests = Requests::new(requests_per_minute, Arc::clone(&here.requests));
        let usage = Arc::clone(&here.usage);
        Tenant { id, name, key: None, models, terms, requests, max_priority, output_hints, alone, usage }
    }
}

#[cfg(test)]
mod tests;
