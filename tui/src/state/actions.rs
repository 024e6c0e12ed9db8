//! Everything that changes the host: swap, promote, roll back, cancel, clear, drain, undrain. Each needs a
//! confirmation, none is possible with `--read-only` or for a viewer, and every outcome is shown and logged.

use std::time::Duration;

use infer_api::admin::{PolicySlot, QuarantineEntry, SwapAnswer};
use serde_json::Value;

use super::dialog::{Dialog, Notice, Prompt};
use super::form::Form;
use super::log::Level;
use super::swap::{self, Editing, Path, Picked, Picker, Plan};
use super::text::LineEdit;
use super::{App, Effect, Link, Millis};
use crate::order::{Mode, Order, Source};
use crate::text::{configured, count};

/// How long an outcome stays in the footer.
const NOTICE: Duration = Duration::from_secs(8);
/// How long an error does, which needs to be read.
const ERROR: Duration = Duration::from_secs(30);

impl App {
    /// Shows an outcome in the footer.
    pub(super) fn notify(&mut self, level: Level, text: String) {
        let left = if level == Level::Error { ERROR } else { NOTICE };
        self.notice = Some(Notice { level, text, left });
    }

    /// Whether changes are allowed; shows the reason if not.
    pub(super) fn may_change(&mut self) -> bool {
        let why = if matches!(self.link, Link::Replay | Link::Ended) {
            "this is a recording".to_owned()
        } else if self.read_only {
            "the console runs with --read-only".to_owned()
        } else if self.link != Link::Live || !self.heard {
            "there is no connection to the host".to_owned()
        } else if let Some(viewer) = self.viewer() {
            format!("this takes the role `operator`; {} is a {}", viewer.name, viewer.role)
        } else if self.feed().restarts != self.live.restarts {
            "the paused screen shows the host before its restart; press space to resume".to_owned()
        } else {
            return true;
        };
        self.notify(Level::Warning, format!("not possible: {why}"));
        false
    }

    /// Returns the slot of a kind as shown.
    #[must_use]
    pub fn slot(&self, kind: &str) -> Option<&PolicySlot> {
        self.state()?.policies.iter().find(|slot| slot.kind == kind)
    }

    /// Returns the slot of a kind as it is live: confirmations must not be about the state of a paused
    /// screen.
    fn live_slot(&self, kind: &str) -> Option<&PolicySlot> {
        self.live.state.as_ref()?.policies.iter().find(|slot| slot.kind == kind)
    }

    fn confirm(&mut self, question: String, effect: Effect) {
        self.dialog = Some(Dialog::Confirm { question, effect });
    }

    /// Asks for confirmation to cancel a request.
    pub(super) fn ask_cancel(&mut self, id: u64) {
        if !self.may_change() {
            return;
        }
        let rows = self.live.state.as_ref().map_or(&[][..], |state| &state.requests);
        let question = match rows.iter().find(|row| row.id == id) {
            Some(row) => format!(
                "Cancel request {} ({}, {} of {} tokens)?",
                row.id,
                row.state,
                count(row.generated_tokens.into()),
                count(row.max_tokens.into())
            ),
            None => format!("Cancel request {id}? It is not listed."),
        };
        self.confirm(question, Effect::Cancel { id });
    }

    /// Asks for confirmation to cancel the request that a sequence belongs to.
    pub(super) fn ask_cancel_all(&mut self, id: u64, first_id: u64) {
        if !self.may_change() {
            return;
        }
        let rows = self.live.state.as_ref().map_or(&[][..], |state| &state.requests);
        let all = count(rows.iter().filter(|row| row.first_id == Some(first_id)).count() as u64);
        let question = format!("Cancel request {id} with all its {all} sequences?");
        self.confirm(question, Effect::CancelAll { id, first_id });
    }

    /// Asks for confirmation to fail every waiting request.
    pub(super) fn ask_clear_queue(&mut self) {
        if self.may_change() {
            let queue = self.live.state.as_ref().map(|state| state.queue).unwrap_or_default();
            let waiting = count((queue.waiting + queue.held + queue.preempted).into());
            let begun = match queue.preempted {
                0 => String::new(),
                preempted => format!(" {} of them were preempted while running.", count(preempted.into())),
            };
            let question =
                format!("Fail all {waiting} waiting requests? Their clients receive an error.{begun}");
            self.confirm(question, Effect::ClearQueue);
        }
    }

    /// Asks for confirmation to drop what is cached.
    pub(super) fn ask_empty_cache(&mut self) {
        if self.may_change() {
            let memory = self.live.state.as_ref().map(|state| state.memory).unwrap_or_default();
            let question = format!(
                "Drop {} cached blocks? Their prompts are computed again when they return.",
                count(memory.cached.into())
            );
            self.confirm(question, Effect::EmptyCache);
        }
    }

