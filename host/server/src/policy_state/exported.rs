//! The file of what live policies exported, and of the numbers in which that is told: a line of JSON, the states one
//! after the other, and a SHA-256 of all that. Behind the states of live policies are those that wait for a policy that
//! couldn't be loaded.
//!
//! It is apart from the state file because it changes every few seconds and may have megabytes, and because a host
//! starts without it if it is damaged. Tenants are in it by their names, never by their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use infer_core::engine::{Carried, Exported, Numbers};
use infer_core::policy::PolicyKind;
use infer_core::{Micros, TenantHistory, TenantId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::tenants::{MAX_NAMES, Numbering, check_form};

/// Most bytes of a file: a list of eight policies and two others, 8 MiB each, as many that wait, and the first line.
pub(super) const MAX_BYTES: u64 = 192 << 20;
/// Most bytes of its first line: some two hundred for a tenant.
const MAX_HEAD_BYTES: usize = 4 << 20;
const FORMAT: &str = "infer exported policy states";
const VERSION: u32 = 1;
/// Most that a clock, an id or a count may be, so that none overflows in the host that goes on from there.
const MOST: u64 = 1 << 60;

/// What a host leaves to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    /// When: microseconds since 1970, going by the wall clock.
    pub at_us: u64,
    /// How far it had counted, and what its policies exported.
    pub carried: Carried,
    /// The numbers of its tenants.
    pub tenants: Numbering,
    /// At most one for each slot.
    pub waiting: Vec<Waiting>,
}

/// What a policy exported that couldn't be loaded since. Its clock, its ids and its tenants are those of the host.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiting {
    /// When: microseconds since 1970, going by the wall clock.
    pub at_us: u64,
    pub exported: Exported,
}

/// What identifies a file, without the rest of its first line.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u32,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    /// [`FORMAT`].
    format: String,
    version: u32,
    /// Version of the host that saved it.
    host: String,
    at_us: u64,
    clock_us: u64,
    next_id: u64,
    next_step: u64,
    next_tenant: u32,
    mean_output: u32,
    tenants: Vec<Tenant>,
    states: Vec<State>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingState>,
}

#[derive(Serialize, Deserialize)]
struct Tenant {
    number: u32,
    name: String,
    prompt_tokens: u64,
    output_tokens: u64,
    mean_output: u32,
}

#[derive(Serialize, Deserialize)]
struct State {
    slot: String,
    policy: String,
    bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct WaitingState {
    at_us: u64,
    of: State,
}

impl Saved {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// It couldn't be read again.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.head())?;
        bytes.push(b'\n');
        let waiting = self.waiting.iter().map(|waiting| &waiting.exported);
        let states = self.carried.states.iter().chain(waiting);
        let all = states.clone().fold(bytes.len() + Sha256::output_size(), |sum, one| sum + one.state.len());
        if bytes.len() > MAX_HEAD_BYTES || all as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("what policies exported has {all} bytes, too many")));
        }
        states.for_each(|one| bytes.extend_from_slice(&one.state));
        seal(&mut bytes);
        Ok(bytes)
    }

    fn head(&self) -> Head {
        let Numbers { now, next_id, next_step, tenants, mean_output } = &self.carried.numbers;
        let known: BTreeMap<u32, TenantHistory> = tenants.iter().map(|(id, known)| (id.0, *known)).collect();
        let tenant = |(&number, name): (&u32, &String)| {
            let TenantHistory { prompt_tokens, output_tokens, mean_output } =
                known.get(&number).copied().unwrap_or_default();
            Tenant { number, name: name.clone(), prompt_tokens, output_tokens, mean_output }
        };
        let state = |one: &Exported| State {
            slot: one.kind.name().to_owned(),
            policy: one.policy.clone(),
            bytes: one.state.len(),
        };
        let waiting = |one: &Waiting| WaitingState { at_us: one.at_us, of: state(&one.exported) };
        Head {
            format: FORMAT.to_owned(),
            version: VERSION,
            host: env!("CARGO_PKG_VERSION").to_owned(),
            at_us: self.at_us,
            clock_us: now.0,
            next_id: *next_id,
            next_step: *next_step,
            next_tenant: self.tenants.next,
            mean_output: *mean_output,
            tenants: self.tenants.names.iter().map(tenant).collect(),
            states: self.carried.states.iter().map(state).collect(),
            waiting: self.waiting.iter().map(waiting).collect(),
        }
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let damaged = |error: serde_json::Error| format!("it is damaged: {error}");
        let start = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
        let end =
            start.iter().position(|&byte| byte == b'\n').ok_or("it is damaged: its first line has no end")?;
        let kind: Kind = serde_json::from_slice(&bytes[..end]).map_err(damaged)?;
        if kind.format != FORMAT {
            return Err("it holds something else".to_owned());
        }
        if kind.version != VERSION {
            return Err(format!("it has version {}; this host reads version {VERSION}", kind.version));
        }
        let sound = unsealed(bytes).ok_or("it is damaged: it doesn't have the SHA-256 that it says")?;
        let head: Head = serde_json::from_slice(&bytes[..end]).map_err(damaged)?;
        let states = sound.get(end + 1..).ok_or("it is damaged: its first line has no end")?;
        head.check().and_then(|()| Self::of(head, states)).map_err(|why| format!("it is damaged: {why}"))
    }

    fn of(head: Head, mut rest: &[u8]) -> Result<Self, String> {
        let mut next = |State { slot, policy, bytes }: State| {
            let kind = PolicyKind::ALL.into_iter().find(|kind| kind.name() == slot);
            let kind = kind.ok_or_else(|| format!("it has a slot `{slot}`"))?;
            let (state, others) = rest.split_at_checked(bytes).ok_or("states are missing")?;
            rest = others;
            Ok::<_, String>(Exported { kind, policy, state: state.to_vec() })
        };
        let mut states = Vec::new();
        for state in head.states {
            states.push(next(state)?);
        }
        let mut waiting = Vec::new();
        for WaitingState { at_us, of } in head.waiting {
            waiting.push(Waiting { at_us, exported: next(of)? });
        }
        if !rest.is_empty() {
            return Err("it has bytes of no state".to_owned());
        }
        let history = |tenant: &Tenant| {
            let Tenant { number, prompt_tokens, output_tokens, mean_output, .. } = *tenant;
            (TenantId(number), TenantHistory { prompt_tokens, output_tokens, mean_output })
        };
        let known = head.tenants.iter().map(history).filter(|(_, known)| *known != TenantHistory::default());
        // By number, as they are written.
        let known: BTreeMap<_, _> = known.collect();
        let numbers = Numbers {
            now: Micros(head.clock_us),
            next_id: head.next_id,
            next_step: head.next_step,
            tenants: known.into_iter().collect(),
            mean_output: head.mean_output,
        };
        let names = head.tenants.into_iter().map(|tenant| (tenant.number, tenant.name)).collect();
        let tenants = Numbering { names, next: head.next_tenant };
        Ok(Self { at_us: head.at_us, carried: Carried { numbers, states }, tenants, waiting })
    }
}

