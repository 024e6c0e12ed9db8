//! `infer sim decisions`: the same questions to the same components, and what they answer now.

use std::path::PathBuf;

use clap::Args;
use infer_api::trace::{Head, Line, Member, Policy};
use infer_core::policy::{AnyPolicy, FaultView, PolicyKind};
use infer_wasm::PolicyLoader;
use serde_json::Value;

use super::policies::{self, Choice, Components, choice};
use super::trace::Recording;
use super::{Failure, emit};
use crate::trace::{Question, answer_json};

pub const AFTER_HELP: &str = "\
The recording must hold decisions: infer sim record --decisions --out FILE. Each component is asked again what it was
asked, from the state that it had: a policy is a function of that and of what it is shown, so all answers must be
equal, bit by bit. Exit code 1 if one isn't. A prefix cache may know more of the blocks than its state and the pool
tell: where a recording began in the midst of its life, its answers may differ in the order of blocks. Where the
recording lost something, nobody is asked until a policy's state stands in it again. With
--scheduler, --admission or --prefix-cache another policy is asked instead, and what it answers otherwise is no
failure.";

/// Differences that are spelled out, of each slot.
const SHOWN: usize = 3;
/// Characters of an answer that are shown.
const ANSWER_SHOWN: usize = 160;

/// Arguments of `infer sim decisions`.
#[derive(Args)]
pub struct DecisionsArgs {
    /// A recording
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Asks this scheduler instead: a name or a .wasm file, with an optional configuration
    #[arg(long, value_name = "NAME|FILE.wasm")]
    scheduler: Option<String>,
    /// Likewise an admission policy
    #[arg(long, value_name = "NAME|FILE.wasm")]
    admission: Option<String>,
    /// Likewise a prefix cache
    #[arg(long, value_name = "NAME|FILE.wasm")]
    prefix_cache: Option<String>,
    /// A component that the recording names and that isn't shipped, repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
}

/// Asks all questions of a recording again.
pub fn run(args: &DecisionsArgs) -> Result<(), Failure> {
    let loader = policies::loader()?;
    let components = Components::new(&loader, &args.component)?;
    let given = [&args.scheduler, &args.admission, &args.prefix_cache];
    let mut slots = Vec::new();
    for (kind, given) in PolicyKind::ALL.into_iter().zip(given) {
        let other = given.as_deref().map(|text| choice(kind, text)).transpose()?;
        slots.push(Slot {
            kind,
            other,
            known: Vec::new(),
            asked: None,
            adrift: false,
            tally: Tally::default(),
        });
    }
    let shown = args.recording.display();
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{shown}: {error}"));
    let mut recording = Recording::open(&args.recording)?;
    let head = recording.head().map_err(|error| wrong(&error))?;
    if !head.decisions {
        return Err(Failure::Usage(format!("{shown}: it holds no decisions; record them with --decisions")));
    }
    let mut replay = Replay::new(&loader, &components, slots, &head);
    let mut lost = 0;
    while let Some((line, what)) = recording.next().map_err(|error| wrong(&error))? {
        let question = match what {
            Line::Decision(decision) => Question::of_decision(*decision),
            Line::Asked(asked) => Question::of_asked(*asked),
            Line::Policy(policy) => {
                replay.came(policy);
                continue;
            }
            Line::Lost { happenings } => {
                lost += happenings;
                replay.slots.iter_mut().for_each(|slot| slot.adrift = true);
                continue;
            }
            _ => continue,
        };
        let asked = question.and_then(|question| replay.ask(question));
        asked.map_err(|error| wrong(&format!("line {line}: {error}")))?;
    }
    report(&replay.slots, lost)
}

