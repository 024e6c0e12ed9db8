//! What chosen policies go by that traffic may lack: a policy of deadlines does nothing of its own where no request has
//! one, and its results look like any others.

use std::collections::BTreeSet;

use infer_core::policy::PolicyKind;
use infer_sim::{Subject, Workload};

use super::task::Chosen;
use super::traffic::{Lengths, Offers};

/// What a policy goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// When first tokens are due.
    Deadlines,
    /// That requests have different priorities.
    Priorities,
}

impl Need {
    /// That of a bundled policy with this name and configuration.
    pub fn of(kind: PolicyKind, name: &str, config: &str) -> Option<Self> {
        match (kind, name) {
            (PolicyKind::Scheduler, "deadline") => Some(Self::Deadlines),
            (PolicyKind::Scheduler, "priority") => Some(Self::Priorities),
            (PolicyKind::Admission, "slo") => {
                let config: serde_json::Value = serde_json::from_str(config).ok()?;
                let has_its_own = config["default_ttft_ms"].as_u64().is_some_and(|ms| ms > 0);
                (!has_its_own).then_some(Self::Deadlines)
            }
            _ => None,
        }
    }

    fn is_met(self, offers: Offers) -> bool {
        match self {
            Self::Deadlines => offers.deadlines,
            Self::Priorities => offers.priorities,
        }
    }
}

/// Says which of the policies go by something that traffic lacks; `lengths` are those of the traces that were replayed.
pub fn notes(chosen: &Chosen, subjects: &[Subject<'_>], lengths: &[Lengths]) -> Vec<String> {
    let made = subjects.iter().filter_map(|subject| match subject {
        Subject::Made { workload, .. } => Some((workload.name.as_str(), offers(workload))),
        Subject::Recorded { .. } => None,
    });
    let replayed = lengths.iter().filter_map(|lengths| Some((lengths.name(), lengths.offers()?)));
    let traffic: Vec<(&str, Offers)> = made.chain(replayed).collect();
    let Chosen { schedulers, admissions, caches } = chosen;
    let all: Vec<(Need, String)> =
        [schedulers, admissions, caches].into_iter().flatten().flat_map(|choice| choice.needs()).collect();
    let note = |need: Need| {
        let policies: BTreeSet<&str> =
            all.iter().filter(|(of, _)| *of == need).map(|(_, name)| name.as_str()).collect();
        let lacking: Vec<&str> =
            traffic.iter().filter(|(_, offers)| !need.is_met(*offers)).map(|(name, _)| *name).collect();
        if policies.is_empty() || lacking.is_empty() {
            return None;
        }
        let (traffic, who) = (lacking.join(", "), Vec::from_iter(policies).join(" and "));
        Some(match need {
            Need::Deadlines => format!(
                "{traffic}: no request has a deadline, which {who} would go by; --ttft-deadline-ms gives all one"
            ),
            Need::Priorities => {
                format!("{traffic}: all requests have the same priority, which {who} would go by")
            }
        })
    };
    [Need::Deadlines, Need::Priorities].into_iter().filter_map(note).collect()
}

fn offers(workload: &Workload) -> Offers {
    let first = workload.streams.first().map(|stream| stream.priority);
    Offers {
        deadlines: workload.streams.iter().any(|stream| stream.ttft_ms.is_some()),
        priorities: workload.streams.iter().any(|stream| Some(stream.priority) != first),
    }
}
