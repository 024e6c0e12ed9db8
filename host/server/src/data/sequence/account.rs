//! Records the end of a request in the log, in traces and in its tenant's counters: once, for any number of
//! sequences.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use infer_api::admin::AdminEvent;
use infer_core::{FinishReason, Micros, SequenceId};

use super::group::Totals;
use super::outcome::openai_reason;
use crate::app::{App, Served};
use crate::data::structured::Mask;
use crate::engine::RequestMeta;
use crate::http::{ApiError, Pace, RequestId};
use crate::otel;
use crate::tenants::Tenant;

/// A request that was submitted to the engine and hasn't ended.
pub struct Account {
    pub app: Arc<App>,
    pub request_id: RequestId,
    pub peer: SocketAddr,
    /// How its client reads.
    pub pace: Pace,
    pub path: &'static str,
    pub tenant: Arc<Tenant>,
    pub meta: Arc<RequestMeta>,
    /// When it was submitted.
    pub submitted: Micros,
    /// The engine's id of its first sequence, once the engine has taken it.
    pub id: Option<SequenceId>,
    /// The constraint on the first sequence's output.
    pub shape: Option<Arc<Mask>>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Close<'a> {
    /// Every sequence finished or was cancelled.
    Well,
    /// A sequence failed, and with it the request.
    Failed(&'a ApiError),
    /// A sequence was refused after it had waited. If another one had started by then, the request has failed.
    Refused { error: &'a ApiError, has_run: bool },
    /// Its client disconnected.
    Left,
}

impl Account {
    /// Records the end. `totals` are those up to the end.
    pub fn close(&self, how: Close<'_>, totals: &Totals) {
        let usage = &totals.usage;
        let error = match how {
            Close::Failed(error) | Close::Refused { error, .. } => Some(error.message()),
            Close::Well | Close::Left => None,
        };
        if let Ok(served) = self.app.served() {
            match how {
                Close::Failed(error) => self.publish_failure(served, error),
                Close::Refused { error, .. } => publish_refusal(served, &self.request_id, error),
                Close::Well | Close::Left => {}
            }
        }
        if let Close::Refused { has_run: false, .. } = how {
            self.tenant.usage.refused();
        } else {
            let cached = usage.prompt_tokens_details.cached_tokens;
            self.tenant.usage.ended(usage.prompt_tokens, cached, usage.completion_tokens, error.is_some());
        }
        if let Close::Refused { error, has_run: true } = how {
            self.app.recorder.failed(error.reason());
        }
        let e2e_ms = self.app.clock.now().since(self.submitted).0 as f64 / 1_000.0;
        let reasons = |name: fn(_) -> &'static str| match how {
            Close::Well => {
                let mut names: Vec<_> = totals.reasons.iter().map(|&reason| name(reason)).collect();
                names.sort_unstable();
                names.dedup();
                names.join(",")
            }
            Close::Failed(_) | Close::Refused { has_run: true, .. } => "error".to_owned(),
            Close::Refused { has_run: false, .. } => "refused".to_owned(),
            Close::Left => "left".to_owned(),
        };
        self.app.traces.ended(&otel::Ended {
            request_id: self.request_id.as_str(),
            traceparent: self.request_id.traceparent(),
            tracestate: self.request_id.tracestate(),
            path: self.path,
            tenant: &self.tenant.name,
            model: self.model(),
            e2e_ms,
            usage,
            timings: &totals.timings,
            finish_reason: &reasons(openai_reason),
            error,
        });
        self.log(&reasons(FinishReason::name), error, totals, e2e_ms);
    }

    /// The name that its response shows.
    fn model(&self) -> &str {
        let adapter = self.meta.adapter.as_deref();
        self.app.served().map_or("", |served| served.shown_name(&self.tenant, adapter))
    }

    /// Records a failure that the end of no sequence reports.
    pub fn fail(&self, error: &ApiError, totals: &Totals) {
        self.app.recorder.failed(error.reason());
        self.close(Close::Failed(error), totals);
    }

    /// Notifies consoles that the request has failed.
    fn publish_failure(&self, served: &Served, error: &ApiError) {
        // Only what the engine has taken can fail.
        let Some(id) = self.id else { return };
        served.engine.observer().publish(AdminEvent::Failure {
            id: id.0,
            request_id: self.request_id.as_str().to_owned(),
            code: error.reason().to_owned(),
            message: error.message().to_owned(),
        });
    }

    fn log(&self, reason: &str, error: Option<&str>, totals: &Totals, e2e_ms: f64) {
        let Totals { usage, timings, reasons } = totals;
        tracing::info!(
            request_id = self.request_id.as_str(),
            id = self.id.map(|id| id.0),
            peer = %self.peer,
            path = self.path,
            choices = reasons.len(),
            tenant = self.meta.tenant,
            key = self.tenant.key.as_deref(),
            user = self.meta.user,
            session = self.meta.session,
            metadata = json(&self.meta.metadata),
            adapter = self.meta.adapter.as_deref().map(|adapter| adapter.name()),
            reason,
            error,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.prompt_tokens_details.cached_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_ms = timings.ttft_ms,
            e2e_ms,
            mask_us = self.shape.as_ref().map(|mask| mask.mean_us()),
            mask_wait_us = self.shape.as_ref().map(|mask| mask.mean_wait_us()),
            "request ended"
        );
    }
}

/// A request that the engine has not taken yet. If it is dropped, its client has left, and nothing was used.
pub struct Entering {
    /// Taken when the engine has decided.
    account: Option<Account>,
    choices: usize,
}

impl Entering {
    /// Begins a submission of so many sequences.
    pub fn new(account: Account, choices: usize) -> Self {
        Self { account: Some(account), choices }
    }

    /// The engine has taken or refused the request.
    pub fn done(mut self) -> Account {
        self.account.take().expect("it is taken once")
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        if let Some(account) = self.account.take() {
            account.close(Close::Left, &Totals::before(self.choices, 0));
        }
    }
}

/// A field of the log has no parts, so a map is text: JSON, for programs that read it.
fn json(map: &BTreeMap<String, String>) -> String {
    serde_json::to_string(map).expect("texts can be written as JSON")
}

/// Notifies consoles of a refused request.
pub fn publish_refusal(served: &Served, request_id: &RequestId, error: &ApiError) {
    served.engine.observer().publish(AdminEvent::Refusal {
        request_id: request_id.as_str().to_owned(),
        reason: error.reason().to_owned(),
        message: error.message().to_owned(),
    });
}