fn report(slots: &[Slot], lost: u64) -> Result<(), Failure> {
    let mut text = String::new();
    let mut differ = 0;
    for Slot { kind, other, tally, .. } in slots {
        let Tally { asked, equal, skipped, examples } = tally;
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
                &format!("  {skipped} more are behind a gap, and what the policy knew then is not known\n");
        }
        for example in examples {
            text += &format!("  {example}\n");
        }
        // Another policy may well answer otherwise.
        differ += if other.is_none() { asked - equal } else { 0 };
    }
    if lost > 0 {
        text += &format!("  {lost} things that happened are not in the recording\n");
    }
    emit(None, &text)?;
    if slots.iter().all(|slot| slot.tally.asked == 0) {
        return Err(Failure::Failed("the recording holds no decision".to_owned()));
    }
    if differ > 0 {
        return Err(Failure::Failed(format!("{differ} decisions are not what they were")));
    }
    Ok(())
}

struct Replay<'a> {
    loader: &'a PolicyLoader,
    components: &'a Components,
    slots: Vec<Slot>,
}

/// Of one kind of policy.
struct Slot {
    kind: PolicyKind,
    /// Asked instead of those that were.
    other: Option<Choice>,
    /// Those that came into force so far.
    known: Vec<Policy>,
    /// Who is asked now, by the digest of who was asked then.
    asked: Option<(String, AnyPolicy)>,
    /// Something was lost, so what a policy knew is not known until its state is told.
    adrift: bool,
    tally: Tally,
}

/// What came of it.
#[derive(Default)]
struct Tally {
    asked: u64,
    equal: u64,
    skipped: u64,
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

    fn ask(&mut self, question: Question) -> Result<(), String> {
        let slot = &mut self.slots[question.kind as usize];
        slot.adrift &= question.state.is_none();
        if slot.adrift && slot.other.is_none() {
            slot.tally.skipped += 1;
            return Ok(());
        }
        slot.prepare(&question, self.loader, self.components)?;
        let (_, policy) = slot.asked.as_mut().expect("it was just prepared");
        let answer = question.view.put_to(policy).ok_or("it is no question for this kind of policy")?;
        let now = answer.map(|answer| answer_json(&answer)).map_err(|fault| fault.to_string());
        slot.tally.asked += 1;
        if now.as_ref() == Ok(&question.answer) {
            slot.tally.equal += 1;
        } else if slot.tally.examples.len() < SHOWN {
            let (then, now) = (in_short(&question.answer), now.as_ref().map_or_else(Clone::clone, in_short));
            slot.tally.examples.push(format!("{}: then {then}; now {now}", when(&question.view)));
        }
        Ok(())
    }
}

impl Slot {
    /// Has the policy ready that is to be asked, in the state that it had.
    fn prepare(
        &mut self,
        question: &Question,
        loader: &PolicyLoader,
        components: &Components,
    ) -> Result<(), String> {
        let same = self.asked.as_ref().is_some_and(|(sha256, _)| *sha256 == question.sha256);
        let is_other = self.other.is_some() && self.asked.is_some();
        if is_other || (same && question.state.is_none()) {
            return Ok(());
        }
        let choice = match &self.other {
            Some(other) => other.clone(),
            None => components.find(&self.named(&question.sha256)?)?,
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
            taken.map_err(|fault| fault.to_string())?;
        }
        self.asked = Some((question.sha256.clone(), policy));
        Ok(())
    }

    /// With its configuration, the latest that came with this digest.
    fn named(&self, sha256: &str) -> Result<Policy, String> {
        let digest = |policy: &Policy| {
            let members: Vec<&str> = policy.members.iter().map(|member| member.sha256.as_str()).collect();
            members.join("+")
        };
        match self.known.iter().rev().find(|policy| digest(policy) == sha256) {
            Some(policy) => Ok(policy.clone()),
            // The built-in answers where a policy failed, whoever is in force.
            None if sha256.is_empty() => {
                Ok(Policy { kind: self.kind.name().to_owned(), members: vec![Member::default()] })
            }
            None => Err(format!("no policy with SHA-256 {sha256} came into force before")),
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

/// An answer's JSON as far as it is short.
fn in_short(answer: &Value) -> String {
    let text = answer.to_string();
    match text.char_indices().nth(ANSWER_SHOWN) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
