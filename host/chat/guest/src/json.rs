//! The filter `tojson`: JSON as Python writes it.

use minijinja::ErrorKind;
use minijinja::value::{Kwargs, Value, ValueKind};

/// minijinja's own filter also escapes what HTML minds, which models have never seen; in JSON these escapes can
/// stand nowhere but in strings.
pub(crate) fn to_json(
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, minijinja::Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    // Python options without meaning here: text is never ASCII-escaped, keys keep their order.
    let _: (Option<Value>, Option<Value>, Option<Value>) =
        (options.get("ensure_ascii")?, options.get("separators")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    if value.kind() == ValueKind::Undefined {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "an undefined value has no JSON"));
    }
    let escaped = minijinja::filters::tojson(value, indent, Kwargs::from_iter(Vec::<(&str, Value)>::new()))?;
    Ok(Value::from_safe_string(unescape_html(&escaped.to_string())))
}

fn unescape_html(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let escape = &rest[at..];
        let (text, length) = match escape.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // Two characters at once, so that an escaped backslash can't start another escape.
            _ => (&escape[..2.min(escape.len())], 2.min(escape.len())),
        };
        plain.push_str(text);
        rest = &escape[length..];
    }
    plain + rest
}
