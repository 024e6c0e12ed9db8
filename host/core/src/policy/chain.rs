//! Several admission policies as one: each guards one thing (memory, a rate, a deadline), and a request
//! must pass them all.
//!
//! They are called in turn, and the first verdict other than `Admit` decides; the members behind it aren't
//! called. A held request is asked about again from the first member on, so a member that charges must
//! remember what it charged. To the slot a chain is one policy: a member's fault is the chain's, prefixed
//! with the member's name, and only the member that failed is restarted.

use std::sync::Arc;

use crate::ids::Micros;
use crate::policy::{
    AdmissionPolicy, AdmissionRequest, CallStats, FaultKind, Gauge, Load, Policy, PolicyFault, PolicyInfo,
    Pressure, Verdict,
};

/// Members that a chain may have.
const MEMBERS: std::ops::RangeInclusive<usize> = 2..=8;
/// Longest name and version, as for any policy.
const NAME_BYTES: usize = 64;

/// Admission policies that are called in turn.
pub struct Chain {
    members: Vec<Member>,
    /// The member that last answered `Wait` or `WaitTenant`.
    waits: Option<usize>,
    info: Arc<PolicyInfo>,
}

struct Member {
    policy: Box<dyn AdmissionPolicy>,
    name: String,
    /// A call failed: the next `restart` restarts it.
    failed: bool,
    /// It was restarted and has not imported its state yet.
    blank: bool,
    /// Its calls' total before this step.
    spent_before: Micros,
}

impl Chain {
    /// A chain of two to eight policies with different names, in the order in which they are called.
    pub fn new(members: Vec<Box<dyn AdmissionPolicy>>) -> Result<Self, PolicyFault> {
        Self::check_length(members.len())?;
        let infos: Vec<Arc<PolicyInfo>> = members.iter().map(|member| member.info()).collect();
        for (at, info) in infos.iter().enumerate() {
            if infos[..at].iter().any(|before| before.name == info.name) {
                let message = format!("`{}` is in the chain twice", info.name);
                return Err(PolicyFault::new(FaultKind::Setup, message));
            }
        }
        let members = members.into_iter().map(Member::new).collect();
        Ok(Self { members, waits: None, info: Arc::new(describe(&infos)) })
    }

    fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// Whether a chain may have this many members.
    pub fn check_length(members: usize) -> Result<(), PolicyFault> {
        if MEMBERS.contains(&members) {
            return Ok(());
        }
        let (least, most) = (MEMBERS.start(), MEMBERS.end());
        let message = format!("a chain has {least} to {most} policies, not {members}");
        Err(PolicyFault::new(FaultKind::Setup, message))
    }
}

/// A chain's name is those of its members joined by `+`; likewise version and digests. Its configuration is the list of
/// theirs.
fn describe(members: &[Arc<PolicyInfo>]) -> PolicyInfo {
    let column = |cell: fn(&PolicyInfo) -> &str| members.iter().map(|info| cell(info)).collect::<Vec<_>>();
    PolicyInfo {
        name: join(&column(|info| &info.name)),
        version: join(&column(|info| &info.version)),
        description: format!("Asks in turn; all must admit: {}.", column(|info| &info.name).join(", ")),
        config_schema: "{}".to_owned(),
        digest: column(|info| &info.digest).join("+"),
        config: format!(
            "[{}]",
            column(|info| if info.config.is_empty() { "{}" } else { &info.config }).join(",")
        ),
        config_digest: if members.iter().all(|info| info.config_digest.is_empty()) {
            String::new()
        } else {
            column(|info| &info.config_digest).join("+")
        },
    }
}

/// As many parts as fit, then the number left out: `memory-aware+token-bucket+2`.
fn join(parts: &[&str]) -> String {
    let whole = parts.join("+");
    if whole.len() <= NAME_BYTES {
        return whole;
    }
    let shortened = (0..parts.len()).rev().map(|fit| {
        let left_out = format!("{}", parts.len() - fit);
        parts[..fit].iter().copied().chain([left_out.as_str()]).collect::<Vec<_>>().join("+")
    });
    shortened.into_iter().find(|name| name.len() <= NAME_BYTES).unwrap_or_default()
}

impl Policy for Chain {
    fn info(&self) -> Arc<PolicyInfo> {
        self.info.clone()
    }

    fn members(&self) -> Vec<Arc<PolicyInfo>> {
        self.members.iter().map(|member| member.policy.info()).collect()
    }

