//! `infer keys`: creates API keys, hashes existing ones, lists the tenants of a file. A key is printed once
//! and stored nowhere; the file of tenants has its digest.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use toml_edit::{Array, DocumentMut, Item, Table};

use super::Failure;
use crate::config::Environment;
use crate::tenants::{self, KeyDigest};

/// Longest key that is read from standard input.
const MAX_INPUT_BYTES: u64 = 4_096;

/// Commands about API keys.
#[derive(Subcommand)]
pub enum KeysCommand {
    /// Creates a key for a tenant and adds its digest to the file; prints the key, once
    New(NewArgs),
    /// Prints the digest of a key, or of an operator's token, read from standard input
    Hash,
    /// Lists the tenants of a file
    List(FileArg),
}

/// A file of tenants.
#[derive(Args)]
pub struct FileArg {
    // Not clap's `env`: an empty variable counts as absent.
    /// The file that `infer serve --api-keys` reads [default: tenants.toml] [env: INFER_API_KEYS]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl FileArg {
    fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(given) = &self.file {
            return Ok(given.clone());
        }
        let environment = Environment::of_process();
        Ok(environment.get("INFER_API_KEYS")?.unwrap_or("tenants.toml").into())
    }
}

/// Arguments of `infer keys new`.
#[derive(Args)]
pub struct NewArgs {
    /// Name of the tenant: letters, digits, dots, dashes, underscores
    tenant: String,
    /// Name of a model that the tenant may use, for each of them; all unless given
    #[arg(long = "model", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    models: Vec<String>,
    /// Share of the host relative to other tenants
    #[arg(long, value_name = "NUMBER", value_parser = |text: &str| tenants::weight_of(text.parse().ok()))]
    weight: Option<f64>,
    /// Rate limit in tokens per minute, prompt and output together
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    tokens_per_minute: Option<u32>,
    /// Tokens that may be used at once; a minute's worth unless given
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    burst: Option<u32>,
    /// Rate limit in requests per minute, to generate or to embed; one that is refused or invalid counts too
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_minute: Option<u32>,
    /// Highest priority that its requests may have
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_priority: Option<i32>,
    #[command(flatten)]
    file: FileArg,
}

/// Runs a command.
pub fn run(command: KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::New(args) => new(&args),
        KeysCommand::Hash => hash(),
        KeysCommand::List(file) => list(&file.path()?),
    }
}

fn new(args: &NewArgs) -> Result<(), Failure> {
    tenants::check_name(&args.tenant).map_err(|wrong| match args.tenant.as_str() {
        "" => Failure::Usage(wrong),
        given => Failure::Usage(format!("{given}: {wrong}")),
    })?;
    let file = args.file.path()?;
    let shown = file.display().to_string();
    let cant = |what: &str, error: io::Error| Failure::Failed(format!("can't {what} {shown}: {error}"));
    let path = link_target(&file);
    let _lock = lock_directory(&path).map_err(|error| cant("lock the directory of", error))?;
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(cant("read", error)),
    };
    let key = tenants::fresh().map_err(Failure::failed)?;
    let digest = KeyDigest::of(&key);
    let Added { text: after, changed } =
        with_key(&before, args, digest).map_err(|e| Failure::Failed(format!("{shown}: {e}")))?;
    // Write only what a host can read.
    tenants::grants(&shown, &after).map_err(|wrong| match args.burst {
        // The line that is wrong isn't in the file yet.
        Some(_) if args.tokens_per_minute.is_none() && tenants::grants(&shown, &before).is_ok() => {
            Failure::Usage("--burst: needs --tokens-per-minute, the rate at which it refills".to_owned())
        }
        _ => Failure::Usage(wrong),
    })?;
    replace(&path, &after).map_err(|error| cant("write", error))?;
    println!("{key}");
    eprintln!(
        "added to {shown} (sha256:{}...); a running host reads the file again on SIGHUP. The key is not stored \
         anywhere.",
        digest.short()
    );
    if !changed.is_empty() {
        eprintln!("changed for all keys of {}: {}", args.tenant, changed.join(", "));
    }
    Ok(())
}

/// A file of tenants with another key.
struct Added {
    /// Comments and order are kept.
    text: String,
    /// The settings of an existing tenant that have other values than before.
    changed: Vec<String>,
}

