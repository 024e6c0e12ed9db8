//! Sends one trace per request to an OpenTelemetry collector: a span for the request, with spans for queue,
//! prefill and decode inside.
//!
//! The times are known when the request ends, so all spans are created then; a running request costs nothing.
//! Without the feature `otel`, everything here does nothing.

use std::time::{Duration, SystemTime};

use infer_api::usage::{Timings, Usage};

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// `x-request-id`.
    pub request_id: &'a str,
    /// The client's `traceparent`.
    pub traceparent: Option<&'a str>,
    /// The client's `tracestate`.
    pub tracestate: Option<&'a str>,
    /// The path, as the route table writes it.
    pub path: &'static str,
    /// The tenant's name.
    pub tenant: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// Time from submission to the end, in milliseconds.
    pub e2e_ms: f64,
    /// Prompt and output tokens.
    pub usage: &'a Usage,
    /// Times of the phases.
    pub timings: &'a Timings,
    /// OpenAI's finish reason; those of several choices are separated by commas.
    pub finish_reason: &'a str,
    /// The error, if it failed.
    pub error: Option<&'a str>,
}

/// Begin and end of a phase.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "used only for spans"))]
struct Phase {
    name: &'static str,
    from: SystemTime,
    to: SystemTime,
}

impl Ended<'_> {
    /// When the request began, and its phases in order.
    #[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "used only for spans"))]
    fn phases(&self, now: SystemTime) -> (SystemTime, Vec<Phase>) {
        let ms = |ms: f64| Duration::from_secs_f64((ms / 1e3).max(0.0));
        let began = now - ms(self.e2e_ms);
        let mut at = began;
        let mut phases = Vec::new();
        for (name, took) in [
            ("queue", self.timings.queue_ms),
            ("prefill", self.timings.prefill_ms),
            ("decode", self.timings.decode_ms),
        ] {
            let Some(took) = took else { break };
            let to = (at + ms(took)).min(now);
            phases.push(Phase { name, from: at, to });
            at = to;
        }
        (began, phases)
    }

    /// The name that OpenTelemetry's conventions for generative AI have for it.
    #[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "used only for spans"))]
    fn operation(&self) -> &'static str {
        match self.path {
            "/v1/completions" => "text_completion",
            "/v1/embeddings" => "embeddings",
            _ => "chat",
        }
    }
}

#[cfg(not(feature = "otel"))]
mod sink {
    /// Discards all traces.
    pub struct Traces;

    impl Traces {
        /// Does nothing.
        pub fn start(_endpoint: Option<&str>) -> Result<Self, String> {
            Ok(Self)
        }

        /// Does nothing.
        pub fn ended(&self, _request: &super::Ended<'_>) {}

        /// Does nothing.
        pub fn flush(&self) {}
    }
}

#[cfg(feature = "otel")]
mod sink {
    use std::time::SystemTime;

    use hyper::body::Bytes;
    use opentelemetry::trace::{
        Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer, TracerProvider,
    };
    use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
    use opentelemetry_http::{HttpClient, HttpError, Request, Response};
    use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

    /// Sends spans in batches. If the collector is slow, spans are dropped; requests never wait for it.
    pub struct Traces(Option<Sink>);

    struct Sink {
        provider: SdkTracerProvider,
        tracer: SdkTracer,
    }

    impl Traces {
        /// Sends traces to `endpoint`, if there is one. Must be called inside a tokio runtime.
        pub fn start(endpoint: Option<&str>) -> Result<Self, String> {
            let Some(endpoint) = endpoint else { return Ok(Self(None)) };
            let exporter = SpanExporter::builder()
                .with_http()
                .with_http_client(Client::new()?)
                .with_protocol(Protocol::HttpJson)
                .with_endpoint(format!("{endpoint}/v1/traces"))
                .build()
                .map_err(|e| e.to_string())?;
            let resource = Resource::builder()
                .with_service_name("infer")
                .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
                .build();
            let provider =
                SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
            let tracer = provider.tracer("infer");
            Ok(Self(Some(Sink { provider, tracer })))
        }

