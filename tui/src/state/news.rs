//! Handles what the host sends: snapshots, changes, events, responses.

use std::time::Duration;

use infer_api::admin::{AdminEvent, Change, PolicySlot, State};

use super::command;
use super::dialog::{Dialog, Prompt};
use super::history::{History, Sample};
use super::log::Level;
use super::paths;
use super::text::LineEdit;
use super::{App, Effect, Link, Message, Millis};
use crate::text::configured;

/// What the connection, or a recording in its place, reports.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and nearly all are events")]
pub enum Report {
    /// The event stream is open.
    Connected,
    /// A recording starts to play.
    Replaying,
    /// The recording is over.
    Ended,
    /// The recording can't be played any further; the reason.
    Broken(String),
    /// The host sent an event.
    Event(AdminEvent),
    /// The event stream broke or could not be opened.
    Lost {
        /// Why.
        why: String,
        /// Time until the next attempt.
        retry_in: Duration,
    },
}

impl App {
    /// Takes a message.
    pub fn on_message(&mut self, message: Message, now: Millis) -> Vec<Effect> {
        match message {
            Message::Feed(report) => return self.on_report(report, now),
            Message::Folder { folder, result } => self.on_folder(&folder, result),
            Message::Map(result) => self.blocks.on_map(result, now),
            Message::Under(of, result) => self.blocks.on_under(of, result),
            Message::Cache(result) => self.cache.on_report(result, now),
            Message::Policies(result) => {
                if let Some(Dialog::Pick(picker)) = &mut self.dialog {
                    picker.on_policies(&result);
                }
                if let Ok(known) = result {
                    self.policies.known = Some(known);
                }
            }
            Message::History { kind, result } => self.policies.on_history(kind, result, now),
            Message::Request { id, result } => self.requests.on_detail(id, result),
            Message::Swapped { kind, verb, result } => return self.on_swapped(&kind, verb, result, now),
            Message::Done(result) => {
                let (level, text) = match result {
                    Ok(text) => (Level::Info, text),
                    Err(text) => (Level::Error, text),
                };
                self.live.log.push(now, level, "console", text.clone());
                self.notify(level, text);
            }
        }
        self.on_tick(now)
    }

    /// Completes the typed path, unless it changed since the folder was requested.
    fn on_folder(&mut self, folder: &str, result: Result<Vec<String>, String>) {
        let names = match result {
            Ok(names) => names,
            Err(error) => return self.notify(Level::Warning, error),
        };
        match (&mut self.dialog, &mut self.prompt) {
            (_, Some(Prompt::Command(line, options)))
                if command::path(&line.text()).is_some_and(|typed| paths::folder(typed) == folder) =>
            {
                let (text, fitting) = command::complete_path(&line.text(), &names);
                (*line, *options) = (LineEdit::new(&text), fitting);
            }
            (Some(Dialog::Path(path)), _) if paths::folder(&path.line.text()) == folder => {
                let (text, fitting) = paths::complete(&path.line.text(), &names);
                (path.line, path.options) = (LineEdit::new(&text), Some(fitting));
            }
            _ => {}
        }
    }

    fn on_report(&mut self, report: Report, now: Millis) -> Vec<Effect> {
        match report {
            Report::Connected => {
                self.on_connected(now);
                self.link = Link::Live;
                self.heard = false;
                self.policies.forget_history();
            }
            Report::Replaying => {
                self.on_connected(now);
                self.link = Link::Replay;
            }
            Report::Ended => self.link = Link::Ended,
            Report::Broken(why) => {
                self.link = Link::Ended;
                self.live.log.push(now, Level::Error, "console", why.clone());
                self.notify(Level::Error, why);
            }
            Report::Lost { why, retry_in } => {
                if matches!(self.link, Link::Live | Link::Replay) {
                    self.live.log.push(now, Level::Warning, "console", why.clone());
                }
                let retry_at = now.saturating_add(u64::try_from(retry_in.as_millis()).unwrap_or(u64::MAX));
                self.link = Link::Lost { why, retry_at };
            }
            Report::Event(AdminEvent::Change(change)) => {
                if !self.on_change(*change, now) {
                    self.live.log.push(
                        now,
                        Level::Warning,
                        "console",
                        "missed a change; restarting the feed".to_owned(),
                    );
                    return vec![Effect::Resync];
                }
            }
            Report::Event(event) => self.on_event(event, now),
        }
        self.on_tick(now)
    }

    fn on_connected(&mut self, now: Millis) {
        if matches!(self.link, Link::Lost { .. }) {
            self.live.log.push(now, Level::Info, "console", "reconnected".to_owned());
            // It may say that there is no host.
            self.notice = None;
        }
    }

