//! The state file: JSON that says of each slot what was configured, what was swapped in instead and what happened, and
//! what is in quarantine.
//!
//! Components are files of their own, which this one names by digest. Read back, it is held to its bounds, because it
//! may have been damaged or edited.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use infer_api::admin::{HistoryEntry, QuarantineEntry};
use infer_core::policy::PolicyKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policies::{Component, Member, Origin};

/// Most bytes of a state file.
pub(super) const MAX_BYTES: u64 = 16 << 20;
/// History entries saved per slot.
pub(super) const HISTORY: usize = 100;
/// What a state file says of itself, in its first bytes.
const FORMAT: &str = "infer policy state";
/// Bytes within which it says so.
const START_BYTES: u64 = 256;
const VERSION: u32 = 1;
/// Digits of a digest.
const DIGITS: usize = 64;

/// A state file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Document {
    /// [`FORMAT`].
    format: String,
    version: u32,
    /// Version of the host that saved it.
    pub host: String,
    /// When: RFC 3339, UTC.
    pub saved_at: String,
    /// By the slots' names.
    pub slots: BTreeMap<String, SlotRecord>,
    /// Oldest first.
    pub quarantine: Vec<QuarantineEntry>,
}

/// A slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SlotRecord {
    /// What flags and files said.
    pub configured: Vec<Kept>,
    /// What was live, if that was something else; never a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped: Option<Vec<Kept>>,
    /// Name of the canary that was on trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
    /// Name of the shadow that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<String>,
    /// Oldest first.
    pub history: Vec<HistoryEntry>,
}

/// A policy, or a member of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub source: Source,
    pub name: String,
    /// SHA-256 of its component; empty for a native one.
    pub sha256: String,
    pub config: Value,
}

/// Where a policy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    /// The host itself.
    Native,
    /// The host's binary.
    Bundled,
    /// An upload, or a file that a flag names.
    Component,
}

/// What identifies a file without the rest of it.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

impl Document {
    /// One of this version, with nothing in it.
    pub fn new(saved_at: String) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            host: env!("CARGO_PKG_VERSION").to_owned(),
            saved_at,
            ..Self::default()
        }
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let damaged = |error: serde_json::Error| format!("it is damaged: {error}");
        let head: Head = serde_json::from_slice(bytes).map_err(damaged)?;
        if head.format != FORMAT {
            return Err("it holds something else".to_owned());
        }
        if head.version != VERSION {
            return Err(format!("it has version {}; this host reads version {VERSION}", head.version));
        }
        let document: Self = serde_json::from_slice(bytes).map_err(damaged)?;
        document.check()?;
        Ok(document)
    }

    fn check(&self) -> Result<(), String> {
        for (name, slot) in &self.slots {
            if !PolicyKind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(format!("it has a slot `{name}`, which this host doesn't"));
            }
            for kept in slot.configured.iter().chain(slot.swapped.iter().flatten()) {
                // It becomes the name of a file.
                if kept.source == Source::Component && !is_digest(&kept.sha256) {
                    return Err(format!("the component of `{}` has no SHA-256", kept.name));
                }
            }
            if slot.configured.is_empty() || slot.swapped.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("the slot `{name}` has no policy"));
            }
        }
        Ok(())
    }

    /// The SHA-256 of the components that it names as swapped in.
    pub fn components(&self) -> BTreeSet<&str> {
        let swapped = self.slots.values().flat_map(|slot| slot.swapped.iter().flatten());
        swapped.filter(|kept| kept.source == Source::Component).map(|kept| kept.sha256.as_str()).collect()
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// It couldn't be read again. Configurations come from operators, and may be as large and as deeply nested as a
    /// request may be.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let bytes = serde_json::to_vec_pretty(self)?;
        let outcome = match bytes.len() as u64 > MAX_BYTES {
            true => Err(format!("it has more than {MAX_BYTES} bytes")),
            false => Self::parse(&bytes).map(|_| ()),
        };
        outcome.map_err(|why| io::Error::other(format!("it couldn't be read again: {why}")))?;
        Ok(bytes)
    }
}

impl Kept {
    /// A policy's, or its members'.
    pub fn all(origin: &Origin) -> Vec<Self> {
        origin.members.iter().map(Self::of).collect()
    }

    fn of(member: &Member) -> Self {
        let source = match member.component {
            Component::Native => Source::Native,
            Component::Bundled(_) => Source::Bundled,
            Component::Given(_) => Source::Component,
        };
        let Member { info, config, .. } = member;
        Self { source, name: info.name.clone(), sha256: info.digest.clone(), config: config.clone() }
    }

    /// Whether both are the same choice of an operator. A bundled policy is chosen by its name: another version of the
    /// host brings another component.
    pub fn is(&self, other: &Self) -> bool {
        let same = match self.source {
            Source::Native => true,
            Source::Bundled => self.name == other.name,
            Source::Component => self.sha256 == other.sha256,
        };
        same && self.source == other.source && self.config == other.config
    }
}

/// Whether both are the same choice.
pub(super) fn are_same(one: &[Kept], other: &[Kept]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is(other))
}

/// The name of a policy or list.
pub(super) fn name_of(all: &[Kept]) -> String {
    all.iter().map(|kept| kept.name.as_str()).collect::<Vec<_>>().join("+")
}

