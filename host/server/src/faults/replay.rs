//! Repeats the call in which a policy failed.

use std::path::{Path, PathBuf};

use infer_core::policy::{Answer, AnyPolicy, FaultKind, FaultView, PolicyFault, PolicyKind, Verdict};
use infer_wasm::{LoadError, PolicyLoader};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::format::{Artifact, VERSION, question_json, question_name};
use super::plan;
use crate::policies::{self, PolicyError};
use crate::trace::answer_json;

/// Limit of a fault file, far above what hosts write.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// How to repeat a fault.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// A component to use instead of the one beside the file.
    pub component: Option<Vec<u8>>,
    /// Its configuration. By default the file's if the policy has the same name, else the empty one.
    pub config: Option<Value>,
    /// Most calls, until one fails: a policy may count its calls.
    pub times: u32,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { component: None, config: None, times: 1 }
    }
}

/// The outcome of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The policy's name and version.
    pub policy: String,
    /// The function that was called.
    pub question: String,
    /// Its arguments, as in a fault file.
    pub view: Value,
    /// The answer of the last call, as in a recording of decisions. `None` if there was none, or if the policy's state
    /// was exported and imported.
    pub answer: Option<Value>,
    /// The recorded fault.
    pub then: String,
    /// The fault or answer of the last call.
    pub now: String,
    /// Whether the replay failed.
    pub fails: bool,
    /// Whether it failed with the same kind of fault. `None` if it did not fail and a single call can't show whether it
    /// would.
    pub same: Option<bool>,
    /// Number of calls.
    pub asked: u32,
}

/// Why a fault could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file that can't be read.
    #[error("can't read {0}: {1}")]
    File(PathBuf, std::io::Error),
    /// Not a fault file, or one of another version.
    #[error("{0} is not a fault file of this version of infer: {1}")]
    Format(PathBuf, String),
    /// The policy can't be loaded.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// Another component was given for a list of policies.
    #[error("the fault is of a list of policies; it can't be replayed with another component")]
    List,
}

/// Loads the component beside the file, or the given one, and repeats the file's call. Blocks while it compiles.
pub fn replay(path: &Path, loader: &PolicyLoader, options: &ReplayOptions) -> Result<Replayed, ReplayError> {
    let artifact = read(path)?;
    let wrong = |what: &str| ReplayError::Format(path.to_owned(), what.to_owned());
    let kind = artifact.kind().ok_or_else(|| wrong("its slot is unknown"))?;
    let fault_kind = artifact.fault_kind().ok_or_else(|| wrong("its kind of fault is unknown"))?;
    let state = artifact.state().ok_or_else(|| wrong("its state is not hex"))?;
    let then = format!("{}: {}", artifact.fault.kind, artifact.fault.message);
    let mut policy = match load(path, &artifact, kind, loader, options) {
        Ok(policy) => policy,
        // It failed before it was called.
        Err(ReplayError::Policy(PolicyError::Load(LoadError::SelfTest { view, fault }))) => {
            let now = format!("{fault} (in its self-test on the view `{view}`)");
            let view = artifact.question.view();
            let question = question_name(&view).to_owned();
            let policy = format!("{} {}", artifact.policy.name, artifact.policy.version);
            return Ok(Replayed {
                policy,
                question,
                view: question_json(&view),
                answer: None,
                then,
                now,
                fails: true,
                same: Some(fault.kind == fault_kind),
                asked: 0,
            });
        }
        Err(error) => return Err(error),
    };
    let info = policy.info();
    if !state.is_empty() && info.name == artifact.policy.name {
        // A policy that can't read the state starts cold, as in a host.
        let policy = policy.lifecycle();
        if policy.import_state(&state).is_err_and(|fault| !fault.is_refusal()) {
            // If that fails, so will the call.
            let _ = policy.restart();
        }
    }
    let view = artifact.question.view();
    let mut asked = 0;
    let (answer, outcome) = loop {
        asked += 1;
        let (answer, outcome) = ask(&mut policy, &view);
        if outcome.is_err() || asked >= options.times {
            break (answer, outcome);
        }
    };
    let fails = outcome.is_err();
    let (now, same) = match outcome {
        Err(fault) => (fault.to_string(), Some(fault.kind == fault_kind)),
        Ok(in_short) if cannot_show(fault_kind, &view) => (in_short, None),
        Ok(in_short) => (in_short, Some(false)),
    };
    Ok(Replayed {
        policy: format!("{} {}", info.name, info.version),
        question: question_name(&view).to_owned(),
        view: question_json(&view),
        answer: answer.as_ref().map(answer_json),
        then,
        now,
        fails,
        same,
        asked,
    })
}

pub(super) fn read(path: &Path) -> Result<Artifact, ReplayError> {
    let unreadable = |error| ReplayError::File(path.to_owned(), error);
    let wrong = |why: String| ReplayError::Format(path.to_owned(), why);
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        return Err(wrong("it is too large".to_owned()));
    }
    let text = std::fs::read(path).map_err(unreadable)?;
    let artifact: Artifact = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    if artifact.format != VERSION {
        return Err(wrong(format!("its format is {}, not {VERSION}", artifact.format)));
    }
    Ok(artifact)
}

