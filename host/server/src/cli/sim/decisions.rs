//! `infer sim decisions`: repeats the recorded policy calls on the same components and compares the answers.

use std::path::PathBuf;

use clap::Args;
use infer_api::trace::{Head, Line, Member, Policy};
use infer_core::policy::{AnyPolicy, FaultView, PolicyKind};
use infer_wasm::PolicyLoader;
use serde_json::Value;

use super::policies::{self, Choice, Components, choice};
use super::trace;
use super::{Failure, emit};
use crate::trace::{Question, answer_json};

pub const AFTER_HELP: &str = "\
Needs a recording with decisions: infer sim record --decisions --out FILE. Every recorded call is repeated on the same \
component, starting from its recorded state. A policy is a function of its state and its input, so all answers must be \
bit-identical; exit code 1 if any differs. A prefix cache may know more about its blocks than its state and the pool \
reveal: if it was already running when the recording started, its answers may differ in the order of blocks. After a \
gap in the recording, or if a policy doesn't import its recorded state, its calls are skipped until its state is \
recorded again. With --scheduler, --admission or --prefix-cache, the calls go to another policy instead; its \
differences are shown and are no failure. The other slots are checked as usual, except those whose components are \
neither bundled nor given with --component: their calls are skipped then, while without these flags they are an error.";

/// Differences shown per slot.
const SHOWN: usize = 3;
/// Characters shown of an answer.
const ANSWER_SHOWN: usize = 160;

/// Arguments of `infer sim decisions`.
#[derive(Args)]
pub struct DecisionsArgs {
    /// Recording to check
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Call this scheduler instead: a name or a .wasm file, with an optional configuration
    #[arg(long, value_name = "NAME|FILE.wasm")]
    scheduler: Option<String>,
    /// Call this admission policy instead
    #[arg(long, value_name = "NAME|FILE.wasm")]
    admission: Option<String>,
    /// Call this prefix cache instead
    #[arg(long, value_name = "NAME|FILE.wasm")]
    prefix_cache: Option<String>,
    /// Component that the recording names but that isn't bundled; repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
}

/// Repeats all policy calls of a recording.
pub fn run(args: &DecisionsArgs) -> Result<(), Failure> {
    let loader = policies::loader()?;
    let components = Components::new(&loader, &args.component)?;
    let given = [&args.scheduler, &args.admission, &args.prefix_cache];
    let asks_another = given.iter().any(|given| given.is_some());
    let mut slots = Vec::new();
    for (kind, given) in PolicyKind::ALL.into_iter().zip(given) {
        let other = given.as_deref().map(|text| choice(kind, text)).transpose()?;
        slots.push(Slot {
            kind,
            may_lack: asks_another && other.is_none(),
            other,
            known: Vec::new(),
            asked: None,
            adrift: None,
            tally: Tally::default(),
        });
    }
    let shown = args.recording.display();
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{shown}: {error}"));
    let mut recording = trace::recording(&args.recording)?;
    let head = recording.head().map_err(|error| wrong(&error))?;
    if !head.decisions {
        return Err(Failure::Usage(format!(
            "{shown}: no decisions in this recording; record with --decisions"
        )));
    }
    let mut replay = Replay::new(&loader, &components, slots, &head);
    let mut lost = 0;
    while let Some((line, what)) = recording.next_line().map_err(|error| wrong(&error))? {
        let question = match what {
            Line::Decision(decision) => Question::of_decision(*decision),
            Line::Asked(asked) => Question::of_asked(*asked),
            Line::Policy(policy) => {
                replay.came(policy);
                continue;
            }
            Line::Lost { happenings } => {
                lost += happenings;
                replay.slots.iter_mut().for_each(|slot| slot.adrift = Some(Adrift::Gap));
                continue;
            }
            _ => continue,
        };
        let asked = question.and_then(|question| replay.ask(question));
        if let Some(note) = asked.map_err(|error| wrong(&format!("line {line}: {error}")))? {
            eprintln!("{shown}: line {line}: {note}");
        }
    }
    report(&replay.slots, lost)
}

