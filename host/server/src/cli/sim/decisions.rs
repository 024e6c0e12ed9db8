//! `infer sim decisions`: the same views to the same component, and what it plans now.

use std::path::PathBuf;

use clap::Args;
use infer_api::trace::{Decision, Head, Line, Policy};
use infer_core::policy::{AnyPolicy, PolicyKind, SchedulerPolicy, StepView};
use infer_wasm::PolicyLoader;

use super::policies::{self, Choice, Components, choice};
use super::trace::Recording;
use super::{Failure, emit};
use crate::trace::{parse_view, plan_of};

pub const AFTER_HELP: &str = "\
The recording must hold decisions: infer sim record --decisions --out FILE. Without --scheduler each component is
asked again what it was asked, from the state that it had: a scheduler is a pure function of what it is shown, so
all plans must be equal, bit by bit. Exit code 1 if one isn't. With --scheduler another one is asked instead.";

/// Differences that are spelled out.
const SHOWN: usize = 3;

/// Arguments of `infer sim decisions`.
#[derive(Args)]
pub struct DecisionsArgs {
    /// A recording
    #[arg(value_name = "FILE")]
    recording: PathBuf,
    /// Asks this policy instead: a name or a .wasm file, with an optional configuration
    #[arg(long, value_name = "NAME|FILE.wasm")]
    scheduler: Option<String>,
    /// A component that the recording names and that isn't shipped, repeatable
    #[arg(long, value_name = "FILE.wasm")]
    component: Vec<PathBuf>,
}

/// What came of it.
#[derive(Default)]
struct Tally {
    asked: u64,
    equal: u64,
    examples: Vec<String>,
}

/// Asks all questions of a recording again.
pub fn run(args: &DecisionsArgs) -> Result<(), Failure> {
    let loader = policies::loader()?;
    let components = Components::new(&loader, &args.component)?;
    let other = args.scheduler.as_deref().map(|text| choice(PolicyKind::Scheduler, text)).transpose()?;
    let shown = args.recording.display();
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{shown}: {error}"));
    let mut recording = Recording::open(&args.recording)?;
    let head = recording.head().map_err(|error| wrong(&error))?;
    if !head.decisions {
        return Err(Failure::Usage(format!("{shown}: it holds no decisions; record them with --decisions")));
    }
    let mut replay = Replay::new(&loader, &components, other, &head);
    let mut lost = 0;
    while let Some((line, what)) = recording.next().map_err(|error| wrong(&error))? {
        match what {
            Line::Decision(decision) => {
                let step = replay.ask(*decision);
                step.map_err(|error| wrong(&format!("line {line}: {error}")))?;
            }
            Line::Policy(policy) => replay.came(policy),
            Line::Lost { happenings } => lost += happenings,
            _ => {}
        }
    }
    let Tally { asked, equal, examples } = replay.tally;
    let mut text = format!("{equal} of {asked} plans are equal\n");
    for example in &examples {
        text += &format!("  {example}\n");
    }
    if lost > 0 {
        text += &format!("  {lost} things that happened are not in the recording\n");
    }
    emit(None, &text)?;
    if asked == 0 {
        return Err(Failure::Failed("the recording holds no decision".to_owned()));
    }
    // Another policy may well plan otherwise.
    if args.scheduler.is_none() && equal < asked {
        return Err(Failure::Failed(format!("{} plans are not what they were", asked - equal)));
    }
    Ok(())
}

struct Replay<'a> {
    loader: &'a PolicyLoader,
    components: &'a Components,
    other: Option<Choice>,
    /// Schedulers that came into force so far.
    known: Vec<Policy>,
    asked: Option<(String, Box<dyn SchedulerPolicy>)>,
    tally: Tally,
}

impl<'a> Replay<'a> {
    fn new(loader: &'a PolicyLoader, components: &'a Components, other: Option<Choice>, head: &Head) -> Self {
        let schedulers = head.policies.iter().filter(|policy| policy.kind == PolicyKind::Scheduler.name());
        let known = schedulers.cloned().collect();
        Self { loader, components, other, known, asked: None, tally: Tally::default() }
    }

    fn came(&mut self, policy: Policy) {
        if policy.kind == PolicyKind::Scheduler.name() {
            self.known.push(policy);
        }
    }

    fn ask(&mut self, decision: Decision) -> Result<(), String> {
        self.prepare(&decision)?;
        let view = parse_view(decision.view)?;
        let (_, policy) = self.asked.as_mut().expect("it was just prepared");
        let plan = policy.schedule(&view).map(|plan| plan_of(&plan)).map_err(|fault| fault.to_string());
        self.tally.asked += 1;
        if plan.as_ref() == Ok(&decision.plan) {
            self.tally.equal += 1;
        } else if self.tally.examples.len() < SHOWN {
            let now = match plan {
                Ok(plan) => in_short(&plan),
                Err(fault) => fault,
            };
            let then = in_short(&decision.plan);
            self.tally.examples.push(format!("step {}: then {then}; now {now}", number(&view)));
        }
        Ok(())
    }

    /// The policy that is to be asked, in the state that it had.
    fn prepare(&mut self, decision: &Decision) -> Result<(), String> {
        let same = self.asked.as_ref().is_some_and(|(sha256, _)| *sha256 == decision.sha256);
        let is_other = self.other.is_some() && self.asked.is_some();
        if is_other || (same && decision.state.is_none()) {
            return Ok(());
        }
        let choice = match &self.other {
            Some(other) => other.clone(),
            None => self.components.find(&self.named(&decision.sha256)?)?,
        };
        let AnyPolicy::Scheduler(mut policy) = choice.load(self.loader)? else {
            return Err("the policy is no scheduler".to_owned());
        };
        if let (None, Some(state)) = (&self.other, &decision.state) {
            let state = from_hex(state).ok_or("its state is no hex")?;
            if !state.is_empty() {
                policy.import_state(&state).map_err(|fault| fault.to_string())?;
            }
        }
        self.asked = Some((decision.sha256.clone(), policy));
        Ok(())
    }

    /// With its configuration, the latest that came with this digest.
    fn named(&self, sha256: &str) -> Result<Policy, String> {
        let known = self.known.iter().rev().find(|policy| policy.members.iter().any(|m| m.sha256 == sha256));
        match known {
            Some(policy) => Ok(policy.clone()),
            // The built-in answers where a policy failed, whoever is in force.
            None if sha256.is_empty() => Ok(Policy {
                kind: PolicyKind::Scheduler.name().to_owned(),
                members: vec![infer_api::trace::Member::default()],
            }),
            None => Err(format!("no policy with SHA-256 {sha256} came into force before")),
        }
    }
}

fn number(view: &StepView) -> u64 {
    view.number
}

fn in_short(plan: &infer_api::trace::Plan) -> String {
    let tokens: u64 = plan.tokens.iter().map(|&tokens| u64::from(tokens)).sum();
    format!("{} sequences with {tokens} tokens, {} preempted", plan.run.len(), plan.preempt.len())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(byte).collect())?
}
