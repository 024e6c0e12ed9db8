//! What can be read again while the host runs: tenants, certificate, policy configurations.
//!
//! Each on its own: where one is wrong, it stays as it was, the log says why, and the others are taken.
//! What needs a restart (addresses, model, sizes) is deliberately not here.

use std::sync::{Mutex, PoisonError};

use infer_core::policy::PolicyKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::config::{Config, PolicyChoice, read_policy_configs};
use crate::policies::{Choices, Reconfigured};
use crate::tenants::Tenants;

/// The admission policy that keeps tenants' rates.
const RATE_KEEPER: &str = "token-bucket";

/// What came of reading something again.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// `api-keys`, `tls`, or a policy slot.
    pub what: &'static str,
    /// What changed, in words.
    pub done: String,
    /// Why it stays as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The choice of policies that is in force as far as files say.
pub struct Reload {
    chosen: Choices,
    applied: Mutex<Choices>,
    /// One reload at a time, or what an older file says could replace what a newer one does.
    turn: tokio::sync::Mutex<()>,
}

impl Reload {
    /// At the start.
    pub fn new(config: &Config, tenants: &Tenants) -> Self {
        let chosen = PolicyKind::ALL.map(|kind| config.policy(kind).clone());
        let applied = keep_rates(chosen.clone(), config.admission_chosen, tenants);
        Self { chosen, applied: Mutex::new(applied), turn: tokio::sync::Mutex::default() }
    }

    /// What is chosen now.
    pub fn choices(&self) -> Choices {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn apply(&self, kind: PolicyKind, choice: PolicyChoice) {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize] = choice;
    }
}

/// Rates are kept by a policy: where nobody chose admission policies, the one that keeps them joins.
fn keep_rates(mut choices: Choices, admission_chosen: bool, tenants: &Tenants) -> Choices {
    let admission = &mut choices[PolicyKind::Admission as usize];
    if !tenants.has_rates() || admission.name.contains(RATE_KEEPER) {
        return choices;
    }
    if admission_chosen {
        tracing::warn!(
            "tenants have rates, but `{}` may not keep them; `{RATE_KEEPER}` does",
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

/// Reads everything again, and logs what came of it.
pub async fn reload(app: &App) -> Vec<Outcome> {
    let _turn = app.reload.turn.lock().await;
    let mut outcomes = Vec::new();
    let mut note = |what, done: Result<String, String>| {
        let (done, error) = match done {
            Ok(done) => (done, None),
            Err(error) => ("it stays as it was".to_owned(), Some(error)),
        };
        match &error {
            None => tracing::info!("reloaded {what}: {done}"),
            Some(error) => tracing::error!("can't reload {what}, {done}: {error}"),
        }
        outcomes.push(Outcome { what, done, error });
    };
    if app.config.api_keys.is_some() {
        note("api-keys", reload_tenants(app));
    }
    if let Some(tls) = &app.tls {
        note("tls", tls.reload().map(|()| "new connections get the certificate".to_owned()));
    }
    match wanted(app) {
        Err(error) => note("policy-config", Err(error)),
        Ok(wanted) => {
            for (kind, choice) in PolicyKind::ALL.into_iter().zip(wanted) {
                if choice != app.reload.choices()[kind as usize] {
                    note(kind.name(), reconfigure(app, kind, choice).await);
                }
            }
        }
    }
    outcomes
}

fn reload_tenants(app: &App) -> Result<String, String> {
    app.tenants.reload()?;
    if let Ok(served) = app.served() {
        served.engine.set_tenants(app.tenants.terms()).map_err(|e| e.to_string())?;
    }
    Ok(format!("{} keys", app.tenants.key_count()))
}

/// The choices as the files say them now.
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

async fn reconfigure(app: &App, kind: PolicyKind, choice: PolicyChoice) -> Result<String, String> {
    let served = app.served().map_err(|e| e.message().to_owned())?;
    let done = served.policies.reconfigure(kind, choice.clone()).await;
    match done.map_err(|e| e.to_string())? {
        Reconfigured::Done(answer) => {
            app.reload.apply(kind, choice);
            Ok(format!("{} has its new configuration ({} state)", answer.to, answer.state))
        }
        Reconfigured::Stays { name } => Ok(format!("`{name}` was swapped in by hand and stays")),
    }
}