    fn on_event(&mut self, event: AdminEvent, now: Millis) {
        let log = &mut self.live.log;
        match event {
            AdminEvent::Snapshot(state) => self.on_snapshot(*state, now),
            // Handled in `on_report`, which can restart the feed.
            AdminEvent::Change(_) => {}
            AdminEvent::Swap(answer) => {
                self.policies.forget_history();
                let note = answer.state_note.as_ref();
                let level = if note.is_some() { Level::Warning } else { Level::Info };
                let text = format!(
                    "{}: {} replaced {} at step {}, {} state, pause {:.0} us ({}){}",
                    answer.kind,
                    configured(&answer.to, &answer.config_sha256),
                    answer.from,
                    answer.at_step,
                    answer.state,
                    answer.pause_us,
                    answer.mode,
                    note.map(|note| format!("; {note}")).unwrap_or_default()
                );
                log.push(now, level, "swap", text);
            }
            AdminEvent::Fault(fault) => {
                self.policies.forget_history();
                let end = match (fault.removed, fault.shadow) {
                    (_, true) => "; it ran in shadow, no request was affected",
                    (true, _) => "; removed and quarantined",
                    _ => "",
                };
                let text = format!(
                    "{}: {} at step {}: {}{end}",
                    fault.policy, fault.reason, fault.step, fault.message
                );
                log.push(now, Level::Error, "fault", text);
            }
            AdminEvent::Canary(canary) => {
                self.policies.forget_history();
                let level = if canary.state == "rolled_back" { Level::Warning } else { Level::Info };
                let state = canary.state.replace('_', " ");
                let text = format!("{}: {} is {state}: {}", canary.kind, canary.policy, canary.reason);
                log.push(now, level, "canary", text);
            }
            AdminEvent::Refusal { reason, message, .. } => {
                log.push(now, Level::Warning, "refusal", format!("{reason}: {message}"));
            }
            AdminEvent::Failure { code, message, .. } => {
                log.push(now, Level::Error, "failure", format!("{code}: {message}"));
            }
            AdminEvent::Preemption { id } => {
                log.push(now, Level::Info, "preemption", format!("request {id} was preempted"));
            }
            AdminEvent::Lagged { missed } => log.drop_events(missed),
        }
    }

    fn on_snapshot(&mut self, state: State, now: Millis) {
        if self.live.state.as_ref().is_some_and(|old| is_another_run(old, &state)) {
            self.on_restart(now);
        }
        let before = self.live.state.as_ref().map(slots);
        let known = self.viewer().cloned();
        self.live.state = Some(state);
        self.heard = true;
        if let Some(viewer) = self.viewer().filter(|viewer| known.as_ref() != Some(*viewer)) {
            let text = format!("read-only: {} is a {} of this host", viewer.name, viewer.role);
            self.live.log.push(now, Level::Info, "console", text.clone());
            self.notify(Level::Info, text);
        }
        self.after_state(before, now);
    }

    /// Discards everything tied to ids, which start over: an open confirmation would be about another
    /// request.
    fn on_restart(&mut self, now: Millis) {
        let text = "the host restarted".to_owned();
        self.live.log.push(now, Level::Warning, "console", text.clone());
        if self.dialog.take().is_some() {
            self.notify(Level::Warning, format!("{text}; the open dialog was closed"));
        }
        self.live.restarts += 1;
        self.live.history = History::default();
        self.requests.forget();
        self.tenants.forget();
        self.policies.forget();
        self.blocks.clear();
        self.cache.clear();
    }

    /// Applies a change; false if it doesn't fit the current state.
    fn on_change(&mut self, change: Change, now: Millis) -> bool {
        let (events, left_out) = (change.events.clone(), change.events_left_out);
        let Some(state) = &mut self.live.state else { return false };
        let before = Some(slots(state));
        if change.apply(state).is_err() {
            return false;
        }
        for event in events {
            self.on_event(event, now);
        }
        self.live.log.drop_events(left_out);
        self.after_state(before, now);
        true
    }

    fn after_state(&mut self, before: Option<Vec<Slot>>, now: Millis) {
        let Some(state) = &self.live.state else { return };
        // The host sends no event when a shadow starts or ends.
        if before.is_some_and(|before| before != slots(state)) {
            self.policies.forget_history();
        }
        self.live.history.push(now, Sample::of(state));
        self.live.at = now;
        if self.frozen.is_none() {
            self.reorder();
        }
    }
}

/// Whether the host restarted between two snapshots. A host that sends no run id shows it only by a smaller
/// uptime.
fn is_another_run(old: &State, new: &State) -> bool {
    old.host.run != new.host.run || new.uptime_ms < old.uptime_ms
}

/// The part of a slot whose changes appear in its history: the policy, its state, and its shadow's name and
/// state.
type Slot = (String, String, Option<(String, String)>);

fn slots(state: &State) -> Vec<Slot> {
    let shadow = |slot: &PolicySlot| slot.shadow.as_ref().map(|s| (s.policy.clone(), s.state.clone()));
    state.policies.iter().map(|slot| (slot.name.clone(), slot.state.clone(), shadow(slot))).collect()
}