/// Adds a key to the text of a file.
fn with_key(text: &str, args: &NewArgs, digest: KeyDigest) -> Result<Added, String> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| e.to_string())?;
    let table = |item: &mut Item| item.as_table_like().is_some();
    let all = document.entry("tenants").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    if !table(all) {
        return Err("tenants: expected a table".to_owned());
    }
    let all = all.as_table_like_mut().expect("it is a table");
    let is_known = all.contains_key(&args.tenant);
    let tenant = all.entry(&args.tenant).or_insert(toml_edit::table());
    let tenant =
        tenant.as_table_like_mut().ok_or_else(|| format!("tenants.{}: expected a table", args.tenant))?;
    let keys = tenant.entry("keys").or_insert(toml_edit::value(Array::new()));
    let keys = keys.as_array_mut().ok_or_else(|| format!("tenants.{}.keys: expected a list", args.tenant))?;
    push(keys, digest);
    let models = (!args.models.is_empty()).then(|| args.models.iter().collect::<Array>());
    let terms = [
        ("models", models.map(toml_edit::Value::from)),
        ("weight", args.weight.map(toml_edit::Value::from)),
        ("tokens-per-minute", args.tokens_per_minute.map(|limit| i64::from(limit).into())),
        ("burst", args.burst.map(|limit| i64::from(limit).into())),
        ("requests-per-minute", args.requests_per_minute.map(|limit| i64::from(limit).into())),
        ("max-priority", args.max_priority.map(|priority| i64::from(priority).into())),
    ];
    let mut changed = Vec::new();
    for (key, value) in terms {
        let Some(value) = value else { continue };
        let now = value.clone();
        // The file may have it with underscores.
        let spelt = tenant.iter().map(|(name, _)| name).find(|name| name.replace('_', "-") == key);
        let spelt = spelt.unwrap_or(key).to_owned();
        let before = tenant.insert(&spelt, Item::Value(value));
        let before = before.and_then(|item| item.into_value().ok());
        let is_same = before.as_ref().is_some_and(|before| same(before, &now));
        if is_known && !is_same {
            // Without blanks and comments.
            let before = before.map(|value| value.decorated("", "").to_string());
            changed.push(format!("{key} is {now}, was {}", before.as_deref().unwrap_or("the default")));
        }
    }
    Ok(Added { text: document.to_string(), changed })
}

/// Adds a digest to a list. If the last one has a line of its own, so gets this, and a comment stays beside its digest.
fn push(keys: &mut Array, digest: KeyDigest) {
    let mut value = toml_edit::Value::from(digest.to_string());
    let behind_comma = keys.trailing().as_str().unwrap_or_default().to_owned();
    if keys.trailing_comma() && behind_comma.contains('\n') {
        value.decor_mut().set_prefix(format!("{}\n    ", behind_comma.trim_end()));
        keys.set_trailing("\n");
    }
    keys.push_formatted(value);
}

/// Whether two values are the same numbers, or the same names in whatever order.
fn same(a: &toml_edit::Value, b: &toml_edit::Value) -> bool {
    match (names(a), names(b)) {
        (Some(a), Some(b)) => a == b,
        _ => number(a).is_some() && number(a) == number(b),
    }
}

/// A list of names.
fn names(value: &toml_edit::Value) -> Option<BTreeSet<&str>> {
    value.as_array()?.iter().map(toml_edit::Value::as_str).collect()
}

/// A number, whichever way it is written.
fn number(value: &toml_edit::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

/// The file behind a symbolic link, which need not exist yet; the link itself is kept.
fn link_target(file: &Path) -> PathBuf {
    /// As many links in a row as Linux follows.
    const MAX_LINKS: usize = 40;
    let mut path = file.to_path_buf();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent().map_or(target.clone(), |directory| directory.join(&target));
    }
    path
}

/// Keeps other processes from adding keys to the directory's files until the lock is dropped: of two that
/// read the same text, one would lose its key.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new(".")))?;
    directory.lock()?;
    Ok(directory)
}

/// Replaces the text of the file; the same users as before can read it.
///
/// The new file is written beside the old one and renamed, so that a host never reads half of it. If the new
/// file can't have the access rights of the old one, the old one is overwritten: hosts read it only on
/// SIGHUP.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if has_acl(path) {
        return overwrite(path, text);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{:016x}.new", getrandom::u64().map_err(io::Error::other)?));
    let beside = PathBuf::from(beside);
    let replaced = write_like(path, &beside, text).and_then(|()| std::fs::rename(&beside, path));
    replaced.or_else(|error| {
        let _ = std::fs::remove_file(&beside);
        match error.kind() {
            ErrorKind::PermissionDenied if path.exists() => overwrite(path, text),
            _ => Err(error),
        }
    })
}

/// Whether the file has an access control list, which a new file would not have.
fn has_acl(path: &Path) -> bool {
    rustix::fs::getxattr_query(path, ACL).is_ok()
}

const ACL: &str = "system.posix_acl_access";

fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Writes a new file with owner, group and mode of the old one; without an old one, only its owner may read
/// it.
fn write_like(old: &Path, new: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    match std::fs::metadata(old) {
        Ok(old) => {
            let made = file.metadata()?;
            if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn hash() -> Result<(), Failure> {
    let mut key = String::new();
    std::io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut key).map_err(Failure::failed)?;
    let key = key.trim();
    tenants::check_strength(key).map_err(Failure::Usage)?;
    println!("{}", KeyDigest::of(key));
    Ok(())
}

fn list(path: &Path) -> Result<(), Failure> {
    let all = tenants::read(path).map_err(Failure::Failed)?;
    println!(
        "{:<24} {:>4} {:>8} {:>12} {:>9} {:>12} {:>8}  models",
        "tenant", "keys", "weight", "tokens/min", "burst", "requests/min", "priority"
    );
    let or_none = |n: u32| if n == 0 { "-".to_owned() } else { n.to_string() };
    for grant in all {
        let priority =
            if grant.max_priority == i32::MAX { "-".to_owned() } else { grant.max_priority.to_string() };
        let models = match grant.models.names() {
            Some(names) => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
            None => "all".to_owned(),
        };
        println!(
            "{:<24} {:>4} {:>8} {:>12} {:>9} {:>12} {:>8}  {models}",
            grant.name,
            grant.keys.len(),
            f64::from(grant.terms.weight_permille) / 1e3,
            or_none(grant.terms.rate_per_minute),
            or_none(grant.terms.burst),
            or_none(grant.requests_per_minute),
            priority
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;
    use crate::tenants::ModelList;

    fn args(tenant: &str, weight: Option<f64>) -> NewArgs {
        let file = FileArg { file: None };
        NewArgs {
            tenant: tenant.to_owned(),
            models: Vec::new(),
            weight,
            tokens_per_minute: None,
            burst: None,
            requests_per_minute: None,
            max_priority: Some(-2),
            file,
        }
    }

    fn added(tenant: &str, file: &Path) {
        let args = NewArgs { file: FileArg { file: Some(file.to_owned()) }, ..args(tenant, None) };
        assert!(new(&args).is_ok(), "{tenant}");
    }

    fn names(file: &Path) -> Vec<String> {
        tenants::read(file).unwrap().into_iter().map(|grant| grant.name).collect()
    }

    #[test]
    fn adding_a_key_keeps_mode_and_link_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["tenants.toml", "link.toml"].map(|name| directory.path().join(name));
        let mode = || std::fs::metadata(&file).unwrap().mode() & 0o7777;
        // A link may come before its target.
        std::os::unix::fs::symlink("tenants.toml", &link).unwrap();
        added("alice", &link);
        assert!(link.is_symlink() && mode() == 0o600, "private until the operator changes the mode");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        added("bob", &link);
        assert!(link.is_symlink() && mode() == 0o644);
        assert_eq!(names(&file), ["alice", "bob"]);
        let left: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn adding_a_key_keeps_the_access_control_list() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tenants.toml");
        added("alice", &file);
        // Version 2; then (tag, permissions, id) of owner, user 10001, group, mask and others.
        let entries = [
            (0x01, 6, u32::MAX),
            (0x02, 4, 10_001),
            (0x04, 0, u32::MAX),
            (0x10, 4, u32::MAX),
            (0x20, 0, u32::MAX),
        ];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend([tag, 0, permissions, 0]);
            list.extend(id.to_le_bytes());
        }
        if rustix::fs::setxattr(&file, ACL, &list, rustix::fs::XattrFlags::empty()).is_err() {
            return; // This file system has no lists.
        }
        added("bob", &file);
        let mut kept = vec![0_u8; 256];
        let bytes = rustix::fs::getxattr(&file, ACL, &mut kept[..]).unwrap();
        assert_eq!(kept[..bytes], list);
        assert_eq!(names(&file), ["alice", "bob"]);
    }

    #[test]
    fn keys_added_concurrently_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.toml");
        std::thread::scope(|scope| {
            for at in 0..8 {
                let file = FileArg { file: Some(file.clone()) };
                let args = NewArgs { file, ..args(&format!("tenant-{at}"), None) };
                scope.spawn(move || assert!(new(&args).is_ok()));
            }
        });
        assert_eq!(tenants::read(&file).unwrap().len(), 8);
    }

    #[test]
    fn adding_a_key_keeps_the_rest_of_the_file() {
        let with =
            |text: &str, args: &NewArgs, key: &str| with_key(text, args, KeyDigest::of(key)).unwrap().text;
        let first = with("", &args("alice", Some(2.0)), "1");
        let second = with(&format!("# mine\n{first}"), &args("alice", None), "2");
        let third = with(&second, &args("bob", None), "3");
        assert!(third.starts_with("# mine\n[tenants.alice]\n"), "{third}");
        let all = tenants::grants("f", &third).unwrap();
        let alice = &all[0];
        assert_eq!(
            (alice.keys.as_slice(), alice.terms.weight_permille),
            (&[KeyDigest::of("1"), KeyDigest::of("2")][..], 2_000)
        );
        assert_eq!((all[1].name.as_str(), all[1].max_priority), ("bob", -2));
        assert!(with_key("tenants = 1", &args("bob", None), KeyDigest::of("3")).is_err());
    }

    #[test]
    fn model_without_a_name_is_an_error_of_its_flag() {
        let read = |model: &str| Cli::try_parse_from(["infer", "keys", "new", "alice", "--model", model]);
        assert!(read("demo").is_ok());
        let error = read("").map(drop).unwrap_err().to_string();
        assert!(error.contains("--model <NAME>"), "{error}");
    }

    #[test]
    fn comments_stay_beside_the_digests_that_they_are_about() {
        let digests = ["1", "2", "3", "4"].map(KeyDigest::of);
        let [laptop, batch, third, fourth] = &digests;
        let text = format!(
            "[tenants.alice]\nkeys = [\n    \"{laptop}\",  # laptop\n    \"{batch}\",  # batch\n]\nmax-priority = -2\n"
        );
        let added = with_key(&text, &args("alice", None), *third).unwrap().text;
        let added = with_key(&added, &args("alice", None), *fourth).unwrap().text;
        let more = format!("  # batch\n    \"{third}\",\n    \"{fourth}\",\n]\n");
        assert_eq!(added, text.replace("  # batch\n]\n", &more));
        assert_eq!(tenants::grants("f", &added).unwrap()[0].keys, digests);
    }

    #[test]
    fn models_of_a_tenant_are_written_as_its_list() {
        let add = |text: &str, models: &[&str]| {
            let models = models.iter().map(ToString::to_string).collect();
            with_key(text, &NewArgs { models, ..args("alice", None) }, KeyDigest::of("1")).unwrap()
        };
        let listed = |added: &Added| tenants::grants("f", &added.text).unwrap()[0].models.clone();
        let of = |names: [&str; 2]| ModelList::of(names.map(str::to_owned).to_vec()).unwrap();
        let new = add("", &["demo", "sql"]);
        assert_eq!((listed(&new), new.changed.len()), (of(["demo", "sql"]), 0));
        assert_eq!(listed(&add("", &[])), ModelList::default());
        let without_keys = new.text.replace(&format!("\"{}\"", KeyDigest::of("1")), "");
        let again = add(&without_keys, &[]);
        assert_eq!(listed(&again), of(["demo", "sql"]), "another key of the tenant changes nothing");
        assert_eq!(add(&without_keys, &["sql", "demo"]).changed, Vec::<String>::new());
        let other = add(&without_keys, &["demo", "org/support"]);
        assert_eq!(other.changed, ["models is [\"demo\", \"org/support\"], was [\"demo\", \"sql\"]"]);
        assert_eq!(listed(&other), of(["demo", "org/support"]));
    }

    #[test]
    fn changed_terms_of_an_existing_tenant_are_named() {
        let add = |text: &str, tokens_per_minute, weight| {
            let args = NewArgs { tokens_per_minute, ..args("alice", weight) };
            with_key(text, &args, KeyDigest::of("1")).unwrap()
        };
        let new = add("", Some(60_000), None);
        assert_eq!(new.changed, Vec::<String>::new(), "a new tenant had no terms");
        let commented = new.text.replace("60000", "60000 # agreed in May");
        let changed = add(&commented, Some(100), Some(2.0)).changed;
        assert_eq!(changed, ["weight is 2.0, was the default", "tokens-per-minute is 100, was 60000"]);
        assert_eq!(add(&new.text, Some(60_000), None).changed, Vec::<String>::new(), "the same value");
        let spelt = new.text.replace("60000", "60_000");
        assert_eq!(add(&spelt, Some(60_000), None).changed, Vec::<String>::new(), "spelt in another way");
        let requests = NewArgs { requests_per_minute: Some(90), ..args("alice", None) };
        let Added { text, changed } = with_key(&new.text, &requests, KeyDigest::of("2")).unwrap();
        assert_eq!(changed, ["requests-per-minute is 90, was the default"]);
        assert_eq!(tenants::grants("f", &text).unwrap()[0].requests_per_minute, 90);
        let underscored = new.text.replace("tokens-per-minute", "tokens_per_minute");
        let Added { text, changed } = add(&underscored, Some(100), None);
        assert_eq!(changed, ["tokens-per-minute is 100, was 60000"]);
        assert!(text.contains("tokens_per_minute = 100\n") && !text.contains("tokens-per-minute"), "{text}");
    }
}
