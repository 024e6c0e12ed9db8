//! Where the checks record their findings: one line per check, in a fixed order.

use std::collections::BTreeMap;

use infer_core::policy::FaultKind;

use crate::report::{Line, Outcome};

/// Examples shown per failure; the rest is counted.
const EXAMPLES: usize = 3;

/// The checks, in the order in which a report has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    Load,
    Views,
    Hostile,
    Runs,
    Progress,
    Idle,
    OpenDoor,
    Refusals,
    Evictions,
    Resync,
    Determinism,
    History,
    State,
    Fuel,
    Memory,
    Time,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Views => "views",
            Self::Hostile => "hostile views",
            Self::Runs => "runs",
            Self::Progress => "progress",
            Self::Idle => "idling",
            Self::OpenDoor => "idle host",
            Self::Refusals => "refusals",
            Self::Evictions => "evictions",
            Self::Resync => "resync",
            Self::Determinism => "determinism",
            Self::History => "history",
            Self::State => "state",
            Self::Fuel => "fuel",
            Self::Memory => "memory",
            Self::Time => "time",
        }
    }

    /// The check that a fault belongs to if it happened during `self`.
    pub fn of_fault(self, kind: FaultKind) -> Self {
        match kind {
            FaultKind::Deadline | FaultKind::StepBudget => Self::Fuel,
            FaultKind::Memory => Self::Memory,
            FaultKind::Starvation => Self::Progress,
            FaultKind::Trap | FaultKind::InvalidDecision | FaultKind::Setup => self,
        }
    }
}

#[derive(Default)]
struct Entry {
    failures: u64,
    examples: Vec<String>,
    note: Option<String>,
    done: Option<String>,
}

/// Findings of one check of one component.
#[derive(Default)]
pub(crate) struct Sheet {
    entries: BTreeMap<Check, Entry>,
}

impl Sheet {
    /// The check was carried out; `what` is shown unless something worse is.
    pub fn done(&mut self, check: Check, what: impl Into<String>) {
        self.entry(check).done = Some(what.into());
    }

    /// Worth knowing, and no failure.
    pub fn note(&mut self, check: Check, what: impl Into<String>) {
        self.entry(check).note = Some(what.into());
    }

    /// The policy did something wrong. `example` is called only if it will be shown.
    pub fn fail(&mut self, check: Check, example: impl FnOnce() -> String) {
        let entry = self.entry(check);
        entry.failures += 1;
        if entry.examples.len() < EXAMPLES {
            let example = example();
            if !entry.examples.contains(&example) {
                entry.examples.push(example);
            }
        }
    }

    pub fn lines(self) -> Vec<Line> {
        self.entries.into_iter().map(|(check, entry)| entry.line(check.name())).collect()
    }

    fn entry(&mut self, check: Check) -> &mut Entry {
        self.entries.entry(check).or_default()
    }
}

impl Entry {
    fn line(self, check: &'static str) -> Line {
        let (outcome, detail) = match (self.examples.is_empty(), self.note) {
            (false, _) => {
                let hidden = self.failures - self.examples.len() as u64;
                let mut detail = self.examples.join("\n");
                if hidden > 0 {
                    detail.push_str(&format!("\nand {hidden} more"));
                }
                (Outcome::Failed, detail)
            }
            (true, Some(note)) => (Outcome::Note, note),
            (true, None) => (Outcome::Ok, self.done.unwrap_or_default()),
        };
        Line { check, outcome, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_outweighs_a_note_and_only_some_examples_are_shown() {
        let mut sheet = Sheet::default();
        sheet.done(Check::Views, "all well");
        sheet.note(Check::Runs, "odd");
        sheet.done(Check::Runs, "all well");
        for nth in 0..5 {
            sheet.fail(Check::Load, || format!("wrong {nth}"));
        }
        sheet.note(Check::Load, "odd");
        let lines = sheet.lines();
        let outcomes: Vec<_> = lines.iter().map(|line| (line.check, line.outcome)).collect();
        assert_eq!(outcomes, [("load", Outcome::Failed), ("views", Outcome::Ok), ("runs", Outcome::Note)]);
        assert_eq!(lines[0].detail, "wrong 0\nwrong 1\nwrong 2\nand 2 more");
    }
}
