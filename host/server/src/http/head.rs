//! What a request's head must say beyond what hyper checks: which host it is for, and a framing that this host undoes.
//!
//! hyper takes a body out of its chunks and leaves it compressed, so without this check a good body would be refused
//! for not being JSON. The syntax of heads is hyper's matter.

use std::net::Ipv6Addr;

use hyper::header::{HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Version};

use super::ApiError;

/// Checks a head before anything is done about its request.
///
/// # Errors
/// 400 if it doesn't name one valid host (RFC 9112, section 3.2) or doubles the chunks (section 6.1), 501 for another
/// coding of the transfer than chunks (section 6.1). Each closes the connection.
pub fn check_head(head: &Parts) -> Result<(), ApiError> {
    check_host(head.version, &head.headers)?;
    check_transfer_encoding(&head.headers)
}

fn check_host(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    let malformed = |message| Err(ApiError::head("malformed_head", 400, message));
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if version > Version::HTTP_10 => {
            malformed("the request head has no `host` field, which HTTP/1.1 requires")
        }
        (Some(_), Some(_)) => malformed("the request head has more than one `host` field"),
        (Some(host), None) if !host.to_str().is_ok_and(is_host) => malformed(
            "the request head has a `host` field that is no host; it has a name or an address, and at most a port",
        ),
        _ => Ok(()),
    }
}

/// Whether it is `uri-host [ ":" port ]` (RFC 9110, section 7.2); empty where the target has no host.
fn is_host(text: &str) -> bool {
    let after = match text.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((address, after)) if is_address(address) => after,
            _ => return false,
        },
        None => {
            let (name, after) = text.split_at(text.find(':').unwrap_or(text.len()));
            if !is_name(name) {
                return false;
            }
            after
        }
    };
    let port = after.strip_prefix(':').unwrap_or_default();
    (after.is_empty() || after.starts_with(':')) && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// What stands in brackets (RFC 3986, section 3.2.2). Some clients leave an address its zone (RFC 6874).
fn is_address(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "zone"));
    if address.parse::<Ipv6Addr>().is_ok() {
        return !zone.is_empty() && is_name(zone);
    }
    // An address of a later version.
    let Some((version, address)) = text.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let is_hex = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex && !address.is_empty() && address.bytes().all(|byte| is_plain(byte) || byte == b':')
}

/// Whether it is a registered name (RFC 3986, section 3.2.2). An IPv4 address looks like one, too.
fn is_name(text: &str) -> bool {
    let mut parts = text.split('%');
    let is_encoded = |part: &[u8]| part.len() >= 2 && part[..2].iter().all(u8::is_ascii_hexdigit);
    let all_plain = |part: &[u8]| part.iter().copied().all(is_plain);
    parts.next().is_some_and(|first| all_plain(first.as_bytes()))
        && parts.map(str::as_bytes).all(|part| is_encoded(part) && all_plain(part))
}

/// `unreserved` and `sub-delims` (RFC 3986, section 2).
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut chunked = false;
    for list in headers.get_all(TRANSFER_ENCODING) {
        let list = String::from_utf8_lossy(list.as_bytes());
        for coding in list.split(',').map(str::trim).filter(|coding| !coding.is_empty()) {
            if !coding.eq_ignore_ascii_case("chunked") {
                let shown: String = coding.chars().take(64).collect();
                let message = format!(
                    "transfer-encoding `{shown}` is not supported; send the body as it is, in chunks at most"
                );
                return Err(ApiError::head("unsupported_transfer_encoding", 501, &message).for_good());
            }
            if chunked {
                let message = "transfer-encoding: `chunked` is given more than once";
                return Err(ApiError::head("malformed_head", 400, message));
            }
            chunked = true;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    /// What is said about a head with these fields.
    fn said(version: Version, fields: &[(&str, &str)]) -> Result<(), (u16, String)> {
        let mut request = Request::post("/v1/completions").version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        check_head(&head).map_err(|error| (error.status().as_u16(), error.message().to_owned()))
    }

    #[test]
    fn head_names_one_host() {
        let said = |version, names: &[&str]| {
            let fields: Vec<_> = names.iter().map(|name| ("host", *name)).collect();
            said(version, &fields).map_err(|(status, message)| {
                assert_eq!(status, 400, "{message}");
                message
            })
        };
        for (version, names) in
            [(Version::HTTP_11, &["a"][..]), (Version::HTTP_11, &[""]), (Version::HTTP_10, &[])]
        {
            assert_eq!(said(version, names), Ok(()), "{version:?} {names:?}");
        }
        for host in [
            "localhost:8000",
            "127.0.0.1",
            "127.0.0.1:",
            "[::1]:8000",
            "[::1]",
            "[fe80::1%25eth0]",
            "[v1.a:b]",
            "example.com.",
            "my_host.local:80",
            "EXAMPLE.com",
            "a%20b",
            ":8000",
        ] {
            assert_eq!(said(Version::HTTP_11, &[host]), Ok(()), "{host}");
        }
        for host in [
            "a b/c@d",
            "a b",
            "a/b",
            "user@a",
            "user:word@a",
            "a:80:80",
            "a:http",
            "a:-1",
            "a%2",
            "a%zz",
            "a,b:c",
            "::1",
            "[::1",
            "[::1]8000",
            "[::1]:x",
            "[a]",
            "[]",
            "[::1%]",
            "[v.a]",
            "[v1.]",
            "a]",
            "a?b",
            "a#b",
            "http://a",
        ] {
            for version in [Version::HTTP_10, Version::HTTP_11] {
                assert!(said(version, &[host]).unwrap_err().contains("no host"), "{host}");
            }
        }
        assert!(said(Version::HTTP_11, &[]).unwrap_err().contains("no `host`"));
        for version in [Version::HTTP_10, Version::HTTP_11] {
            assert!(said(version, &["a", "a"]).unwrap_err().contains("more than one `host`"));
        }
    }

    #[test]
    fn codings_of_the_transfer_but_chunks_are_refused_by_name() {
        let said = |lists: &[&str]| {
            let coded = lists.iter().map(|list| ("transfer-encoding", *list));
            said(Version::HTTP_11, &[("host", "a")].into_iter().chain(coded).collect::<Vec<_>>())
        };
        for lists in [&["chunked"][..], &["Chunked"], &[", chunked"], &[]] {
            assert_eq!(said(lists), Ok(()), "{lists:?}");
        }
        for (lists, coding) in [
            (&["gzip, chunked"][..], "`gzip`"),
            (&["gzip", "chunked"], "`gzip`"),
            (&["x;q=\"1\", chunked"], "`x;q=\"1\"`"),
            (&["identity"], "`identity`"),
        ] {
            let (status, message) = said(lists).unwrap_err();
            assert_eq!(status, 501, "{message}");
            assert!(message.starts_with("transfer-encoding ") && message.contains(coding), "{message}");
        }
        for lists in [&["chunked, chunked"][..], &["chunked", "chunked"]] {
            let (status, message) = said(lists).unwrap_err();
            assert!(status == 400 && message.contains("more than once"), "{message}");
        }
    }
}