impl Head {
    /// Checks what a host relies on that goes on from there.
    fn check(&self) -> Result<(), String> {
        let counts = self.tenants.iter().flat_map(|tenant| [tenant.prompt_tokens, tenant.output_tokens]);
        let mut numbers = [self.clock_us, self.next_id, self.next_step].into_iter().chain(counts);
        if numbers.any(|number| number > MOST) || self.next_id == 0 || self.next_step == 0 {
            return Err("its numbers are out of range".to_owned());
        }
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for Tenant { number, name, .. } in &self.tenants {
            check_form("a tenant's name", name)?;
            let is_new = numbers.insert(*number) && names.insert(name.as_str());
            if !is_new || *number >= self.next_tenant || (*number == 0) != (name == "default") {
                return Err(format!("the tenant `{name}` has a number that isn't its own"));
            }
        }
        if !numbers.contains(&0) {
            return Err("it lacks the tenant `default`".to_owned());
        }
        if self.tenants.len() > MAX_NAMES || self.next_tenant > u32::MAX / 2 {
            return Err("it has too many tenants".to_owned());
        }
        at_most_one(self.states.iter())?;
        at_most_one(self.waiting.iter().map(|waiting| &waiting.of))
    }
}

/// Checks that no slot has an empty state or several.
fn at_most_one<'a>(mut states: impl Iterator<Item = &'a State>) -> Result<(), String> {
    let mut slots = BTreeSet::new();
    match states.find(|one| one.bytes == 0 || !slots.insert(one.slot.as_str())) {
        Some(State { slot, .. }) => Err(format!("the slot `{slot}` has no state, or several")),
        None => Ok(()),
    }
}

/// Appends the digest.
fn seal(bytes: &mut Vec<u8>) {
    let digest = Sha256::digest(&bytes[..]);
    bytes.extend_from_slice(&digest);
}

/// The bytes before the digest, if it is theirs.
fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(Sha256::output_size())?)?;
    (Sha256::digest(content).as_slice() == digest).then_some(content)
}