fn report(slots: &[Slot], lost: u64) -> Result<(), Failure> {
    let mut text = String::new();
    let mut differ = 0;
    for Slot { kind, other, tally, .. } in slots {
        let Tally { asked, equal, skipped, cold, absent, examples } = tally;
        let what = match kind {
            PolicyKind::Scheduler => "plans",
            PolicyKind::Admission => "answers of admission policies",
            PolicyKind::PrefixCache => "answers of prefix caches",
        };
        if *asked > 0 || other.is_some() {
            text += &format!("{equal} of {asked} {what} are equal\n");
        }
        if *skipped > 0 {
            text +=
                &format!("  {skipped} more are behind a gap: the policy's state at that point is unknown\n");
        }
        if *cold > 0 {
            text += &format!("  {cold} more follow a state that the policy did not import\n");
        }
        if *absent > 0 {
            text += &format!("  {absent} {what} are not checked: their component is not here\n");
        }
        for example in examples {
            text += &format!("  {example}\n");
        }
        // Another policy is expected to differ.
        differ += if other.is_none() { asked - equal } else { 0 };
    }
    if lost > 0 {
        text += &format!("  {lost} events are missing from the recording\n");
    }
    emit(None, &text)?;
    if slots.iter().all(|slot| slot.tally.asked == 0) {
        let sum = |count: fn(&Tally) -> u64| slots.iter().map(|slot| count(&slot.tally)).sum::<u64>();
        let counts = [
            (sum(|tally| tally.skipped), "are behind a gap"),
            (sum(|tally| tally.cold), "follow a state that the policy did not import"),
            (sum(|tally| tally.absent), "are of policies whose components are not here"),
        ];
        let told: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let why = match (told.as_slice(), counts[0].0) {
            ([], _) => "the recording contains no decisions".to_owned(),
            ([_], gaps @ 1..) => {
                format!("no decision could be checked: all {gaps} are behind a gap; record again")
            }
            _ => format!("no decision could be checked: {}", told.join(", and ")),
        };
        return Err(Failure::Failed(why));
    }
    if differ > 0 {
        return Err(Failure::Failed(format!("{differ} decisions differ from the recording")));
    }
    Ok(())
}

struct Replay<'a> {
    loader: &'a PolicyLoader,
    components: &'a Components,
    slots: Vec<Slot>,
}

/// The replay of one policy slot.
struct Slot {
    kind: PolicyKind,
    /// Whether calls of a policy whose component is not here are skipped: another slot is what the user asks about.
    may_lack: bool,
    /// Called instead of the recorded policies.
    other: Option<Choice>,
    /// Policies that have been live so far.
    known: Vec<Policy>,
    /// The policy that is called, with the digest of the recorded one.
    asked: Option<(String, AnyPolicy)>,
    /// Why the policy's state is unknown, until the recording contains it again.
    adrift: Option<Adrift>,
    tally: Tally,
}

#[derive(Clone, Copy)]
enum Adrift {
    /// Events are missing.
    Gap,
    /// The policy did not import its recorded state. A host starts it cold then, which is no fault.
    Cold,
    /// The policy's component is not here.
    Absent,
}

/// Counts of a slot.
#[derive(Default)]
struct Tally {
    asked: u64,
    equal: u64,
    /// Calls behind a gap.
    skipped: u64,
    /// Calls after a state that was not imported.
    cold: u64,
    /// Calls of a policy whose component is not here.
    absent: u64,
    examples: Vec<String>,
}

impl<'a> Replay<'a> {
    fn new(loader: &'a PolicyLoader, components: &'a Components, slots: Vec<Slot>, head: &Head) -> Self {
        let mut replay = Self { loader, components, slots };
        head.policies.iter().for_each(|policy| replay.came(policy.clone()));
        replay
    }

    fn came(&mut self, policy: Policy) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.kind.name() == policy.kind) {
            slot.known.push(policy);
        }
    }

    /// Puts a question to its slot's policy. Returns what to note about it.
    fn ask(&mut self, question: Question) -> Result<Option<String>, String> {
        let slot = &mut self.slots[question.kind as usize];
        if question.state.is_some() {
            slot.adrift = None;
        }
        let note = match slot.adrift {
            Some(_) if slot.other.is_none() => None,
            _ => slot.prepare(&question, self.loader, self.components)?,
        };
        if let (Some(why), None) = (slot.adrift, &slot.other) {
            let skipped = match why {
                Adrift::Gap => &mut slot.tally.skipped,
                Adrift::Cold => &mut slot.tally.cold,
                Adrift::Absent => &mut slot.tally.absent,
            };
            *skipped += 1;
            return Ok(note);
        }
        let (_, policy) = slot.asked.as_mut().expect("`prepare` sets it");
        let answer = question.view.put_to(policy).ok_or("the call doesn't fit this kind of policy")?;
        let now = answer.map(|answer| answer_json(&answer)).map_err(|fault| fault.to_string());
        slot.tally.asked += 1;
        if now.as_ref() == Ok(&question.answer) {
            slot.tally.equal += 1;
        } else if slot.tally.examples.len() < SHOWN {
            let (then, now) = (in_short(&question.answer), now.as_ref().map_or_else(Clone::clone, in_short));
            slot.tally.examples.push(format!("{}: then {then}; now {now}", when(&question.view)));
        }
        Ok(note)
    }
}