fn load(
    path: &Path,
    artifact: &Artifact,
    kind: PolicyKind,
    loader: &PolicyLoader,
    options: &ReplayOptions,
) -> Result<AnyPolicy, ReplayError> {
    let members = &artifact.policy.members;
    if options.component.is_some() && members.len() != 1 {
        return Err(ReplayError::List);
    }
    let mut loaded = Vec::new();
    for member in members {
        let config = member.config.to_string();
        let policy = match &options.component {
            Some(bytes) => {
                let same = loader.describe(bytes).map_err(PolicyError::from)?.1.name == member.name;
                let config = match &options.config {
                    Some(given) => given.to_string(),
                    None if same => config,
                    None => policies::empty().to_string(),
                };
                loader.load(kind, bytes, &config).map_err(PolicyError::from)?
            }
            None if member.sha256.is_empty() => policies::builtin(kind),
            None => {
                let bytes = component_beside(path, &member.sha256)?;
                loader.load(kind, &bytes, &config).map_err(PolicyError::from)?
            }
        };
        loaded.push(policy);
    }
    Ok(policies::join(loaded)?)
}

/// Returns the component that a fault file names. The file may come from anybody: it must not name any other file, and
/// the bytes must have the digest that it names.
fn component_beside(path: &Path, sha256: &str) -> Result<Vec<u8>, ReplayError> {
    let wrong = |what: &str| ReplayError::Format(path.to_owned(), what.to_owned());
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong("it names a component by something that is not a SHA-256"));
    }
    let beside = path.with_file_name(format!("{sha256}.wasm"));
    let bytes = std::fs::read(&beside).map_err(|e| ReplayError::File(beside.clone(), e))?;
    let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != sha256 {
        return Err(wrong(&format!("{} is another component than the one that failed", beside.display())));
    }
    Ok(bytes)
}

/// Whether a single call can't reproduce a fault: because it judges many calls, or depends on events that a prefix
/// cache received before.
pub(super) fn cannot_show(fault: FaultKind, view: &FaultView) -> bool {
    let of_many = matches!(fault, FaultKind::Starvation | FaultKind::StepBudget);
    of_many || matches!(view, FaultView::Observe(_) | FaultView::Evict { .. })
}

/// Makes the call; returns the answer, and the answer in short or what is wrong with it.
fn ask(policy: &mut AnyPolicy, view: &FaultView) -> (Option<Answer>, Result<String, PolicyFault>) {
    if let FaultView::Lifecycle = view {
        return (None, export_and_restart(policy));
    }
    let mismatch = || PolicyFault::new(FaultKind::Setup, "the call does not belong to this kind of policy");
    match view.put_to(policy).unwrap_or_else(|| Err(mismatch())) {
        Ok(answer) => {
            let outcome = judge(view, &answer).map(|()| in_short(&answer, view));
            (Some(answer), outcome)
        }
        Err(fault) => (None, Err(fault)),
    }
}

fn export_and_restart(policy: &mut AnyPolicy) -> Result<String, PolicyFault> {
    let state = policy.lifecycle().export_state()?;
    policy.lifecycle().restart()?;
    Ok(format!("exports {} bytes of state and restarts", state.len()))
}

/// Holds an answer against the rules that need nothing but the call.
fn judge(view: &FaultView, answer: &Answer) -> Result<(), PolicyFault> {
    match (view, answer) {
        (FaultView::Schedule(step), Answer::Plan(plan)) => plan::check(step, plan),
        (FaultView::Reuse(hit), &Answer::Reuse(reuse)) if reuse > hit.cached_tokens => {
            let message = format!("it reuses {reuse} tokens, but only {} are cached", hit.cached_tokens);
            Err(PolicyFault::new(FaultKind::InvalidDecision, message))
        }
        _ => Ok(()),
    }
}

/// Describes an answer in a few words.
pub fn in_short(answer: &Answer, view: &FaultView) -> String {
    match answer {
        Answer::Plan(plan) => {
            let tokens: u64 = plan.tokens.iter().map(|&t| u64::from(t)).sum();
            let (run, preempt) = (plan.run.len(), plan.preempt.len());
            format!("a plan of {run} sequences with {tokens} tokens, preempting {preempt}")
        }
        Answer::Verdict(Verdict::Admit) => "admits".to_owned(),
        Answer::Verdict(Verdict::Wait) => "holds".to_owned(),
        Answer::Verdict(Verdict::WaitTenant) => "holds the tenant".to_owned(),
        Answer::Verdict(Verdict::Refuse(refusal)) => format!("refuses: {}", refusal.message),
        Answer::Pressure(pressure) => format!("pressure {:.3}", f64::from(pressure.level_permille) / 1e3),
        Answer::Reuse(tokens) => format!("reuses {tokens} cached tokens"),
        Answer::Retention(kept) => format!("keeps {} tokens for {} ms", kept.keep_tokens, kept.ttl.0 / 1_000),
        Answer::Blocks(blocks) => {
            let why = if let FaultView::Evict { .. } = view { "evict" } else { "drop" };
            format!("names {} blocks to {why}", blocks.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_file_can_only_name_a_component_by_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let fault = dir.path().join("fault.json");
        let digest: String = Sha256::digest(b"it").iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(dir.path().join(format!("{digest}.wasm")), "it").unwrap();
        std::fs::write(dir.path().join("other.wasm"), "it").unwrap();
        assert_eq!(component_beside(&fault, &digest).unwrap(), b"it");
        for name in ["other", "../other", &digest[1..], &format!("/{}", &digest[1..])] {
            assert!(matches!(component_beside(&fault, name), Err(ReplayError::Format(..))), "{name}");
        }
        std::fs::write(dir.path().join(format!("{digest}.wasm")), "something else").unwrap();
        let error = component_beside(&fault, &digest).unwrap_err();
        assert!(error.to_string().contains("another component"), "{error}");
    }
}
