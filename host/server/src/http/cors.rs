//! Cross-origin requests (CORS, in the Fetch standard): which web pages may use the data plane.
//!
//! A browser shows a page the response of another origin only if the response allows it. Before it sends JSON
//! or an API key, it asks with a request of its own, the preflight. Other requests of pages that aren't listed are
//! refused, except on paths that need no key.
//!
//! A host for its own machine alone also refuses pages that give it a name of theirs (DNS rebinding: their server's
//! name suddenly means 127.0.0.1, so to the browser nothing is cross-origin). Only requests with an origin show it;
//! browsers leave it out when a page reads from its own server.
//!
//! None of this keeps other programs out: they send whatever origin they like, or none.

use std::net::Ipv4Addr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};

use super::{Answer, ApiError, full};

/// Headers that pages may read, besides those that they always may.
const EXPOSED: &str = "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry";
/// Seconds for which a browser may reuse the response to a preflight.
const MAX_AGE_S: &str = "600";

/// The origins whose pages may use the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// All.
    Any,
    /// These, as browsers send them.
    Listed(Vec<HeaderValue>),
}

impl AllowedOrigins {
    /// Parses `*`, or origins separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "*" => Ok(Self::Any),
            list => {
                list.split(',').map(|text| origin(text.trim())).collect::<Result<_, _>>().map(Self::Listed)
            }
        }
    }

    /// Whether a request is a preflight.
    pub fn is_preflight(head: &Parts) -> bool {
        head.method == Method::OPTIONS
            && head.headers.contains_key(ORIGIN)
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Refuses a request of a page that isn't allowed. A browser sends some without a preflight and hides only
    /// the response, but the work would be done. A page of this host itself is allowed.
    ///
    /// # Errors
    /// 403 for an origin that isn't allowed.
    pub fn check(&self, request: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = request.get(ORIGIN).map(HeaderValue::as_bytes) else { return Ok(()) };
        if own_name(request).is_some() || self.allowed(request).is_some() {
            return Ok(());
        }
        Err(refused(origin, "may not use this host"))
    }

    /// Refuses a request of a page that reached a host for this machine alone by a name that means this machine only
    /// to that page's browser. `own` is the name or address at which the host listens.
    ///
    /// # Errors
    /// 403 for a page of such a name, unless `listed` has its origin.
    pub fn check_name(listed: Option<&Self>, own: &str, request: &HeaderMap) -> Result<(), ApiError> {
        let (Some(name), Some(origin)) = (own_name(request), request.get(ORIGIN)) else { return Ok(()) };
        if means_this_machine(name, own) || listed.is_some_and(|listed| listed.allowed(request).is_some()) {
            return Ok(());
        }
        Err(refused(origin.as_bytes(), "may not use this host, which is for its own machine, by that name"))
    }

    /// Responds to a preflight for a path that accepts `method`, with any headers.
    ///
    /// # Errors
    /// 403 for an origin that isn't allowed.
    pub fn preflight(&self, method: &'static str, request: &HeaderMap) -> Result<Answer, ApiError> {
        self.check(request)?;
        let mut answer = Response::new(full(""));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(method));
        if let Some(names) = request.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_S));
        Ok(answer)
    }

    /// Adds the headers that let an allowed page read the response.
    pub fn mark(&self, request: &HeaderMap, answer: &mut Answer) {
        let headers = answer.headers_mut();
        if matches!(self, Self::Listed(_)) {
            // Without it, a cache could give one page the response that names another.
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(allowed) = self.allowed(request) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }

    /// The value of `access-control-allow-origin` for a request.
    fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::Listed(all) => request.get(ORIGIN).filter(|origin| all.contains(origin)).cloned(),
        }
    }
}

/// The host's name, with any port, in a request of a page whose origin has the same one.
fn own_name(request: &HeaderMap) -> Option<&str> {
    let origin = request.get(ORIGIN)?.to_str().ok()?;
    let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))?;
    (request.get(HOST)?.as_bytes() == name.as_bytes()).then_some(name)
}

/// Whether a name of a URL, with any port, is an address, or a name that means the machine that asks, or `own`.
fn means_this_machine(name: &str, own: &str) -> bool {
    let host = match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => name,
    };
    host.starts_with('[')
        || host.parse::<Ipv4Addr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
        || host.eq_ignore_ascii_case(own)
}

fn refused(origin: &[u8], why: &str) -> ApiError {
    let shown: String = String::from_utf8_lossy(origin).chars().take(128).collect();
    let message = format!("pages of `{shown}` {why} (--allowed-origins)");
    ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message)
}

/// Parses one origin. Schemes other than http are those of apps and browser extensions.
fn origin(text: &str) -> Result<HeaderValue, String> {
    let wrong = || {
        format!(
            "`{text}` is not an origin as browsers send it, SCHEME://HOST or SCHEME://HOST:PORT (without the \
             scheme's own port); `*` alone allows any"
        )
    };
    let text = text.strip_suffix('/').unwrap_or(text).to_ascii_lowercase();
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*".contains(&byte))
    };
    let own_port = [("http", ":80"), ("https", ":443")];
    let has_own_port = own_port.iter().any(|(of, port)| scheme == *of && host.ends_with(port));
    if !plain(scheme) || !plain(host) || has_own_port {
        return Err(wrong());
    }
    HeaderValue::from_str(&text).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_that_browsers_send() {
        let listed = |text: &str| match AllowedOrigins::parse(text).unwrap() {
            AllowedOrigins::Any => vec!["*".to_owned()],
            AllowedOrigins::Listed(all) => all.iter().map(|o| o.to_str().unwrap().to_owned()).collect(),
        };
        assert_eq!(listed("*"), ["*"]);
        assert_eq!(
            listed("https://Example.org/, http://localhost:3000,app://obsidian.md,http://[::1]:5"),
            ["https://example.org", "http://localhost:3000", "app://obsidian.md", "http://[::1]:5"]
        );
        for wrong in [
            "",
            "example.org",
            "https://example.org/path",
            "https://*.example.org",
            "https://example.org:443",
            "https://me@example.org",
            "https://a.org,",
            "https://a.org,*",
            "null",
            "https://",
        ] {
            let error = AllowedOrigins::parse(wrong).unwrap_err();
            assert!(error.contains("SCHEME://HOST"), "{wrong}: {error}");
        }
    }
    #[test]
    fn names_that_mean_this_machine_are_known() {
        for name in
            ["localhost:8000", "localhost", "127.0.0.1:8000", "[::1]:8000", "[::1]", "a.localhost", "gpu:1"]
        {
            assert!(means_this_machine(name, "gpu"), "{name}");
        }
        for name in ["evil.example:8000", "localhost.evil.example", "gpu.evil", "127.0.0.1.evil", "x"] {
            assert!(!means_this_machine(name, "gpu"), "{name}");
        }
    }
}