        /// Records a request that ended.
        pub fn ended(&self, request: &super::Ended<'_>) {
            let Some(Sink { tracer, .. }) = &self.0 else { return };
            let now = SystemTime::now();
            let (began, phases) = request.phases(now);
            let parent = match request.traceparent.and_then(|parent| remote(parent, request.tracestate)) {
                Some(remote) => Context::new().with_remote_span_context(remote),
                None => Context::new(),
            };
            let tokens = |n: u32| i64::from(n);
            let reasons = request.finish_reason.split(',').map(|reason| StringValue::from(reason.to_owned()));
            let reasons = Value::Array(Array::String(reasons.collect()));
            let attributes = vec![
                KeyValue::new("gen_ai.operation.name", request.operation()),
                KeyValue::new("url.path", request.path),
                KeyValue::new("gen_ai.request.model", request.model.to_owned()),
                KeyValue::new("gen_ai.usage.input_tokens", tokens(request.usage.prompt_tokens)),
                KeyValue::new("gen_ai.usage.output_tokens", tokens(request.usage.completion_tokens)),
                KeyValue::new("gen_ai.response.finish_reasons", reasons),
                KeyValue::new(
                    "infer.cached_tokens",
                    tokens(request.usage.prompt_tokens_details.cached_tokens),
                ),
                KeyValue::new("infer.request_id", request.request_id.to_owned()),
                KeyValue::new("infer.tenant", request.tenant.to_owned()),
            ];
            let mut span = tracer
                .span_builder("completion")
                .with_kind(SpanKind::Server)
                .with_start_time(began)
                .with_attributes(attributes)
                .start_with_context(tracer, &parent);
            if let Some(error) = request.error {
                span.set_status(Status::error(error.to_owned()));
            }
            let inside = parent.with_remote_span_context(span.span_context().clone());
            for phase in phases {
                let mut child = tracer
                    .span_builder(phase.name)
                    .with_start_time(phase.from)
                    .start_with_context(tracer, &inside);
                child.end_with_timestamp(phase.to);
            }
            span.end_with_timestamp(now);
        }

        /// Sends the remaining spans. Blocks.
        pub fn flush(&self) {
            if let Some(Sink { provider, .. }) = &self.0
                && let Err(error) = provider.force_flush()
            {
                tracing::warn!("can't send traces: {error}");
            }
        }
    }

    /// Parses `00-TRACE-SPAN-FLAGS` (W3C Trace Context, section 3.2) and the trace state (section 3.3), which
    /// is ignored if it is invalid.
    fn remote(header: &str, state: Option<&str>) -> Option<SpanContext> {
        let parts: Vec<&str> = header.split('-').collect();
        let [version, trace, span, flags, ..] = parts[..] else { return None };
        if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags.get(..2)?, 16).ok()?);
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let context = SpanContext::new(trace, span, flags, true, state);
        context.is_valid().then_some(context)
    }

    /// Sends requests on the host's runtime, because the exporter's own thread has none.
    #[derive(Debug)]
    struct Client {
        http: reqwest::Client,
        runtime: tokio::runtime::Handle,
    }

    impl Client {
        fn new() -> Result<Self, String> {
            let http = reqwest::Client::builder()
                .no_proxy()
                .timeout(std::time::Duration::from_secs(10))
                .build()
                .map_err(|e| e.to_string())?;
            Ok(Self { http, runtime: tokio::runtime::Handle::current() })
        }
    }

    impl HttpClient for Client {
        fn send_bytes<'a, 'f>(
            &'a self,
            request: Request<Bytes>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
        where
            'a: 'f,
            Self: 'f,
        {
            let http = self.http.clone();
            let sent = self.runtime.spawn(async move {
                let (head, body) = request.into_parts();
                let answer = http
                    .request(head.method, head.uri.to_string())
                    .headers(head.headers)
                    .body(body)
                    .send()
                    .await?;
                let status = answer.status();
                let mut response = Response::new(answer.bytes().await?);
                *response.status_mut() = status;
                Ok::<_, reqwest::Error>(response)
            });
            Box::pin(async move { Ok(sent.await??) })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn valid_trace_of_the_client_is_continued_and_an_invalid_one_ignored() {
            let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
            let context = remote(header, Some("vendor=1,other=x")).unwrap();
            assert_eq!(context.trace_state().header(), "vendor=1,other=x");
            assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
            assert!(context.is_sampled());
            let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
            for odd in ["", "00", "00-x-y-01", &header[..40], zeros.as_str(), "ff-4bf9-00f0-01"] {
                assert!(remote(odd, None).is_none(), "{odd}");
            }
            assert_eq!(remote(header, Some("nonsense")).unwrap().trace_state().header(), "");
        }
    }
}

pub use sink::Traces;