    /// Asks for confirmation to drain the host.
    pub(super) fn ask_drain(&mut self) {
        if self.may_change() {
            let question = "Refuse new requests from now on? Running ones finish; `undrain` takes it back.";
            self.confirm(question.to_owned(), Effect::Drain);
        }
    }

    /// Asks for confirmation to take a drain back.
    pub(super) fn ask_undrain(&mut self) {
        if self.may_change() {
            self.confirm("Take new requests again?".to_owned(), Effect::Undrain);
        }
    }

    /// Opens the list of policies for the selected slot.
    pub(super) fn open_picker(&mut self) -> Vec<Effect> {
        if !self.may_change() {
            return Vec::new();
        }
        let mut picker = Picker::new(self.policies.kind());
        // Shows what is known at once; the response updates it.
        if let Some(known) = &self.policies.known {
            picker.on_policies(&Ok(known.clone()));
        }
        self.dialog = Some(Dialog::Pick(picker));
        vec![Effect::FetchPolicies]
    }

    /// Continues from the list with the confirmation, or with the path of a file.
    pub(super) fn picked(&mut self, picker: Picker) {
        let kind = picker.kind.clone();
        match picker.selected() {
            None => self.dialog = Some(Dialog::Pick(picker)),
            Some(Picked::File) => self.dialog = Some(Dialog::Path(Path::new(&kind))),
            Some(Picked::Policy(policy)) => {
                let (name, schema) = (policy.name.clone(), policy.config_schema.clone());
                let source = Source::Name(name);
                let order = Order { kind, source, mode: Mode::Now, config: None, force: false, of: None };
                self.dialog = Some(Dialog::Swap(Box::new(self.plan(order, schema))));
            }
        }
    }

    /// Makes a plan of an order, relative to the current live policy.
    fn plan(&self, order: Order, schema: Value) -> Plan {
        let slot = self.live_slot(&order.kind);
        let live = slot.map(|slot| slot.name.clone()).unwrap_or_default();
        Plan { order: Order { of: slot.map(seen), ..order }, live, schema }
    }

    /// Asks for confirmation of a swap order, relative to the current live policy.
    pub(super) fn ask_swap(&mut self, order: Order) {
        if !self.may_change() {
            return;
        }
        let known = self.policies.known.iter().flat_map(|known| &known.available);
        let policy = known.into_iter().find(|p| p.kind == order.kind && *p.name == *order.source.text());
        let schema = policy.map(|policy| policy.config_schema.clone()).unwrap_or_default();
        self.dialog = Some(Dialog::Swap(Box::new(self.plan(order, schema))));
    }

    /// Opens the form for a plan's configuration.
    pub(super) fn edit(&mut self, plan: Plan) {
        let current = plan.order.config.clone().unwrap_or(Value::Null);
        match Form::new(&plan.schema, &current) {
            Some(form) => {
                self.dialog = Some(Dialog::Edit(Box::new(Editing { plan, form, faults: Vec::new() })));
            }
            None => {
                let text =
                    format!("{} has no configuration that can be edited here", plan.order.source.text());
                self.notify(Level::Warning, text);
                self.dialog = Some(Dialog::Swap(Box::new(plan)));
            }
        }
    }

    /// Opens the form for the live policy's configuration. Fetches the host's policies for the confirmation's
    /// warnings.
    pub(super) fn configure(&mut self, kind: &str) -> Vec<Effect> {
        if !self.may_change() {
            return Vec::new();
        }
        let Some(slot) = self.live_slot(kind) else { return Vec::new() };
        let Some(form) = Form::new(&slot.config_schema, &slot.config) else {
            let text = format!("{} has no configuration", slot.name);
            self.notify(Level::Warning, text);
            return Vec::new();
        };
        let order = Order {
            kind: kind.to_owned(),
            source: Source::Name(slot.name.clone()),
            mode: Mode::Now,
            config: None,
            force: false,
            of: None,
        };
        let plan = self.plan(order, slot.config_schema.clone());
        self.dialog = Some(Dialog::Edit(Box::new(Editing { plan, form, faults: Vec::new() })));
        if self.policies.known.is_none() { vec![Effect::FetchPolicies] } else { Vec::new() }
    }

    /// The quarantine entry that makes the host refuse an order unless it is forced.
    #[must_use]
    pub fn quarantined(&self, order: &Order) -> Option<&QuarantineEntry> {
        swap::quarantined(order, self.policies.known.as_ref()?)
    }

