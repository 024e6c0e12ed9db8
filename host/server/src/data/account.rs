//! What a request is in the log, in traces and in its tenant's counters: one entry, however many sequences it had.

use std::sync::Arc;

use infer_api::admin::AdminEvent;
use infer_core::{Micros, SequenceId};

use super::group::Totals;
use super::outcome::{openai_reason, reason_name};
use super::structured::Mask;
use crate::app::{App, Served};
use crate::engine::RequestMeta;
use crate::http::{ApiError, RequestId};
use crate::otel;
use crate::tenants::Tenant;

/// A request that was taken, until it has ended.
pub struct Account {
    pub app: Arc<App>,
    pub request_id: RequestId,
    pub tenant: Arc<Tenant>,
    pub meta: RequestMeta,
    /// When it was handed to the engine.
    pub submitted: Micros,
    /// The engine's name for its first sequence.
    pub id: SequenceId,
    /// What the first one's output must be.
    pub shape: Option<Arc<Mask>>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub enum Close<'a> {
    /// Every sequence said what it had to say, or was cancelled.
    Well,
    /// One failed, and with it the request.
    Failed(&'a ApiError),
    /// It was turned away after it had waited.
    Refused(&'a ApiError),
    /// Its client went away.
    Left,
}

impl Account {
    /// Enters the end. `totals` are of what there was until then.
    pub fn close(&self, how: Close<'_>, totals: &Totals) {
        let usage = &totals.usage;
        let error = match how {
            Close::Failed(error) | Close::Refused(error) => Some(error.message()),
            Close::Well | Close::Left => None,
        };
        if let (Close::Refused(error), Ok(served)) = (how, self.app.served()) {
            self.tenant.usage.refused();
            tell_of_refusal(served, &self.request_id, error);
        } else {
            let cached = usage.prompt_tokens_details.cached_tokens;
            self.tenant.usage.ended(usage.prompt_tokens, cached, usage.completion_tokens, error.is_some());
        }
        let e2e_ms = self.app.clock.now().since(self.submitted).0 as f64 / 1_000.0;
        let reasons = |name: fn(_) -> &'static str| match how {
            Close::Well => {
                let mut names: Vec<_> = totals.reasons.iter().map(|&reason| name(reason)).collect();
                names.sort_unstable();
                names.dedup();
                names.join(",")
            }
            Close::Failed(_) | Close::Refused(_) => "error".to_owned(),
            Close::Left => "left".to_owned(),
        };
        self.app.traces.ended(&otel::Ended {
            request_id: self.request_id.as_str(),
            traceparent: self.request_id.traceparent(),
            tracestate: self.request_id.tracestate(),
            tenant: &self.tenant.name,
            model: self.app.served().map_or("", |served| &served.model_names[0]),
            e2e_ms,
            usage,
            timings: &totals.timings,
            finish_reason: &reasons(openai_reason),
            error,
        });
        self.log(&reasons(reason_name), error, totals, e2e_ms);
    }

    fn log(&self, reason: &str, error: Option<&str>, totals: &Totals, e2e_ms: f64) {
        let Totals { usage, timings, reasons } = totals;
        tracing::info!(
            request_id = self.request_id.as_str(),
            id = self.id.0,
            choices = reasons.len(),
            tenant = self.meta.tenant,
            user = self.meta.user,
            session = self.meta.session,
            metadata = ?self.meta.metadata,
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

/// Lets consoles know that a request was turned away.
pub fn tell_of_refusal(served: &Served, request_id: &RequestId, error: &ApiError) {
    served.engine.observer().publish(AdminEvent::Refusal {
        request_id: request_id.as_str().to_owned(),
        reason: error.reason().to_owned(),
        message: error.message().to_owned(),
    });
}
