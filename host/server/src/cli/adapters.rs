//! `infer admin adapters`: the LoRA adapters of a running host.

use std::path::Path;

use clap::Subcommand;
use infer_api::admin::{AdapterList, AdapterOrder, AdapterRow, AdapterUnloaded};
use reqwest::Method;

use super::Failure;
use super::admin::{Host, Target, parse, print_json};
use super::operate::list;

const PATH: &str = "/admin/adapters";

/// Commands about a host's adapters.
#[derive(Subcommand)]
pub enum AdaptersCommand {
    /// Lists the adapters
    List(Target),
    /// Loads an adapter; requests may name it once the command is done
    Load {
        /// Its name in requests
        name: String,
        /// Its directory on the host's machine, or ORG/NAME if that is in the Hugging Face cache there
        path: String,
        #[command(flatten)]
        target: Target,
    },
    /// Unloads an adapter: no new request may name it, and it leaves once those that use it have ended
    Unload {
        /// Its name in requests
        name: String,
        #[command(flatten)]
        target: Target,
    },
}

/// Runs a command.
pub(super) async fn act(command: AdaptersCommand) -> Result<(), Failure> {
    match command {
        AdaptersCommand::List(target) => all(&target).await,
        AdaptersCommand::Load { name, path, target } => load(&target, name, &path).await,
        AdaptersCommand::Unload { name, target } => unload(&target, &name).await,
    }
}

async fn all(target: &Target) -> Result<(), Failure> {
    let answer = Host::of(&target.admin)?.ask(Method::GET, PATH, None).await?;
    if target.json {
        return print_json(&answer);
    }
    let AdapterList { adapters, bytes, max_adapters, max_bytes } = parse(answer)?;
    if !adapters.is_empty() {
        let head = ["name", "state", "rank", "bytes", "requests", "live", "path"];
        list(head, adapters.iter().map(row), adapters.len() as u32);
    }
    let count = adapters.len();
    println!("{count} of at most {max_adapters} adapters, which take {bytes} of at most {max_bytes} bytes");
    Ok(())
}

async fn load(target: &Target, name: String, path: &str) -> Result<(), Failure> {
    let order = AdapterOrder { name, path: whole(path) };
    let body = serde_json::to_vec(&order).map_err(Failure::failed)?;
    let host = Host::of(&target.admin)?;
    let answer = host.ask(Method::POST, PATH, Some(("application/json", body))).await?;
    if target.json {
        return print_json(&answer);
    }
    let AdapterRow { name, rank, bytes, .. } = parse(answer)?;
    println!("loaded {name}, of rank {rank} and {bytes} bytes");
    Ok(())
}

async fn unload(target: &Target, name: &str) -> Result<(), Failure> {
    let path = format!("{PATH}/{}", segment(name));
    let answer = Host::of(&target.admin)?.ask(Method::DELETE, &path, None).await?;
    if target.json {
        return print_json(&answer);
    }
    let AdapterUnloaded { adapter, dropped_blocks, .. } = parse(answer)?;
    println!("unloaded {}, which had {dropped_blocks} cached blocks", adapter.name);
    Ok(())
}

/// A path as the host needs it, which may have been started in another directory: that of a directory here in full, anything
/// else as it is.
fn whole(path: &str) -> String {
    let here = Path::new(path);
    match std::path::absolute(here) {
        Ok(full) if here.is_dir() => full.to_string_lossy().into_owned(),
        _ => path.to_owned(),
    }
}

/// A name as a segment of a path.
fn segment(name: &str) -> String {
    // Forms write spaces as `+`, which means itself in paths.
    form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

fn row(adapter: &AdapterRow) -> [String; 7] {
    [
        adapter.name.clone(),
        adapter.state.clone(),
        adapter.rank.to_string(),
        adapter.bytes.to_string(),
        adapter.requests.to_string(),
        adapter.live.to_string(),
        adapter.path.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::path_text;

    #[test]
    fn any_name_is_a_segment_that_the_host_reads_as_the_name() {
        for name in ["sql", "org/sql v2", "a+b&c=d", "100%", "é?#"] {
            let segment = segment(name);
            assert!(!segment.contains(['/', '?', '#', ' ', '+']), "{segment}");
            assert_eq!(path_text(&segment), name);
        }
    }

    #[test]
    fn only_directories_that_are_here_become_full_paths() {
        assert_eq!(whole("no-such-folder/sql"), "no-such-folder/sql");
        let full = whole("src");
        assert!(Path::new(&full).is_absolute() && full.ends_with("src"), "{full}");
    }
}
