//! Commands as processes: those of an operator, which find the host's token without being given it, those that check
//! settings, and `infer generate`, which samples the same tokens as a host.

mod admin;
mod generate;
mod policy;
mod replay;
mod settings;
mod token;

use std::process::Output;

use serde_json::Value;

use crate::process::{Home, Host, complaint};

/// An operator at a terminal on the host's machine.
struct Operator<'a> {
    home: &'a Home,
    host: &'a Host,
}

impl Operator<'_> {
    fn types(&self, arguments: &[&str]) -> Output {
        self.types_to("policy", arguments)
    }

    fn types_to(&self, group: &str, arguments: &[&str]) -> Output {
        let mut command = self.home.command("", &[group]);
        command.args(arguments).env("INFER_ADMIN", &self.host.admin).output().expect("sh starts")
    }

    /// The output of a command that must succeed.
    fn sees(&self, arguments: &[&str]) -> String {
        let output = self.types(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn sees_json(&self, arguments: &[&str]) -> Value {
        let printed = self.sees(&[arguments, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"))
    }

    /// Asserts that a command's output contains all of these.
    fn sees_that(&self, arguments: &[&str], words: &[&str]) {
        let printed = self.sees(arguments);
        for word in words {
            assert!(printed.contains(word), "{arguments:?}: `{word}` isn't in: {printed}");
        }
    }

    fn live(&self, kind: &str) -> Value {
        self.sees_json(&["describe", kind])["name"].clone()
    }
}

/// Keeps compiled policies for the next test, because all tests use the same ones.
pub const KEPT: &str = concat!("export XDG_CACHE_HOME='", env!("CARGO_TARGET_TMPDIR"), "/commands-cache'");

/// A host in the usual configuration.
pub fn serving(home: &Home) -> Host {
    Host::start(home.serve(KEPT, &[]))
}
