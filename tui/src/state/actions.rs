//! What changes the host: swap, promote, rollback, cancel, clear, drain. Each passes a question, none is
//! possible with `--read-only`, and every outcome is shown and logged.

use std::time::Duration;

use infer_api::admin::{PolicySlot, QuarantineEntry, SwapAnswer};
use serde_json::Value;

use super::dialog::{Dialog, Notice, Prompt};
use super::form::Form;
use super::log::Level;
use super::swap::{Editing, Mode, Order, Path, Picked, Picker, Plan, Source};
use super::text::LineEdit;
use super::{App, Effect, Link, Millis};

/// How long an outcome stays in the footer, and how long one that has to be read does.
const NOTICE: Duration = Duration::from_secs(8);
const ERROR: Duration = Duration::from_secs(30);

impl App {
    /// Shows an outcome.
    pub(super) fn notify(&mut self, level: Level, text: String) {
        let left = if level == Level::Error { ERROR } else { NOTICE };
        self.notice = Some(Notice { level, text, left });
    }

    /// Whether changes are allowed; says so where they are not.
    pub(super) fn may_change(&mut self) -> bool {
        let why = if matches!(self.link, Link::Replay | Link::Ended) {
            "this is a recording: there is nothing to change"
        } else if self.read_only {
            "started with --read-only: nothing is changed"
        } else if self.link != Link::Live || !self.heard {
            "there is no connection to the host: nothing is changed"
        } else if self.feed().restarts != self.live.restarts {
            "the paused screen is of the host before its restart: space lets it run on"
        } else {
            return true;
        };
        self.notify(Level::Warning, why.to_owned());
        false
    }

    /// The slot of a kind as it is shown.
    #[must_use]
    pub fn slot(&self, kind: &str) -> Option<&PolicySlot> {
        self.state()?.policies.iter().find(|slot| slot.kind == kind)
    }

    /// The slot of a kind as the host said last: a paused screen must not ask about what is no longer so.
    fn live_slot(&self, kind: &str) -> Option<&PolicySlot> {
        self.live.state.as_ref()?.policies.iter().find(|slot| slot.kind == kind)
    }

    fn confirm(&mut self, question: String, effect: Effect) {
        self.dialog = Some(Dialog::Confirm { question, effect });
    }

    /// Asks whether a request is to be cancelled.
    pub(super) fn ask_cancel(&mut self, id: u64) {
        if !self.may_change() {
            return;
        }
        let rows = self.live.state.as_ref().map_or(&[][..], |state| &state.requests);
        let question = match rows.iter().find(|row| row.id == id) {
            Some(row) => format!(
                "Cancel request {} ({}, {} of {} tokens)?",
                row.id, row.state, row.generated_tokens, row.max_tokens
            ),
            None => format!("Cancel request {id}? It is not in the table."),
        };
        self.confirm(question, Effect::Cancel { id });
    }

    /// Asks whether everything that waits is to fail.
    pub(super) fn ask_clear_queue(&mut self) {
        if self.may_change() {
            let queue = self.live.state.as_ref().map(|state| state.queue).unwrap_or_default();
            let waiting = queue.waiting + queue.held + queue.preempted;
            let begun = match queue.preempted {
                0 => String::new(),
                preempted => format!(" {preempted} of them were preempted in the middle of their answers."),
            };
            let question =
                format!("Fail all {waiting} requests that wait? Their clients get an error.{begun}");
            self.confirm(question, Effect::ClearQueue);
        }
    }

    /// Asks whether the host is to take nothing new.
    pub(super) fn ask_drain(&mut self) {
        if self.may_change() {
            let question = "Take no new requests from now on? Only a restart of the host undoes this.";
            self.confirm(question.to_owned(), Effect::Drain);
        }
    }

    /// Opens the list of what can be swapped into the selected slot.
    pub(super) fn open_picker(&mut self) -> Vec<Effect> {
        if !self.may_change() {
            return Vec::new();
        }
        let mut picker = Picker::new(self.policies.kind());
        // What is known is there at once; the answer brings what changed.
        if let Some(known) = &self.policies.known {
            picker.on_policies(&Ok(known.clone()));
        }
        self.dialog = Some(Dialog::Pick(picker));
        vec![Effect::FetchPolicies]
    }

