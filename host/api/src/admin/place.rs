//! Where a host keeps its admin token, and which addresses may receive it.
//!
//! The host writes the file; the command line and the console read it. The rule decides who gets a token, so
//! it is stated once, for all three.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Directories that may hold the token file of a host on this machine, most preferred first:
/// `$XDG_RUNTIME_DIR/infer` and `<temporary directory>/infer-<user>`. `user` is the process's user id.
///
/// A host writes to the first one it can use; a client reads the first file it can open, because host and
/// client may run as different users.
#[must_use]
pub fn token_directories(user: u32) -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    directories(runtime, &std::env::temp_dir(), user)
}

/// Name of the token file of the admin plane at `port`.
#[must_use]
pub fn token_file(port: u16) -> String {
    format!("admin-{port}.token")
}

/// Whether the host of a URL names this machine. Only such an address is sent the token of a host on this
/// machine.
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical());
    // A host that listens on all interfaces prints the unspecified address.
    address.map_or(host == "localhost", |address| address.is_loopback() || address.is_unspecified())
}

fn directories(runtime: Option<PathBuf>, temporary: &Path, user: u32) -> Vec<PathBuf> {
    // The XDG specification tells programs to ignore relative paths.
    let runtime =
        runtime.filter(|directory| directory.is_absolute()).map(|directory| directory.join("infer"));
    runtime.into_iter().chain([temporary.join(format!("infer-{user}"))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_directory_comes_before_the_temporary_one() {
        let found = |runtime: Option<&str>| directories(runtime.map(PathBuf::from), Path::new("/tmp"), 7);
        let fallback = PathBuf::from("/tmp/infer-7");
        assert_eq!(found(Some("/run/user/7")), [PathBuf::from("/run/user/7/infer"), fallback.clone()]);
        for none in [None, Some(""), Some("run")] {
            assert_eq!(found(none), std::slice::from_ref(&fallback), "{none:?}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_get_its_token() {
        for here in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"]
        {
            assert!(is_this_machine(here), "{here}");
        }
        for elsewhere in
            ["gpu-box", "192.168.1.7", "127.0.0.1.example.org", "localhost.example.org", "[fe80::1]", ""]
        {
            assert!(!is_this_machine(elsewhere), "{elsewhere}");
        }
    }
}