impl Slot {
    /// Loads the policy for `question` unless it is loaded already, and restores its recorded state. If the policy does
    /// not import that, or is not here, the slot is adrift; returns what to say about it.
    fn prepare(
        &mut self,
        question: &Question,
        loader: &PolicyLoader,
        components: &Components,
    ) -> Result<Option<String>, String> {
        let same = self.asked.as_ref().is_some_and(|(sha256, _)| *sha256 == question.sha256);
        let is_other = self.other.is_some() && self.asked.is_some();
        if is_other || (same && question.state.is_none()) {
            return Ok(None);
        }
        let choice = match &self.other {
            Some(other) => other.clone(),
            None => {
                let named = self.named(&question.sha256)?;
                if let Some(lack) = components.lack(&named).filter(|_| self.may_lack) {
                    (self.asked, self.adrift) = (None, Some(Adrift::Absent));
                    let first = self.tally.absent == 0;
                    return Ok(first.then(|| format!("{lack}, so its calls are skipped; see --component")));
                }
                components.find(&named)?
            }
        };
        let mut policy = choice.load(loader)?;
        if policy.kind() != self.kind {
            return Err(format!("the policy is for the {} slot", policy.kind()));
        }
        if let (AnyPolicy::PrefixCache(policy), Some(knew)) = (&mut policy, &question.knew) {
            policy.observe_all(knew).map_err(|fault| fault.to_string())?;
        }
        if let (None, Some(state)) = (&self.other, question.state.as_deref())
            && !state.is_empty()
        {
            let taken = match &mut policy {
                AnyPolicy::Scheduler(policy) => policy.import_state(state),
                AnyPolicy::Admission(policy) => policy.import_state(state),
                AnyPolicy::PrefixCache(policy) => policy.import_state(state),
            };
            if let Err(fault) = taken {
                (self.asked, self.adrift) = (None, Some(Adrift::Cold));
                return Ok(Some(format!(
                    "the {} policy {} did not import its recorded state: {}; its calls are skipped until its state is \
                     recorded again",
                    self.kind, choice.label, fault.message
                )));
            }
        }
        self.asked = Some((question.sha256.clone(), policy));
        Ok(None)
    }

    /// The latest live policy with this digest, and its configuration.
    fn named(&self, sha256: &str) -> Result<Policy, String> {
        let digest = |policy: &Policy| {
            let members: Vec<&str> = policy.members.iter().map(|member| member.sha256.as_str()).collect();
            members.join("+")
        };
        match self.known.iter().rev().find(|policy| digest(policy) == sha256) {
            Some(policy) => Ok(policy.clone()),
            // The built-in answers for a policy that failed, without having been live itself.
            None if sha256.is_empty() => {
                Ok(Policy { kind: self.kind.name().to_owned(), members: vec![Member::default()] })
            }
            None => Err(format!("no policy with SHA-256 {sha256} has been live before this line")),
        }
    }
}

fn when(view: &FaultView) -> String {
    match view {
        FaultView::Schedule(view) => format!("step {}", view.number),
        FaultView::Admit(request, load) => format!("admit {} at {} us", request.id.0, load.now.0),
        FaultView::Measure(load) => format!("measure at {} us", load.now.0),
        FaultView::Reuse(hit) => format!("reuse for {} at {} us", hit.id.0, hit.now.0),
        FaultView::Retain(ended) => format!("retain of {} at {} us", ended.id.0, ended.now.0),
        FaultView::Observe(events) => format!("observe of {} events", events.len()),
        FaultView::Evict { now, need } => format!("evict {need} at {} us", now.0),
        FaultView::Lifecycle => "lifecycle".to_owned(),
    }
}

/// An answer's JSON, truncated.
fn in_short(answer: &Value) -> String {
    let text = answer.to_string();
    match text.char_indices().nth(ANSWER_SHOWN) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
