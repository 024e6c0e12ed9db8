//! Several hosts, for commands that look at all of them or change all: the flags that name them, and the file of
//! `--hosts`.
//!
//! ```toml
//! [hosts.gpu-1]
//! admin = "http://10.0.0.1:8001"
//! token-file = "gpu-1.token"       # beside this file
//! ```
//! A host's token file is for that host alone. What `--token-file` or `INFER_ADMIN_TOKEN` gives is for those without
//! one, and a token that a host on this machine wrote never leaves the machine, as with one host (`admin`). A token that
//! is missing is a failure of its host, not of the command, so that all that is wrong can be said at once.

use std::path::{Path, PathBuf};

use clap::Args;

use super::Failure;
use super::admin::{Host, named_token, usual_address};
use crate::admin::token;
use crate::config::{Document, Entry, Environment, read_text};

/// Environment variable that names the file.
const VARIABLE: &str = "INFER_HOSTS";
/// Most hosts of a command, which asks them at the same time.
const MAX_HOSTS: usize = 256;
const KEYS: [&str; 2] = ["admin", "token-file"];

/// The flags that name one host or several, with their tokens.
#[derive(Args)]
pub struct HostsArg {
    // Not clap's `env`: an empty variable counts as absent.
    /// Admin plane of a host; may be given several times [default: http://127.0.0.1:8001] [env: INFER_ADMIN]
    #[arg(long, value_name = "URL")]
    admin: Vec<String>,
    /// TOML file with a table `[hosts.NAME]` for each host: its `admin`, and its `token-file`, if it has one of its own.
    /// The variable counts only without --admin, and before INFER_ADMIN [env: INFER_HOSTS]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// File with the admin token of hosts that have no file of their own [default: INFER_ADMIN_TOKEN, else the file
    /// that a host on this machine wrote]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// A host, and what it is called.
pub(super) struct Named {
    /// Its name in the file, or its address.
    pub name: String,
    pub host: Host,
}

impl Named {
    /// Whether the file names it, so that its address alone says less.
    pub fn is_listed(&self) -> bool {
        self.name != unlisted(&self.host)
    }

    /// A failure of this host, with its name if the file gives it one.
    pub fn located(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Failed(why) if self.is_listed() => Failure::Failed(format!("{}: {why}", self.name)),
            failure => failure,
        }
    }
}

/// What a host is called that the file doesn't name.
fn unlisted(host: &Host) -> &str {
    host.base().trim_start_matches("http://")
}

impl HostsArg {
    /// All hosts, at least one: those of the file first, in its order.
    pub(super) fn all(&self) -> Result<Vec<Named>, Failure> {
        let shared = self.token_file.as_deref().map(named_token).transpose()?.map(Ok);
        let mut all = Vec::new();
        if let Some((named, path)) = self.file()? {
            let listed = read(&path).map_err(|wrong| Failure::Usage(format!("{named}: {wrong}")))?;
            for Listed { name, place, admin, token_file } in listed {
                let token = token_file.map(|file| token::read(&file)).or_else(|| shared.clone());
                all.push(Named { name, host: Host::at(&format!("{named}: {place}"), &admin, token)? });
            }
        }
        let mut given = self.admin.clone();
        if all.is_empty() && given.is_empty() {
            given.push(usual_address()?);
        }
        for address in given {
            let host = Host::at("--admin", &address, shared.clone())?;
            all.push(Named { name: unlisted(&host).to_owned(), host });
        }
        distinct(&all)?;
        Ok(all)
    }

    /// The file, and what named it. The variable gives way to any flag that names hosts: what the command line says is
    /// all it means.
    fn file(&self) -> Result<Option<(&'static str, PathBuf)>, Failure> {
        if let Some(path) = &self.hosts {
            return Ok(Some(("--hosts", path.clone())));
        }
        if !self.admin.is_empty() {
            return Ok(None);
        }
        let environment = Environment::of_process();
        Ok(environment.get(VARIABLE)?.map(|path| (VARIABLE, PathBuf::from(path))))
    }
}

/// Refuses a host that is there twice, and more hosts than can be asked at once.
fn distinct(all: &[Named]) -> Result<(), Failure> {
    if all.len() > MAX_HOSTS {
        return Err(Failure::Usage(format!("{} hosts; a command takes at most {MAX_HOSTS}", all.len())));
    }
    for (at, one) in all.iter().enumerate() {
        let earlier = &all[..at];
        if let Some(other) = earlier.iter().find(|other| other.host.base() == one.host.base()) {
            let (one, other, base) = (&one.name, &other.name, one.host.base());
            return Err(Failure::Usage(format!("{other} and {one} are both {base}; name each host once")));
        }
        if earlier.iter().any(|other| other.name == one.name) {
            return Err(Failure::Usage(format!("two hosts are called {}; rename one of them", one.name)));
        }
    }
    Ok(())
}

/// A host of the file.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    /// File, line and key of its address, for errors.
    place: String,
    admin: String,
    token_file: Option<PathBuf>,
}

fn read(path: &Path) -> Result<Vec<Listed>, String> {
    let shown = path.display().to_string();
    let text = read_text(path).map_err(|error| format!("can't read {shown}: {error}"))?;
    parse(&shown, &text, path.parent().unwrap_or(Path::new("")))
}

/// Parses a file's text; `shown` names the file in errors, and its token files are relative to `folder`.
fn parse(shown: &str, text: &str, folder: &Path) -> Result<Vec<Listed>, String> {
    let document = Document::parse(shown, text)?;
    let mut all = Vec::new();
    for top in document.entries() {
        if top.key != "hosts" {
            let near = document.near(&top.key, &["hosts"]);
            return Err(document.wrong(&top, format!("unknown key{near}")));
        }
        for entry in document.table(&top)? {
            all.push(listed(shown, &document, &entry, folder)?);
        }
    }
    if all.is_empty() {
        return Err(format!("{shown} names no hosts; each has a table `[hosts.NAME]` with its `admin`"));
    }
    Ok(all)
}