    /// Per member: length and bytes of its name, length and bytes of its state; lengths are 32 bits, little-endian.
    /// Empty if no member has a state.
    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        let (mut all, mut any) = (Vec::new(), false);
        for member in &mut self.members {
            let state = member.ask(|policy| policy.export_state())?;
            any |= !state.is_empty();
            all.extend(framed(&member.name, &state));
        }
        Ok(if any { all } else { Vec::new() })
    }

    /// That of any chain with one of its members, and that of a member that was alone.
    fn takes_state_of(&self, name: &str) -> bool {
        name.split('+').any(|part| self.has(part))
    }

    fn own_part_of(&self, name: &str, state: &[u8]) -> Option<Vec<u8>> {
        if self.has(name) {
            return Some(framed(name, state));
        }
        let mut members = self.members.iter();
        members.any(|member| part_of(&member.name, state).is_some()).then(|| state.to_vec())
    }

    /// Gives each member the state with its name, from any chain, unless that is empty. After a restart only restarted
    /// members get theirs: the others know more than their last exported state.
    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        let states =
            frames(state).ok_or_else(|| PolicyFault::new(FaultKind::Setup, "this is no state of a chain"))?;
        let restarted = self.members.iter().any(|member| member.blank);
        let mut unread: Option<PolicyFault> = None;
        for member in self.members.iter_mut().filter(|member| member.blank || !restarted) {
            member.blank = false;
            let own = states.iter().find(|(name, _)| *name == member.name.as_bytes());
            let Some((_, state)) = own.filter(|(_, state)| !state.is_empty()) else { continue };
            // A member that can't read its state starts cold, which must not keep the others from theirs.
            if let Err(fault) = member.policy.import_state(state) {
                member.failed |= !fault.is_refusal();
                let fault = member.sign(fault);
                unread = Some(match unread.take() {
                    None => fault,
                    Some(known) => worse(known, fault),
                });
            }
        }
        unread.map_or(Ok(()), Err)
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        for member in self.members.iter_mut().filter(|member| member.failed) {
            member.policy.restart().map_err(|fault| member.sign(fault))?;
            member.failed = false;
            member.blank = true;
        }
        Ok(())
    }

    fn spent(&self) -> Micros {
        self.members.iter().fold(Micros::ZERO, |sum, member| sum.plus(member.policy.spent()))
    }

    fn begin_step(&mut self) {
        for member in &mut self.members {
            member.spent_before = member.policy.spent();
        }
    }

    /// A time-budget fault is attributed to the member that used the most time; a starvation fault to the
    /// member that last told a request to wait.
    fn attribute(&self, fault: PolicyFault) -> PolicyFault {
        let member = match fault.kind {
            FaultKind::StepBudget => self.members.iter().max_by_key(|member| member.spent_in_step()),
            FaultKind::Starvation => self.waits.map(|at| &self.members[at]),
            _ => None,
        };
        match member {
            Some(member) => member.sign(fault),
            None => fault,
        }
    }

    /// Calls of all members, and how long each took. The percentiles are sums, as if all were called each time
    /// and were slow together; a call of the chain rarely takes that long.
    fn stats(&self) -> CallStats {
        let mut sum = CallStats::default();
        for stats in self.members.iter().map(|member| member.policy.stats()) {
            sum.calls = sum.calls.saturating_add(stats.calls);
            sum.p50_us += stats.p50_us;
            sum.p99_us += stats.p99_us;
            sum.durations.merge(&stats.durations);
        }
        sum
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.members.iter().flat_map(|member| member.policy.gauges()).collect()
    }
}

impl AdmissionPolicy for Chain {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        for (at, member) in self.members.iter_mut().enumerate() {
            match member.ask(|policy| policy.admit(request, load))? {
                Verdict::Admit => {}
                held @ (Verdict::Wait | Verdict::WaitTenant) => {
                    self.waits = Some(at);
                    return Ok(held);
                }
                refusal @ Verdict::Refuse(_) => return Ok(refusal),
            }
        }
        Ok(Verdict::Admit)
    }

    /// The most cautious number of all members, field by field.
    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        let mut all: Option<Pressure> = None;
        for member in &mut self.members {
            let one = member.ask(|policy| policy.measure(load))?;
            all = Some(all.map_or(one, |all| Pressure {
                level_permille: all.level_permille.max(one.level_permille),
                backpressure: all.backpressure || one.backpressure,
                reserved_blocks: all.reserved_blocks.max(one.reserved_blocks),
                available_blocks: all.available_blocks.min(one.available_blocks),
                max_sequence_tokens: all.max_sequence_tokens.min(one.max_sequence_tokens),
            }));
        }
        Ok(all.expect("a chain has members"))
    }
}

impl Member {
    fn new(policy: Box<dyn AdmissionPolicy>) -> Self {
        let name = policy.info().name.clone();
        let spent_before = policy.spent();
        Self { policy, name, failed: false, blank: false, spent_before }
    }

    fn spent_in_step(&self) -> Micros {
        self.policy.spent().since(self.spent_before)
    }

    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut dyn AdmissionPolicy) -> Result<T, PolicyFault>,
    ) -> Result<T, PolicyFault> {
        self.blank = false;
        question(&mut *self.policy).map_err(|fault| {
            self.failed = true;
            self.sign(fault)
        })
    }

    fn sign(&self, fault: PolicyFault) -> PolicyFault {
        let message = format!("{}: {}", self.name, fault.message);
        PolicyFault { message, member: Some(self.policy.info()), ..fault }
    }
}

/// The worse of two members' faults over their states, with what the other says.
fn worse(known: PolicyFault, other: PolicyFault) -> PolicyFault {
    let message = format!("{}; {}", known.message, other.message);
    let worse = if known.is_refusal() { other } else { known };
    PolicyFault { message, ..worse }
}

/// A member's state within a chain's. `None` if this is no state of a chain, or one in which the member has none: a chain
/// that could not export has only what it imported. In one that exported nothing at all, each has an empty state.
pub(super) fn part_of(member: &str, state: &[u8]) -> Option<Vec<u8>> {
    if state.is_empty() {
        return Some(Vec::new());
    }
    let own = frames(state)?.into_iter().find(|(name, _)| *name == member.as_bytes());
    own.map(|(_, state)| state.to_vec())
}

fn framed(name: &str, state: &[u8]) -> Vec<u8> {
    let mut framed = Vec::new();
    for part in [name.as_bytes(), state] {
        framed.extend((part.len() as u32).to_le_bytes());
        framed.extend_from_slice(part);
    }
    framed
}

/// Names and states; `None` if the frames don't add up.
fn frames(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (name, rest) = frame(bytes)?;
        let (state, rest) = frame(rest)?;
        frames.push((name, state));
        bytes = rest;
    }
    Some(frames)
}

fn frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}