    /// Whether reconfiguring the live policy by name would load a different component: it came from a file
    /// and shares its name with a bundled policy.
    #[must_use]
    pub fn shadows_a_bundled_policy(&self, order: &Order) -> bool {
        let (Source::Name(name), Some(slot)) = (&order.source, self.live_slot(&order.kind)) else {
            return false;
        };
        let mut known = self.policies.known.iter().flat_map(|known| &known.available);
        let other = |sha256: &str| !slot.sha256.is_empty() && *sha256 != slot.sha256;
        *name == slot.name && known.any(|p| p.kind == order.kind && p.name == *name && other(&p.sha256))
    }

    /// Asks for confirmation to roll a slot back.
    pub(super) fn ask_rollback(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let Some(slot) = self.live_slot(kind) else { return };
        match &slot.previous {
            Some(previous) => {
                let back = configured(previous, &slot.previous_config_sha256);
                let question = if *previous == slot.name {
                    format!("Roll {kind} back to {back} with its previous configuration?")
                } else {
                    format!("Roll {kind} back from {} to {back}?", slot.name)
                };
                let of = seen(slot);
                self.confirm(question, Effect::Rollback { kind: kind.to_owned(), of });
            }
            None => {
                let text = format!("{kind}: there is nothing to roll back to");
                self.notify(Level::Warning, text);
            }
        }
    }

    /// Asks for confirmation to promote a slot's shadow or canary.
    pub(super) fn ask_promote(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let Some(slot) = self.live_slot(kind) else { return };
        let shadow = slot.shadow.as_ref().filter(|shadow| shadow.state == "watching");
        let (question, of) = if let Some(shadow) = shadow {
            (
                format!("Promote {} from shadow to live, replacing {}?", shadow.policy, slot.name),
                tag_or_name(&shadow.tag, &shadow.policy),
            )
        } else if slot.state == "canary" {
            let question = format!("Promote the canary {} before its window is over?", slot.name);
            (question, seen(slot))
        } else {
            let text = format!("{kind}: there is no shadow and no canary to promote");
            self.notify(Level::Warning, text);
            return;
        };
        self.confirm(question, Effect::Promote { kind: kind.to_owned(), of });
    }

    /// Asks for confirmation to stop a slot's shadow.
    pub(super) fn ask_stop_shadow(&mut self, kind: &str) {
        if !self.may_change() {
            return;
        }
        let shadow = self.live_slot(kind).and_then(|slot| slot.shadow.as_ref());
        match shadow.filter(|shadow| shadow.state == "watching") {
            Some(shadow) => {
                let question = format!("Stop {} in the shadow of {kind}?", shadow.policy);
                self.confirm(question, Effect::StopShadow { kind: kind.to_owned() });
            }
            None => {
                let text = format!("{kind}: there is no shadow to stop");
                self.notify(Level::Warning, text);
            }
        }
    }

    /// Opens the command line. Fetches the names of policies for its completion.
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
            Ok(answer) if answer.unchanged => {
                let live = configured(&answer.to, &answer.config_sha256);
                self.notify(Level::Info, format!("{kind}: {live} is live already; nothing changed"));
            }
            Ok(answer) => {
                // At the front, because the end of a long line may be cut.
                let back = if matches!(answer.mode.as_str(), "now" | "canary" | "promote") {
                    " (r rolls back)"
                } else {
                    ""
                };
                let to = configured(&answer.to, &answer.config_sha256);
                let what = if answer.mode == "shadow" {
                    format!("{kind}: {to} runs in the shadow of {}", answer.from)
                } else {
                    format!("{kind} {verb}: {} -> {to}", answer.from)
                };
                let mut text = format!(
                    "{what}{back} at step {}, pause {:.1} us, state {}",
                    answer.at_step, answer.pause_us, answer.state
                );
                let not_saved = answer.not_saved.map(|why| format!("not saved: {why}"));
                let notes: Vec<String> = answer.state_note.into_iter().chain(not_saved).collect();
                let level = if notes.is_empty() { Level::Info } else { Level::Warning };
                for note in notes {
                    text = format!("{text}; {note}");
                }
                if answer.mode == "shadow" {
                    // The host sends an event for a swap, but not for a shadow.
                    self.live.log.push(now, level, "console", text.clone());
                }
                self.notify(level, text);
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

/// What a change names as the live policy that its confirmation is about.
fn seen(slot: &PolicySlot) -> String {
    tag_or_name(&slot.tag, &slot.name)
}

/// Returns the tag, which stands for a policy with just the component and the configuration that the operator saw.
/// Without one the name has to do, which stands for any.
fn tag_or_name(tag: &str, name: &str) -> String {
    if tag.is_empty() { name } else { tag }.to_owned()
}