/// Reads the bytes of a file, for `edges`. What is read could be written again, and then be read.
///
/// # Errors
/// What is wrong with them.
pub(super) fn examine(bytes: &[u8]) -> Result<(), String> {
    let document = Document::parse(bytes)?;
    let again = document.bytes().map_err(|error| error.to_string())?;
    assert!(is_ours(&again[..]).is_ok_and(|ours| ours), "it is known by its beginning");
    assert_eq!(Document::parse(&again), Ok(document), "it is read as it was written");
    Ok(())
}

/// Whether a text is a SHA-256 as it is written here.
pub(super) fn is_digest(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a file is a state file, going by its beginning: of any version, however damaged its rest is. Or it is empty.
pub(super) fn is_ours(file: impl Read) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(START_BYTES).read_to_end(&mut start)?;
    let format = FORMAT.as_bytes();
    Ok(start.is_empty() || start.windows(format.len()).any(|part| part == format))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Read inexactly, it would be another number each time.
    const TINY: f64 = 4.614226055082188e-10;

    fn kept(source: Source, name: &str, sha256: &str) -> Kept {
        Kept { source, name: name.to_owned(), sha256: sha256.to_owned(), config: json!({"x": [1, TINY]}) }
    }

    fn example() -> Document {
        let digest = "0a".repeat(32);
        let slot = SlotRecord {
            configured: vec![kept(Source::Bundled, "continuous", &digest)],
            swapped: Some(vec![kept(Source::Component, "mine", &digest), kept(Source::Native, "fcfs", "")]),
            canary: Some("srpt".to_owned()),
            shadow: None,
            history: vec![HistoryEntry { to: "mine".to_owned(), at_ms: 7, ..HistoryEntry::default() }],
        };
        let entry = QuarantineEntry {
            sha256: digest,
            config: json!({"b": 1, "a": 2}),
            reason: "trap".to_owned(),
            ..QuarantineEntry::default()
        };
        let slots = BTreeMap::from([("scheduler".to_owned(), slot)]);
        Document { slots, quarantine: vec![entry], ..Document::new("2026-03-01T12:00:00Z".to_owned()) }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let document = example();
        let bytes = document.bytes().unwrap();
        assert_eq!(Document::parse(&bytes), Ok(document));
        for ours in [&bytes[..], &bytes[..60], b""] {
            assert!(is_ours(ours).unwrap());
        }
        for other in [&b"{\"precious\": true}"[..], &[0; 4_096], &bytes[60..]] {
            assert!(!is_ours(other).unwrap());
        }
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let bytes = |config: Value| {
            let mut document = example();
            document.quarantine[0].config = config;
            document.bytes().map_err(|error| error.to_string())
        };
        let nested = |depth: u32| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        assert!(bytes(nested(100)).is_ok());
        // A request may have it, in which it is not as deep.
        let why = bytes(nested(126)).unwrap_err();
        assert!(why.contains("couldn't be read again: it is damaged: recursion limit"), "{why}");
        let large = "x".repeat(usize::try_from(MAX_BYTES).unwrap());
        let why = bytes(json!({"x": large})).unwrap_err();
        assert!(why.contains("couldn't be read again: it has more than "), "{why}");
    }

    #[test]
    fn damage_is_found_wherever_the_file_ends() {
        let bytes = example().bytes().unwrap();
        for end in 0..bytes.len() {
            assert!(Document::parse(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn what_this_host_cannot_use_is_refused_with_the_reason() {
        let good = serde_json::to_value(example()).unwrap();
        for (pointer, value, says) in [
            ("/format", json!("recipe"), "something else"),
            ("/version", json!(2), "version 2; this host reads version 1"),
            ("/slots/scheduler/swapped/0/sha256", json!("../../etc/passwd"), "`mine` has no SHA-256"),
            ("/slots/scheduler/swapped/0/sha256", json!("0A".repeat(32)), "`mine` has no SHA-256"),
            ("/slots/scheduler/swapped", json!([]), "has no policy"),
            ("/slots/scheduler/configured", json!([]), "has no policy"),
            ("/slots", json!({"router": good["slots"]["scheduler"]}), "a slot `router`"),
            ("/quarantine", json!(7), "damaged"),
        ] {
            let mut wrong = good.clone();
            *wrong.pointer_mut(pointer).unwrap() = value;
            let error = Document::parse(wrong.to_string().as_bytes()).unwrap_err();
            assert!(error.contains(says), "{pointer}: {error}");
        }
    }

    #[test]
    fn a_choice_is_a_name_of_a_bundled_policy_or_the_bytes_of_a_file_and_a_configuration() {
        let one = |source, name: &str, sha256: &str| vec![kept(source, name, sha256)];
        let configured = |config| vec![Kept { config, ..kept(Source::Native, "fcfs", "") }];
        for (one, other, same) in [
            (one(Source::Bundled, "lru", "a"), one(Source::Bundled, "lru", "b"), true),
            (one(Source::Bundled, "lru", "a"), one(Source::Bundled, "session", "a"), false),
            (one(Source::Component, "old", "a"), one(Source::Component, "new", "a"), true),
            (one(Source::Component, "mine", "a"), one(Source::Component, "mine", "b"), false),
            (one(Source::Component, "lru", "a"), one(Source::Bundled, "lru", "a"), false),
            (configured(json!({"a": 1, "b": 2})), configured(json!({"b": 2, "a": 1})), true),
            (configured(json!({"a": 1})), configured(json!({"a": 2})), false),
            (one(Source::Native, "fcfs", ""), Vec::new(), false),
        ] {
            assert_eq!(are_same(&one, &other), same, "{one:?} {other:?}");
        }
    }
}
