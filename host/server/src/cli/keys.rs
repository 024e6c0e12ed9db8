//! `infer keys`: makes API keys, hashes given ones, says whose a file holds. A key is shown once and kept
//! nowhere; the file of tenants has its digest.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike};

use super::Failure;
use crate::tenants::{self, KeyDigest};

/// Longest key that is read from standard input.
const MAX_INPUT_BYTES: u64 = 4_096;

/// Commands about API keys.
#[derive(Subcommand)]
pub enum KeysCommand {
    /// Makes a key for a tenant and adds its digest to the file; the key goes to stdout, once
    New(NewArgs),
    /// Prints the digest of a key that stands on standard input
    Hash,
    /// Lists the tenants of a file
    List(FileArg),
}

/// A file of tenants.
#[derive(Args)]
pub struct FileArg {
    /// The file that `infer serve --api-keys` reads
    #[arg(long, value_name = "FILE", default_value = "tenants.toml", env = "INFER_API_KEYS")]
    file: PathBuf,
}

/// Arguments of `infer keys new`.
#[derive(Args)]
pub struct NewArgs {
    /// The tenant: letters, digits, dots, dashes, underscores
    tenant: String,
    /// Share beside other tenants
    #[arg(long, value_name = "NUMBER")]
    weight: Option<f64>,
    /// Tokens a minute, prompt and output
    #[arg(long, value_name = "TOKENS")]
    tokens_per_minute: Option<u32>,
    /// Tokens that may be taken at once
    #[arg(long, value_name = "TOKENS")]
    burst: Option<u32>,
    /// Highest priority that its requests can have
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
        KeysCommand::List(file) => list(&file.file),
    }
}

fn new(args: &NewArgs) -> Result<(), Failure> {
    tenants::check_name(&args.tenant).map_err(|wrong| Failure::Usage(format!("{}: {wrong}", args.tenant)))?;
    let shown = args.file.file.display().to_string();
    let cant = |what: &str, error: io::Error| Failure::Failed(format!("can't {what} {shown}: {error}"));
    // What a link leads to is written, and the link stays.
    let path = args.file.file.canonicalize().unwrap_or_else(|_| args.file.file.clone());
    let _alone = lock_folder(&path).map_err(|error| cant("lock the folder of", error))?;
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(cant("read", error)),
    };
    let key = tenants::fresh().map_err(Failure::failed)?;
    let after =
        with_key(&before, args, KeyDigest::of(&key)).map_err(|e| Failure::Failed(format!("{shown}: {e}")))?;
    // What is written is what a host would read.
    tenants::grants(&shown, &after).map_err(Failure::Usage)?;
    replace(&path, &after).map_err(|error| cant("write", error))?;
    println!("{key}");
    eprintln!("added to {shown}; a running host takes it up on SIGHUP. The key is not kept anywhere.");
    Ok(())
}

/// The file's text with the key in it; comments and order stay.
fn with_key(text: &str, args: &NewArgs, digest: KeyDigest) -> Result<String, String> {
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
    let tenant = all.entry(&args.tenant).or_insert(toml_edit::table());
    let tenant =
        tenant.as_table_like_mut().ok_or_else(|| format!("tenants.{}: expected a table", args.tenant))?;
    let keys = tenant.entry("keys").or_insert(toml_edit::value(Array::new()));
    let keys = keys.as_array_mut().ok_or_else(|| format!("tenants.{}.keys: expected a list", args.tenant))?;
    keys.push(digest.to_string());
    if let Some(weight) = args.weight {
        set(tenant, "weight", weight.into());
    }
    let numbers = [
        ("tokens-per-minute", args.tokens_per_minute.map(i64::from)),
        ("burst", args.burst.map(i64::from)),
        ("max-priority", args.max_priority.map(i64::from)),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            set(tenant, key, value.into());
        }
    }
    Ok(document.to_string())
}

fn set(table: &mut dyn TableLike, key: &str, value: toml_edit::Value) {
    table.insert(key, Item::Value(value));
}

/// Keeps others from adding keys to the folder's files until it is dropped: of two that read the same text one would
/// be lost.
fn lock_folder(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")))?;
    folder.lock()?;
    Ok(folder)
}

/// Beside the file first, then in its place, so that a host never reads half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{:016x}.new", getrandom::u64().map_err(io::Error::other)?));
    let beside = PathBuf::from(beside);
    let replaced = write_like(path, &beside, text).and_then(|()| std::fs::rename(&beside, path));
    replaced.inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

/// Whoever may read the old file may read the new one; where there is none, its owner alone.
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
        "{:<24} {:>4} {:>8} {:>12} {:>9} {:>8}",
        "tenant", "keys", "weight", "tokens/min", "burst", "priority"
    );
    let or_none = |n: u32| if n == 0 { "-".to_owned() } else { n.to_string() };
    for grant in all {
        let priority =
            if grant.max_priority == i32::MAX { "-".to_owned() } else { grant.max_priority.to_string() };
        println!(
            "{:<24} {:>4} {:>8} {:>12} {:>9} {:>8}",
            grant.name,
            grant.keys.len(),
            f64::from(grant.terms.weight_permille) / 1e3,
            or_none(grant.terms.rate_per_minute),
            or_none(grant.terms.burst),
            priority
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(tenant: &str, weight: Option<f64>) -> NewArgs {
        let file = FileArg { file: PathBuf::new() };
        NewArgs {
            tenant: tenant.to_owned(),
            weight,
            tokens_per_minute: None,
            burst: None,
            max_priority: Some(-2),
            file,
        }
    }

    #[test]
    fn whoever_could_read_the_file_still_can() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["tenants.toml", "link.toml"].map(|name| folder.path().join(name));
        let added = |tenant: &str, file: &Path| {
            let args = NewArgs { file: FileArg { file: file.to_owned() }, ..args(tenant, None) };
            assert!(new(&args).is_ok(), "{tenant}");
        };
        let mode = || std::fs::metadata(&file).unwrap().mode() & 0o7777;
        added("alice", &file);
        assert_eq!(mode(), 0o600, "its owner's, until somebody says otherwise");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink("tenants.toml", &link).unwrap();
        added("bob", &link);
        assert!(link.is_symlink() && mode() == 0o644);
        let names: Vec<_> = tenants::read(&file).unwrap().into_iter().map(|grant| grant.name).collect();
        assert_eq!(names, ["alice", "bob"]);
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn keys_that_are_made_at_once_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.toml");
        std::thread::scope(|scope| {
            for at in 0..8 {
                let file = FileArg { file: file.clone() };
                let args = NewArgs { file, ..args(&format!("tenant-{at}"), None) };
                scope.spawn(move || assert!(new(&args).is_ok()));
            }
        });
        assert_eq!(tenants::read(&file).unwrap().len(), 8);
    }

    #[test]
    fn a_key_is_added_and_what_stood_there_stays() {
        let first = with_key("", &args("alice", Some(2.0)), KeyDigest::of("1")).unwrap();
        let second = with_key(&format!("# mine\n{first}"), &args("alice", None), KeyDigest::of("2")).unwrap();
        let third = with_key(&second, &args("bob", None), KeyDigest::of("3")).unwrap();
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
}
