//! What a request's head must say beyond what hyper checks: which host it is for, and a framing that this host undoes.
//!
//! hyper takes a body out of its chunks and leaves it compressed, so without this check a good body would be refused
//! for not being JSON. The syntax of heads is hyper's matter.

use hyper::header::{HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Version};

use super::ApiError;

/// Checks a head before anything is done about its request.
///
/// # Errors
/// 400 if it doesn't name one host (RFC 9112, section 3.2) or doubles the chunks (section 6.1), 501 for another
/// coding of the transfer than chunks (section 6.1). Each closes the connection.
pub fn check_head(head: &Parts) -> Result<(), ApiError> {
    check_host(head.version, &head.headers)?;
    check_transfer_encoding(&head.headers)
}

fn check_host(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    let malformed = |message| Err(ApiError::head("malformed_head", 400, message));
    match headers.get_all(HOST).iter().count() {
        0 if version > Version::HTTP_10 => {
            malformed("the request head has no `host` field, which HTTP/1.1 requires")
        }
        0 | 1 => Ok(()),
        _ => malformed("the request head has more than one `host` field"),
    }
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