/// Reads the bytes of a file but for their digest, for `edges`. What is read could be written again, and then be read.
///
/// # Errors
/// What is wrong with them.
pub(super) fn examine(bytes: &[u8]) -> Result<(), String> {
    let mut sealed = bytes.to_vec();
    seal(&mut sealed);
    let saved = Saved::parse(&sealed)?;
    let again = saved.bytes().map_err(|error| error.to_string())?;
    assert_eq!(Saved::parse(&again), Ok(saved), "it is read as it was written");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn example() -> Saved {
        let history = TenantHistory { prompt_tokens: 70, output_tokens: 30, mean_output: 2_560 };
        let numbers = Numbers {
            now: Micros(86_400_000_000),
            next_id: 12,
            next_step: 345,
            tenants: vec![(TenantId(2), history)],
            mean_output: 1_024,
        };
        let state = |kind, policy: &str, state: &[u8]| Exported {
            kind,
            policy: policy.to_owned(),
            state: state.to_vec(),
        };
        let states = vec![
            state(PolicyKind::Scheduler, "fair", b"\nnot a line\n\0"),
            state(PolicyKind::Admission, "memory-aware+token-bucket", &[7; 1_000]),
        ];
        let names = [(0, "default"), (2, "alice"), (5, "bob")];
        let names: BTreeMap<_, _> = names.map(|(number, name)| (number, name.to_owned())).into();
        let tenants = Numbering { names, next: 9 };
        let waiting = vec![Waiting {
            at_us: 1_771_000_000_000_000,
            exported: state(PolicyKind::Admission, "mine", b"it"),
        }];
        Saved { at_us: 1_772_000_000_000_000, carried: Carried { numbers, states }, tenants, waiting }
    }

    /// The first line of a file, changed, with the states behind it and the right digest.
    fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let bytes = example().bytes().unwrap();
        let content = unsealed(&bytes).unwrap();
        let end = content.iter().position(|&byte| byte == b'\n').unwrap();
        let mut head: Value = serde_json::from_slice(&content[..end]).unwrap();
        change(&mut head);
        let mut bytes = [head.to_string().as_bytes(), &content[end..]].concat();
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let names = BTreeMap::from([(0, "default".to_owned())]);
        let nothing = Saved { tenants: Numbering { names, next: 1 }, ..Saved::default() };
        for saved in [example(), nothing] {
            assert_eq!(Saved::parse(&saved.bytes().unwrap()), Ok(saved));
        }
        assert_eq!(Saved::parse(&changed(|_| ())), Ok(example()));
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let bytes = example().bytes().unwrap();
        for end in 0..bytes.len() {
            assert!(Saved::parse(&bytes[..end]).is_err(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(Saved::parse(&other).is_err(), "{at}");
        }
    }

    #[test]
    fn what_this_host_cannot_go_on_from_is_refused_with_the_reason() {
        for (pointer, value, says) in [
            ("/format", json!("recipe"), "something else"),
            ("/version", json!(2), "version 2; this host reads version 1"),
            ("/clock_us", json!(MOST + 1), "out of range"),
            ("/next_id", json!(0), "out of range"),
            ("/tenants/1/output_tokens", json!(u64::MAX), "out of range"),
            ("/tenants/1/number", json!(5), "the tenant `bob` has a number"),
            ("/tenants/1/number", json!(9), "the tenant `alice` has a number"),
            ("/tenants/1/name", json!("bob"), "the tenant `bob` has a number"),
            ("/tenants/0/name", json!("root"), "the tenant `root` has a number"),
            ("/tenants/1/name", json!("../.."), "a tenant's name must have"),
            ("/tenants", json!([]), "lacks the tenant `default`"),
            ("/next_tenant", json!(u32::MAX), "too many tenants"),
            ("/states/0/slot", json!("router"), "a slot `router`"),
            ("/states/0/slot", json!("admission"), "the slot `admission` has no state, or several"),
            ("/states/0/bytes", json!(0), "the slot `scheduler` has no state, or several"),
            ("/states/0/bytes", json!(1), "bytes of no state"),
            ("/states/0/bytes", json!(2_000), "states are missing"),
            ("/states", json!([]), "bytes of no state"),
            ("/waiting/0/of/slot", json!("router"), "a slot `router`"),
            ("/waiting/0/of/bytes", json!(0), "the slot `admission` has no state, or several"),
            ("/waiting/0/of/bytes", json!(3), "states are missing"),
            ("/waiting", json!([]), "bytes of no state"),
            ("/mean_output", json!("x"), "it is damaged"),
        ] {
            let bytes = changed(|head| *head.pointer_mut(pointer).unwrap() = value);
            let error = Saved::parse(&bytes).unwrap_err();
            assert!(error.contains(says), "{pointer}: {error}");
        }
    }

    #[test]
    fn more_than_could_be_read_again_is_not_written() {
        let mut saved = example();
        saved.waiting[0].exported.state = vec![0; usize::try_from(MAX_BYTES).unwrap()];
        assert!(saved.bytes().unwrap_err().to_string().contains("too many"));
    }
}