fn listed(shown: &str, document: &Document<'_>, entry: &Entry<'_>, folder: &Path) -> Result<Listed, String> {
    let (mut admin, mut token_file) = (None, None);
    for field in document.table(entry)? {
        let text = field.text().ok_or_else(|| document.wrong(&field, "expected a text"));
        match field.key.as_str() {
            "admin" => admin = Some((format!("{shown}:{}: {}", document.line(&field), field.path), text?)),
            "token-file" => {
                let file = text?;
                if file.is_empty() {
                    let why = "names no file; leave it out if the host has no token file of its own";
                    return Err(document.wrong(&field, why));
                }
                token_file = Some(folder.join(file));
            }
            other => {
                let near = document.near(other, &KEYS);
                return Err(document.wrong(&field, format!("unknown key{near}")));
            }
        }
    }
    let needed = || document.wrong(entry, "needs `admin`, the URL of the host's admin plane");
    let (place, admin) = admin.ok_or_else(needed)?;
    Ok(Listed { name: entry.key.clone(), place, admin, token_file })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(admin: &[&str], hosts: Option<&Path>, token_file: Option<&Path>) -> HostsArg {
        HostsArg {
            admin: admin.iter().map(|&address| address.to_owned()).collect(),
            hosts: hosts.map(Path::to_owned),
            token_file: token_file.map(Path::to_owned),
        }
    }

    #[test]
    fn hosts_keep_the_order_of_the_file_and_their_token_files_are_beside_it() {
        let text = "[hosts.b]\nadmin = \"10.0.0.2:8001\"\ntoken-file = \"b.token\"\n\n[hosts.a]\n\
                    admin = \"http://10.0.0.1:8001\"\n[hosts.c]\nadmin = \"c\"\ntoken-file = \"/etc/c.token\"\n";
        let listed = |name: &str, line: u32, admin: &str, token_file: Option<&str>| Listed {
            name: name.to_owned(),
            place: format!("f:{line}: hosts.{name}.admin"),
            admin: admin.to_owned(),
            token_file: token_file.map(PathBuf::from),
        };
        let want = [
            listed("b", 2, "10.0.0.2:8001", Some("site/b.token")),
            listed("a", 6, "http://10.0.0.1:8001", None),
            listed("c", 8, "c", Some("/etc/c.token")),
        ];
        assert_eq!(parse("f", text, Path::new("site")).unwrap(), want);
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, start) in [
            ("", "f names no hosts"),
            ("[hosts]", "f names no hosts"),
            ("hosts = 3", "f:1: hosts: expected a table"),
            ("[host.a]", "f:1: host: unknown key; did you mean `hosts`?"),
            ("[hosts.a]\n", "f:1: hosts.a: needs `admin`"),
            ("[hosts.a]\nadmin = [\"x\"]", "f:2: hosts.a.admin: expected a text"),
            (
                "[hosts.a]\nadmin = \"x\"\ntoken_fil = \"t\"",
                "f:3: hosts.a.token_fil: unknown key; did you mean `token-file`?",
            ),
            (
                "[hosts.a]\nadmin = \"x\"\ntoken-file = \"\"",
                "f:3: hosts.a.token-file: names no file; leave it out",
            ),
            ("[hosts.a", "f:1: "),
        ] {
            let error = parse("f", text, Path::new("")).unwrap_err();
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }

    #[test]
    fn file_and_flags_add_up_and_each_host_is_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts.toml");
        std::fs::write(&file, "[hosts.a]\nadmin = \"10.0.0.1:8001\"\ntoken-file = \"missing\"\n").unwrap();
        // That its token file is missing concerns only this host.
        let all = arg(&["10.0.0.2:8001", "http://10.0.0.3:8001/"], Some(&file), None).all();
        let all = all.unwrap_or_else(|failure| panic!("{}", failure.message()));
        let said = |at: usize| all[at].located(Failure::Failed("no".to_owned())).message();
        assert_eq!([said(0), said(1)], ["a: no", "no"]);
        let names: Vec<_> = all.iter().map(|named| (named.name.as_str(), named.host.base())).collect();
        let want = [
            ("a", "http://10.0.0.1:8001"),
            ("10.0.0.2:8001", "http://10.0.0.2:8001"),
            ("10.0.0.3:8001", "http://10.0.0.3:8001"),
        ];
        assert_eq!(names, want);

        let fails = |arg: HostsArg, words: &str| match arg.all() {
            Err(Failure::Usage(why)) => assert!(why.contains(words), "{why}"),
            _ => panic!("it is accepted, though: {words}"),
        };
        let twice = "a and 10.0.0.1:8001 are both http://10.0.0.1:8001; name each host once";
        fails(arg(&["10.0.0.1:8001"], Some(&file), None), twice);
        fails(
            arg(&["https://10.0.0.1"], None, None),
            "--admin: https://10.0.0.1: the admin plane has no TLS",
        );
        fails(arg(&[], Some(&dir.path().join("none")), None), "--hosts: can't read ");
        fails(arg(&["10.0.0.1:8001"], None, Some(&dir.path().join("none"))), "--token-file: can't read ");
        fails(
            arg(&["10.0.0.1:8001"], None, Some(Path::new(""))),
            "--token-file: an empty text names no file",
        );
        std::fs::write(&file, "[hosts.a]\nadmin = \"ftp://x\"\n").unwrap();
        fails(arg(&[], Some(&file), None), "hosts.toml:2: hosts.a.admin: ftp://x is not a URL like");
    }
}
