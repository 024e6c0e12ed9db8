//! Which addresses of an admin plane are accepted. Whether a host listens there is not looked up here.

use reqwest::Url;

use super::ConnError;

/// Reads `http://HOST:PORT`, or `HOST:PORT`, with or without a path before the endpoints' own.
pub(super) fn parse_address(address: &str) -> Result<Url, ConnError> {
    let wrong =
        |message: &str| ConnError::Address { address: address.to_owned(), message: message.to_owned() };
    let trimmed = address.trim();
    let full = if trimmed.contains("://") { trimmed.to_owned() } else { format!("http://{trimmed}") };
    let mut url = Url::parse(&full).map_err(|error| wrong(&format!("{error}; expected http://HOST:PORT")))?;
    if url.scheme() != "http" {
        return Err(wrong("only http:// is supported; use a tunnel for encryption, for example `ssh -L`"));
    }
    if !url.has_host() {
        return Err(wrong("expected http://HOST:PORT"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    url.set_query(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_omit_the_scheme_and_must_be_plain_http() {
        let parse = |address| parse_address(address).map(|url| url.to_string());
        assert_eq!(parse("127.0.0.1:8001").unwrap(), "http://127.0.0.1:8001/");
        assert_eq!(parse("http://host:1/").unwrap(), "http://host:1/");
        assert_eq!(parse("http://host:1/prefix").unwrap(), "http://host:1/prefix/");
        for wrong in ["https://host:1", "", "http://", "http://host:99999"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.is_usage(), "{wrong}: {error}");
            assert!(error.to_string().contains("--admin"), "{error}");
        }
    }
}
