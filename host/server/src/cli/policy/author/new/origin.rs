//! What a new crate begins as: the template of a kind, or a copy of a shipped policy, under its own name.

use clap::ValueEnum as _;

use crate::cli::policy::Kind;

/// Paths below a crate's folder, and contents.
type Files = &'static [(&'static str, &'static str)];

/// The shipped policies and the templates: their folders below `plugins`, and their files.
const SOURCES: &[(&str, Files)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// Names that a policy's type can't have, because generated code uses them, besides what the sources name.
const TAKEN: [&str; 16] = [
    "Box",
    "Clone",
    "Copy",
    "Default",
    "Drop",
    "Err",
    "Exported",
    "ExportedPolicy",
    "From",
    "Into",
    "None",
    "Ok",
    "Option",
    "Self",
    "Some",
    "String",
];
/// What the description of a template begins with under another name than its own.
const EXAMPLE: &str = "An example to change: ";

/// What a new crate begins as.
pub(super) struct Origin {
    pub kind: Kind,
    /// What the policy does, as it follows "a policy that".
    pub does: String,
    /// The shipped policy to compare it with.
    pub rival: &'static str,
    /// Paths and contents of its sources.
    pub sources: Vec<(&'static str, String)>,
    /// What it depends on, besides for tests.
    pub dependencies: Vec<&'static str>,
    /// The shipped policies that its tests compare it with.
    pub baselines: Vec<Baseline>,
}

/// A shipped policy that is a library to others.
pub(super) struct Baseline {
    /// Its folder below `plugins`.
    pub folder: &'static str,
    /// Its crate.
    pub package: &'static str,
    pub files: Files,
    pub dependencies: Vec<&'static str>,
}

impl Origin {
    /// The template of a kind, for a crate named `name`.
    pub fn template(kind: Kind, name: &str) -> Self {
        let (folder, does, rival) = match kind {
            Kind::Scheduler => (
                "templates/scheduler",
                "starts the shortest prompt first, and lets no request wait for too long",
                "continuous",
            ),
            Kind::Admission => {
                ("templates/admission", "defers long prompts while the KV pool is full", "memory-aware")
            }
            Kind::PrefixCache => ("templates/prefix-cache", "evicts the least recently used prefixes", "lru"),
        };
        let mut template = Self::of(kind, folder, does.to_owned(), rival);
        template.call(name);
        template
    }

    /// Gives a template another name, unless its own is meant: that of the type in its sources. Whatever says what the
    /// policy does then says that it is an example.
    fn call(&mut self, name: &str) {
        let library =
            self.sources.iter().find(|(path, _)| *path == "src/lib.rs").expect("a crate has a library");
        let own = exported(&library.1).to_owned();
        let mut wanted = type_name(name);
        if wanted == own {
            return;
        }
        let is_named = |(_, content): &(&str, String)| replaced(content, &wanted, "") != *content;
        if TAKEN.contains(&wanted.as_str()) || self.sources.iter().any(is_named) {
            wanted += "Policy";
        }
        for (path, content) in &mut self.sources {
            *content = replaced(content, &own, &wanted);
            if *path == "src/lib.rs" {
                *content = format!("//! `{name}`, which began as an example:\n//!\n{}", described(content));
            }
        }
        self.does = format!("begins as an example: it {}", self.does);
    }

    /// A copy of the shipped policy `from`, for a crate named `name`.
    pub fn copy(from: &str, name: &str) -> Self {
        let shipped = infer_bundle::POLICIES.iter().find(|policy| policy.name == from);
        let shipped = shipped.expect("only names of shipped policies are accepted");
        let kind = Kind::from_str(shipped.kind, false).expect("each kind of policy is a kind of argument");
        let mut copy = Self::of(kind, shipped.name, format!("does what `{from}` does"), shipped.name);
        for (_, content) in copy.sources.iter_mut().filter(|(path, _)| *path == "src/lib.rs") {
            for (theirs, own) in renamed(from, name) {
                *content = content.replacen(&theirs, &own, 1);
            }
        }
        copy
    }

    fn of(kind: Kind, folder: &'static str, does: String, rival: &'static str) -> Self {
        let files = files(folder);
        let baselines = dependencies(files, "[dev-dependencies]").into_iter().map(Baseline::new);
        Self {
            kind,
            does,
            rival,
            sources: files
                .iter()
                .filter(|(path, _)| path.starts_with("src/"))
                .map(|&(path, content)| (path, content.to_owned()))
                .collect(),
            dependencies: dependencies(files, "[dependencies]"),
            baselines: baselines.collect(),
        }
    }

    /// The flags of `infer sim compare` for the host with the policy's rival.
    pub fn beside(&self) -> String {
        match self.kind {
            Kind::Scheduler => format!("--scheduler {}", self.rival),
            kind => format!("--scheduler continuous --{} {}", kind.name(), self.rival),
        }
    }
}

impl Baseline {
    fn new(package: &'static str) -> Self {
        let folder = package.strip_prefix("policy-").expect("tests of policies depend on policies alone");
        let files = files(folder);
        Self { folder, package, files, dependencies: dependencies(files, "[dependencies]") }
    }
}

/// The type that a policy's source exports.
fn exported(library: &str) -> &str {
    let given = library.split("export_policy!(").nth(1).and_then(|rest| rest.split(')').next());
    let (_, name) = given.and_then(|given| given.split_once(": ")).expect("a policy exports its type");
    name
}

/// The type of a policy with this name, as in `ShortestFirst`.
fn type_name(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(capital).collect()
}

/// Replaces a name in a source, but no name of which it is a part.
fn replaced(source: &str, name: &str, other: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let (mut text, mut rest) = (String::new(), source);
    while let Some((before, after)) = rest.split_once(name) {
        let is_whole = !before.ends_with(is_part) && !after.starts_with(is_part);
        text += before;
        text += if is_whole { other } else { name };
        rest = after;
    }
    text + rest
}

/// A template's source whose description says that it is an example.
fn described(library: &str) -> String {
    let (before, rest) = library.split_once("const DESCRIPTION:").expect("a policy describes itself");
    let (declared, words) = rest.split_once('"').expect("in a literal");
    let (first, words) = words.split_at(1);
    let first = first.to_ascii_lowercase();
    format!("{before}const DESCRIPTION:{declared}\"{EXAMPLE}{first}{words}")
}

/// A shipped policy's own words for its name, and what a copy has there: state moves between policies of one name.
fn renamed(from: &str, name: &str) -> [(String, String); 2] {
    [
        (
            format!("const NAME: &'static str = \"{from}\";"),
            "const NAME: &'static str = env!(\"CARGO_PKG_NAME\");".to_owned(),
        ),
        (format!("//! `{from}`: "), format!("//! `{name}`, which began as `{from}`: ")),
    ]
}

fn files(folder: &str) -> Files {
    SOURCES.iter().find(|(name, _)| *name == folder).expect("its sources are embedded").1
}

/// What a manifest's section inherits from the workspace.
fn dependencies(files: Files, section: &str) -> Vec<&'static str> {
    let manifest = files.iter().find(|(path, _)| *path == "Cargo.toml").expect("a crate has a manifest").1;
    let lines = manifest.lines().skip_while(|line| *line != section).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_suffix(".workspace = true"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_the_name_of_their_crate() {
        for (kind, own) in [
            (Kind::Scheduler, "shortest-first"),
            (Kind::Admission, "prompt-gate"),
            (Kind::PrefixCache, "least-recently-used"),
        ] {
            let source = |name: &str, path: &str| {
                let origin = Origin::template(kind, name);
                origin.sources.into_iter().find(|(known, _)| *known == path).unwrap().1
            };
            let library = source("over-9", "src/lib.rs");
            assert!(library.starts_with("//! `over-9`, which began as an example:\n//!\n//! "), "{library}");
            assert!(library.contains("pub struct Over9 "), "{library}");
            assert!(library.contains(&format!("\"{EXAMPLE}")), "{library}");
            let tests = source("over-9", "src/tests.rs");
            let theirs = type_name(own);
            assert!(tests.contains("Over9") && !(tests + &library).contains(&theirs), "{theirs}: {library}");
            assert!(Origin::template(kind, "over-9").does.starts_with("begins as an example: it "));
            // Its own name is meant as it is.
            assert!(source(own, "src/lib.rs").contains(&format!("pub struct {theirs} ")));
            assert!(!source(own, "src/lib.rs").contains(EXAMPLE));
            // These are names of other things.
            for (name, other) in [("policy", "PolicyPolicy"), ("option", "OptionPolicy")] {
                assert!(source(name, "src/lib.rs").contains(&format!("pub struct {other} ")), "{name}");
            }
        }
        assert_eq!(replaced("Old Older old Old::x Old", "Old", "New"), "New Older old New::x New");
    }

    #[test]
    fn every_shipped_policy_can_be_copied_under_another_name() {
        for policy in infer_bundle::POLICIES {
            let library = files(policy.name).iter().find(|(path, _)| *path == "src/lib.rs").unwrap().1;
            for (theirs, _) in renamed(policy.name, "mine") {
                assert_eq!(library.matches(&theirs).count(), 1, "`{theirs}` in {policy:?}");
            }
            let copy = Origin::copy(policy.name, "mine");
            assert_eq!(copy.kind.name(), policy.kind);
            let (_, library) = copy.sources.iter().find(|(path, _)| *path == "src/lib.rs").unwrap();
            assert!(
                library.starts_with(&format!("//! `mine`, which began as `{}`: ", policy.name)),
                "{policy:?}"
            );
            assert!(library.contains("NAME: &'static str = env!(\"CARGO_PKG_NAME\");"), "{policy:?}");
            assert!(copy.sources.iter().any(|(path, _)| *path == "src/tests.rs"), "{policy:?}");
            assert!(copy.dependencies.contains(&"infer-policy-sdk"), "{policy:?}");
            // What it needs is in the new workspace, and its baselines need nothing more for tests.
            let needed = copy.baselines.iter().flat_map(|baseline| &baseline.dependencies);
            for needed in needed.chain(&copy.dependencies) {
                assert!(
                    super::super::WORKSPACE.contains(&format!("\n{needed} = ")),
                    "{needed} of {policy:?}"
                );
            }
            for baseline in &copy.baselines {
                assert!(
                    dependencies(baseline.files, "[dev-dependencies]").is_empty(),
                    "{}",
                    baseline.package
                );
            }
        }
    }
}
