//! What changes the host: swap, rollback, cancel. Each passes a confirmation, none is possible with
//! `--read-only`, and every outcome is shown and logged.

use infer_api::admin::{AvailablePolicy, Policies, SwapAnswer};

use super::log::Level;
use super::{App, Effect, Millis};

/// How long an outcome stays in the footer.
const NOTICE_MS: Millis = 6_000;

/// Covers the screen and wants an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// Everything about one request.
    Details {
        /// Which.
        id: u64,
    },
    /// The policies that can be swapped in.
    Pick {
        /// Into which slot.
        kind: String,
        /// What there is; `None` until the host has answered.
        options: Option<Result<Vec<AvailablePolicy>, String>>,
        /// Which one is selected.
        selected: usize,
    },
    /// A question.
    Confirm {
        /// What is asked.
        question: String,
        /// What happens on yes.
        effect: Effect,
    },
}

/// An outcome, shown in the footer for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How it went.
    pub level: Level,
    /// What happened.
    pub text: String,
    /// When it goes away.
    pub until: Millis,
}

impl App {
    /// Shows an outcome.
    pub(super) fn notify(&mut self, level: Level, text: String, now: Millis) {
        self.notice = Some(Notice { level, text, until: now + NOTICE_MS });
    }

    /// Whether changes are allowed; says so where they are not.
    fn may_change(&mut self, now: Millis) -> bool {
        if self.read_only {
            self.notify(Level::Warning, "started with --read-only: nothing is changed".to_owned(), now);
        }
        !self.read_only
    }

    /// Asks whether a request is to be cancelled.
    pub(super) fn ask_cancel(&mut self, id: u64, now: Millis) {
        if !self.may_change(now) {
            return;
        }
        let rows = self.state().map_or(&[][..], |state| &state.requests);
        let Some(row) = rows.iter().find(|row| row.id == id) else { return };
        let question = format!(
            "Cancel request {} ({}, {} of {} tokens)?",
            row.id, row.state, row.generated_tokens, row.max_tokens
        );
        self.dialog = Some(Dialog::Confirm { question, effect: Effect::Cancel { id: row.id } });
    }

    /// Opens the list of what can be swapped into the selected slot.
    pub(super) fn open_picker(&mut self, now: Millis) -> Vec<Effect> {
        if !self.may_change(now) {
            return Vec::new();
        }
        let kind = self.policies.kind().to_owned();
        self.dialog = Some(Dialog::Pick { kind, options: None, selected: 0 });
        vec![Effect::FetchPolicies]
    }

    /// Asks whether the selected slot is to be rolled back.
    pub(super) fn ask_rollback(&mut self, now: Millis) {
        if !self.may_change(now) {
            return;
        }
        let kind = self.policies.kind();
        let Some(slot) = self.state().and_then(|state| state.policies.iter().find(|slot| slot.kind == kind))
        else {
            return;
        };
        match slot.previous.clone() {
            Some(previous) => {
                let question = format!("Roll {kind} back from {} to {previous}?", slot.name);
                let effect = Effect::Rollback { kind: kind.to_owned() };
                self.dialog = Some(Dialog::Confirm { question, effect });
            }
            None => {
                let text = format!("{kind}: there is nothing to roll back to");
                self.notify(Level::Warning, text, now);
            }
        }
    }

    /// Asks whether the policy picked from the list is to be swapped in.
    pub(super) fn ask_swap(&mut self) {
        let Some(Dialog::Pick { kind, options: Some(Ok(options)), selected }) = &self.dialog else { return };
        let Some(option) = options.get(*selected) else { return };
        let current = self
            .state()
            .and_then(|state| state.policies.iter().find(|slot| slot.kind == *kind))
            .map_or("", |slot| slot.name.as_str());
        let question = format!("Swap {kind} from {current} to {}?", option.name);
        let effect = Effect::Swap { kind: kind.clone(), name: option.name.clone() };
        self.dialog = Some(Dialog::Confirm { question, effect });
    }

    pub(super) fn on_available(&mut self, result: Result<Policies, String>) {
        if let Some(Dialog::Pick { kind, options, selected }) = &mut self.dialog {
            let of_kind = |policies: Policies| {
                policies.available.into_iter().filter(|policy| policy.kind == *kind).collect()
            };
            *options = Some(result.map(of_kind));
            *selected = 0;
        }
    }

    pub(super) fn on_swapped(
        &mut self,
        kind: &str,
        rollback: bool,
        result: Result<SwapAnswer, String>,
        now: Millis,
    ) -> Vec<Effect> {
        let verb = if rollback { "rolled back" } else { "swapped" };
        match result {
            Ok(answer) => {
                let text = format!(
                    "{kind} {verb}: {} -> {} at step {}, pause {:.1} us, state {}",
                    answer.from, answer.to, answer.at_step, answer.pause_us, answer.state
                );
                self.notify(Level::Info, text, now);
            }
            Err(error) => {
                let text = format!("{kind} not {verb}: {error}");
                self.live.log.push(now, Level::Error, "console", text.clone());
                self.notify(Level::Error, text, now);
            }
        }
        self.policies.forget_history();
        self.on_tick(now)
    }

    pub(super) fn on_cancelled(&mut self, id: u64, result: Result<(), String>, now: Millis) {
        match result {
            Ok(()) => {
                let text = format!("request {id} cancelled from this console");
                self.live.log.push(now, Level::Info, "console", text.clone());
                self.notify(Level::Info, text, now);
            }
            Err(error) => {
                let text = format!("request {id} not cancelled: {error}");
                self.live.log.push(now, Level::Error, "console", text.clone());
                self.notify(Level::Error, text, now);
            }
        }
    }
}