    /// Goes on from the list: to the question, or to the path of a file.
    pub(super) fn picked(&mut self, picker: Picker) {
        let kind = picker.kind.clone();
        match picker.selected() {
            None => self.dialog = Some(Dialog::Pick(picker)),
            Some(Picked::File) => self.dialog = Some(Dialog::Path(Path::new(&kind))),
            Some(Picked::Policy(policy)) => {
                let (name, schema) = (policy.name.clone(), policy.config_schema.clone());
                // As it would be configured here: what failed under another configuration may come.
                let unconfigured = |entry: &QuarantineEntry| match &entry.config {
                    Value::Object(config) => config.is_empty(),
                    config => config.is_null(),
                };
                let same = |q: &&QuarantineEntry| {
                    !policy.sha256.is_empty() && q.sha256 == policy.sha256 && unconfigured(q)
                };
                let quarantine = picker.quarantine.iter().find(same).cloned();
                let of = self.in_force(&kind);
                let source = Source::Name(name);
                let order = Order { kind, source, mode: Mode::Now, config: None, force: false, of };
                self.dialog = Some(Dialog::Swap(Box::new(Plan { order, schema, quarantine })));
            }
        }
    }

    /// The policy that is in force in a slot, as its questions show it.
    fn in_force(&self, kind: &str) -> Option<String> {
        self.live_slot(kind).map(|slot| slot.name.clone())
    }

    /// Asks whether an order is to be given, of whoever is in force now.
    pub(super) fn ask_swap(&mut self, order: Order) {
        if !self.may_change() {
            return;
        }
        let order = Order { of: self.in_force(&order.kind), ..order };
        let known = self.policies.known.iter().flat_map(|known| &known.available);
        let policy = known.into_iter().find(|p| p.kind == order.kind && *p.name == *order.source.text());
        let schema = policy.map(|policy| policy.config_schema.clone()).unwrap_or_default();
        self.dialog = Some(Dialog::Swap(Box::new(Plan { order, schema, quarantine: None })));
    }

    /// Opens the form of a plan's configuration.
    pub(super) fn edit(&mut self, plan: Plan) {
        let current = plan.order.config.clone().unwrap_or(Value::Null);
        match Form::new(&plan.schema, &current) {
            Some(form) => {
                self.dialog = Some(Dialog::Edit(Box::new(Editing { plan, form, faults: Vec::new() })));
            }
            None => {
                let text =
                    format!("{} takes no configuration that could be edited here", plan.order.source.text());
                self.notify(Level::Warning, text);
                self.dialog = Some(Dialog::Swap(Box::new(plan)));
            }
        }
    }

    /// Opens the form of the policy in force; what the host has under its name is wanted for the question.
    pub(super) fn configure(&mut self, kind: &str) -> Vec<Effect> {
        if !self.may_change() {
            return Vec::new();
        }
        let Some(slot) = self.live_slot(kind) else { return Vec::new() };
        let Some(form) = Form::new(&slot.config_schema, &slot.config) else {
            let text = format!("{} takes no configuration", slot.name);
            self.notify(Level::Warning, text);
            return Vec::new();
        };
        let order = Order {
            kind: kind.to_owned(),
            source: Source::Name(slot.name.clone()),
            mode: Mode::Now,
            config: None,
            force: false,
            of: Some(slot.name.clone()),
        };
        let plan = Plan { order, schema: slot.config_schema.clone(), quarantine: None };
        self.dialog = Some(Dialog::Edit(Box::new(Editing { plan, form, faults: Vec::new() })));
        if self.policies.known.is_none() { vec![Effect::FetchPolicies] } else { Vec::new() }
    }

