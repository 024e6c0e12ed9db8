//! Reloads what can change while the host runs: tenants, operators, the certificate, policy configurations.
//!
//! Each is reloaded independently: if one is invalid, the old one stays in use, the log says why, and the others are
//! still reloaded. Deliberately absent: what needs a restart (addresses, model, chat template, sizes).

use std::sync::{Mutex, PoisonError};

use infer_core::policy::PolicyKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::config::{Config, PolicyChoice, read_policy_configs};
use crate::engine::{By, EngineStopped};
use crate::policies::{Choices, Reconfigured};
use crate::tenants::Tenants;

/// The admission policy that enforces tenants' rates.
const RATE_KEEPER: &str = "token-bucket";

/// The outcome of reloading something.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// `api-keys`, `operators`, `tls`, `policy-config`, or a policy slot.
    pub what: &'static str,
    /// What changed.
    pub done: String,
    /// Whether it was read and yet changed nothing, as `done` says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// Why it could not be reloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a reload did.
enum Done {
    Changed(String),
    /// It changed nothing, and why.
    Stays(String),
}

/// The policies that flags and files configure.
pub struct Reload {
    chosen: Choices,
    applied: Mutex<Choices>,
    /// One reload at a time: otherwise an older file could override a newer one.
    turn: tokio::sync::Mutex<()>,
}

impl Reload {
    /// Returns the state at the start.
    pub fn new(config: &Config, tenants: &Tenants) -> Self {
        let chosen = PolicyKind::ALL.map(|kind| config.policy(kind).clone());
        let applied = keep_rates(chosen.clone(), config.admission_chosen, tenants);
        Self { chosen, applied: Mutex::new(applied), turn: tokio::sync::Mutex::default() }
    }

    /// Returns the configured policies.
    pub fn choices(&self) -> Choices {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn apply(&self, kind: PolicyKind, choice: PolicyChoice) {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize] = choice;
    }
}

/// Adds the policy that enforces rates if tenants have rates and no admission policy was configured.
fn keep_rates(mut choices: Choices, admission_chosen: bool, tenants: &Tenants) -> Choices {
    let admission = &mut choices[PolicyKind::Admission as usize];
    if !tenants.has_rates() || admission.name.contains(RATE_KEEPER) {
        return choices;
    }
    if admission_chosen {
        tracing::warn!(
            "tenants have rates, but `{}` may not enforce them; add `{RATE_KEEPER}` to --admission",
            admission.name
        );
        return choices;
    }
    let own: Value = serde_json::from_str(&admission.config).unwrap_or_default();
    *admission = PolicyChoice {
        config: json!({&admission.name: own}).to_string(),
        name: format!("{},{RATE_KEEPER}", admission.name),
    };
    choices
}

/// Reloads everything and logs the outcomes; `by` is the operator who wants it.
pub async fn reload(app: &App, by: Option<&By>) -> Vec<Outcome> {
    let _turn = app.reload.turn.lock().await;
    let mut outcomes = Vec::new();
    let mut note = |what, done: Result<Done, String>| {
        let kept = match what {
            "api-keys" | "operators" => "the old ones stay in use",
            _ => "the old one stays in use",
        };
        let (done, stays, error) = match done {
            Ok(Done::Changed(done)) => (done, false, None),
            Ok(Done::Stays(why)) => (why, true, None),
            Err(error) => (kept.to_owned(), false, Some(error)),
        };
        match &error {
            None => tracing::info!("reloaded {what}: {done}"),
            Some(error) => tracing::error!("can't reload {what} ({done}): {error}"),
        }
        outcomes.push(Outcome { what, done, stays, error });
    };
    if app.config.api_keys.is_some() {
        note("api-keys", reload_tenants(app).map(Done::Changed));
    }
    if app.operators.has_file() {
        let tokens = || Done::Changed(format!("{} tokens", app.operators.token_count()));
        note("operators", app.operators.reload().map(|()| tokens()));
    }
    if let Some(tls) = &app.tls {
        let done = || Done::Changed("new connections use the new certificate".to_owned());
        note("tls", tls.reload().map(|()| done()));
    }
    match wanted(app) {
        Err(error) => note("policy-config", Err(error)),
        Ok(wanted) => {
            for (kind, choice) in PolicyKind::ALL.into_iter().zip(wanted) {
                if choice != app.reload.choices()[kind as usize] {
                    note(kind.name(), reconfigure(app, kind, choice, by.cloned()).await);
                }
            }
        }
    }
    if outcomes.is_empty() {
        // Whoever sent a signal looks for its effect here.
        match app.config.policy_config {
            Some(_) => tracing::info!("nothing in --policy-config has changed"),
            None => tracing::info!("there is nothing to reload"),
        }
    }
    outcomes
}

/// Tells the engine the tenants' terms, but not during a reload, which may have read newer ones. By then it is known which
/// models are served.
pub async fn tell_terms(app: &App) -> Result<(), EngineStopped> {
    let _turn = app.reload.turn.lock().await;
    let Ok(served) = app.served() else { return Ok(()) };
    app.tenants.warn_of_unserved(&served.names());
    served.engine.set_tenants(app.tenants.terms())
}

fn reload_tenants(app: &App) -> Result<String, String> {
    app.tenants.reload()?;
    if let Ok(served) = app.served() {
        app.tenants.warn_of_unserved(&served.names());
        served.engine.set_tenants(app.tenants.terms()).map_err(|e| e.to_string())?;
    }
    Ok(format!("{} keys", app.tenants.key_count()))
}

/// Reads the choices from the files.
fn wanted(app: &App) -> Result<Choices, String> {
    let mut wanted = app.reload.chosen.clone();
    if let Some(path) = &app.config.policy_config {
        let configs = read_policy_configs(path)?;
        for (kind, choice) in PolicyKind::ALL.iter().zip(&mut wanted) {
            choice.config = configs.get(kind.name()).map_or_else(|| "{}".to_owned(), Value::to_string);
        }
    }
    Ok(keep_rates(wanted, app.config.admission_chosen, &app.tenants))
}

async fn reconfigure(
    app: &App,
    kind: PolicyKind,
    choice: PolicyChoice,
    by: Option<By>,
) -> Result<Done, String> {
    let served = app.served().map_err(|e| e.message().to_owned())?;
    let done = served.policies.reconfigure(kind, choice.clone(), by).await;
    match done.map_err(|e| e.to_string())? {
        Reconfigured::Done(answer) => {
            app.reload.apply(kind, choice);
            let answer = *answer;
            let note = answer.state_note.map(|note| format!(": {note}")).unwrap_or_default();
            let not_saved = answer.not_saved.map(|why| format!("; not saved: {why}")).unwrap_or_default();
            let (to, state) = (answer.to, answer.state);
            let done = format!("`{to}` runs with its new configuration ({state} state{note}){not_saved}");
            Ok(Done::Changed(done))
        }
        Reconfigured::Stays { name } => {
            Ok(Done::Stays(format!("nothing changed, because an operator swapped in `{name}`")))
        }
    }
}