    /// Whether configuring a policy anew would bring in another component: the one in force came from a file
    /// and has the name of one of the host's own.
    #[must_use]
    pub fn hides_the_hosts_own(&self, order: &Order) -> bool {
        let (Source::Name(name), Some(slot)) = (&order.source, self.live_slot(&order.kind)) else {
            return false;
        };
        let mut known = self.policies.known.iter().flat_map(|known| &known.available);
        let other = |sha256: &str| !slot.sha256.is_empty() && *sha256 != slot.sha256;
        *name == slot.name && known.any(|p| p.kind == order.kind && p.name == *name && other(&p.sha256))
    }

    /// Asks whether a slot is to be rolled back.
    pub(super) fn ask_rollback(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let Some(slot) = self.live_slot(kind) else { return };
        match &slot.previous {
            Some(previous) => {
                let question = if *previous == slot.name {
                    format!("Roll {kind} back to {previous} as it was configured before?")
                } else {
                    format!("Roll {kind} back from {} to {previous}?", slot.name)
                };
                let of = slot.name.clone();
                self.confirm(question, Effect::Rollback { kind: kind.to_owned(), of });
            }
            None => {
                let text = format!("{kind}: there is nothing to roll back to");
                self.notify(Level::Warning, text);
            }
        }
    }

    /// Asks whether what is tried in a slot is to become live.
    pub(super) fn ask_promote(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let Some(slot) = self.live_slot(kind) else { return };
        let shadow = slot.shadow.as_ref().filter(|shadow| shadow.state == "watching");
        let (question, of) = if let Some(shadow) = shadow {
            (format!("Make {} live, in place of {}?", shadow.policy, slot.name), shadow.policy.clone())
        } else if slot.state == "canary" {
            let question = format!("End the trial of {} well, before its window is over?", slot.name);
            (question, slot.name.clone())
        } else {
            let text = format!("{kind}: nothing runs in shadow or on trial");
            self.notify(Level::Warning, text);
            return;
        };
        self.confirm(question, Effect::Promote { kind: kind.to_owned(), of });
    }

    /// Asks whether a slot's shadow is to end.
    pub(super) fn ask_stop_shadow(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let shadow = self.live_slot(kind).and_then(|slot| slot.shadow.as_ref());
        match shadow.filter(|shadow| shadow.state == "watching") {
            Some(shadow) => {
                let question = format!("End {} in the shadow of {kind}?", shadow.policy);
                self.confirm(question, Effect::StopShadow { kind: kind.to_owned() });
            }
            None => {
                let text = format!("{kind}: nothing runs in shadow");
                self.notify(Level::Warning, text);
            }
        }
    }

    /// Opens the line for a command; the policies' names are wanted for its completion.
    pub(super) fn open_command(&mut self) -> Vec<Effect> {
        self.prompt = Some(Prompt::Command(LineEdit::default(), Vec::new()));
        if self.policies.known.is_none() && self.link == Link::Live {
            vec![Effect::FetchPolicies]
        } else {
            Vec::new()
        }
    }

    pub(super) fn on_swapped(
        &mut self,
        kind: &str,
        verb: &str,
        result: Result<SwapAnswer, String>,
        now: Millis,
    ) -> Vec<Effect> {
        match result {
            Ok(answer) => {
                // First, because the end of a long line is cut.
                let back = if matches!(answer.mode.as_str(), "now" | "canary" | "promote") {
                    " (r goes back)"
                } else {
                    ""
                };
                let what = if answer.mode == "shadow" {
                    format!("{kind}: {} runs in the shadow of {}", answer.to, answer.from)
                } else if answer.from == answer.to && answer.mode != "promote" {
                    format!("{kind} {verb}: {} with another configuration", answer.to)
                } else {
                    format!("{kind} {verb}: {} -> {}", answer.from, answer.to)
                };
                let text = format!(
                    "{what}{back} at step {}, pause {:.1} us, state {}",
                    answer.at_step, answer.pause_us, answer.state
                );
                if answer.mode == "shadow" {
                    // The host tells of swaps by itself, but not of shadows.
                    self.live.log.push(now, Level::Info, "console", text.clone());
                }
                self.notify(Level::Info, text);
            }
            Err(text) => {
                self.live.log.push(now, Level::Error, "console", text.clone());
                self.notify(Level::Error, text);
            }
        }
        self.policies.forget_history();
        self.on_tick(now)
    }
}
