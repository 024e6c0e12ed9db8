//! The tenants file: TOML, one table per tenant.
//!
//! ```toml
//! [tenants.alice]
//! keys = ["sha256:..."]        # from `infer keys new`; list two while one replaces the other
//! models = ["demo", "sql"]     # names of models that it may use; all by default
//! weight = 2                   # share relative to other tenants; default 1
//! tokens-per-minute = 60000    # prompt and output tokens; unlimited by default
//! burst = 10000                # tokens at once; default: those of a minute
//! requests-per-minute = 100    # and as many at once; unlimited by default
//! max-priority = 0             # higher priorities are lowered to this; unlimited by default
//! output-hints = false         # whether its clients may say how long outputs will be; true by default
//! ```
//! Errors name the line and the key. The file holds nothing else, so it can belong to the person who hands
//! out keys.

use std::collections::BTreeMap;
use std::path::Path;

use infer_core::TenantTerms;
use toml::de::DeValue;

use super::key::KeyDigest;
use super::models::ModelList;
use crate::config::{Document, Entry, read_text};

/// Most tenants of a file.
pub const MAX_TENANTS: usize = 1_024;
/// Most keys of a file. Every request is compared with all of them.
pub const MAX_KEYS: usize = 1_024;
/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 64;
const KEYS: [&str; 8] = [
    "keys",
    "models",
    "weight",
    "tokens-per-minute",
    "burst",
    "requests-per-minute",
    "max-priority",
    "output-hints",
];

/// A tenant as configured in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// For logs, metrics and the console.
    pub name: String,
    /// Digests of its keys.
    pub keys: Vec<KeyDigest>,
    /// The models that it may use.
    pub models: ModelList,
    /// What policies see of the tenant.
    pub terms: TenantTerms,
    /// Requests that it may send a minute; 0 for no limit.
    pub requests_per_minute: u32,
    /// Upper limit on the priority of its requests.
    pub max_priority: i32,
    /// Whether what its clients say of the length of outputs counts.
    pub output_hints: bool,
}

/// Reads the tenants file.
pub fn read(path: &Path) -> Result<Vec<Grant>, String> {
    let shown = path.display();
    let text = read_text(path).map_err(|e| format!("can't read {shown}: {e}"))?;
    grants(&shown.to_string(), &text)
}

/// Parses a file's text. `shown` names the file in errors.
pub fn grants(shown: &str, text: &str) -> Result<Vec<Grant>, String> {
    let document = Document::parse(shown, text)?;
    let mut all = Vec::new();
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for top in document.entries() {
        if top.key != "tenants" {
            return Err(document.wrong(&top, format!("unknown key{}", document.near(&top.key, &["tenants"]))));
        }
        for entry in document.table(&top)? {
            let grant = grant(&document, &entry)?;
            for key in &grant.keys {
                if let Some(other) = owners.insert(key.to_string(), grant.name.clone()) {
                    let message = format!("the key {key} already belongs to `{other}`");
                    return Err(document.wrong(&entry, message));
                }
            }
            all.push(grant);
        }
    }
    if all.len() > MAX_TENANTS || owners.len() > MAX_KEYS {
        let (tenants, keys) = (all.len(), owners.len());
        return Err(format!(
            "{shown}: {tenants} tenants with {keys} keys; the limits are {MAX_TENANTS} and {MAX_KEYS}"
        ));
    }
    Ok(all)
}

/// Checks a tenant's name.
pub fn check_name(name: &str) -> Result<(), String> {
    check_form("a tenant's name", name)?;
    if ["default", "other"].contains(&name) {
        return Err(format!("`{name}` is reserved for metrics; choose another name"));
    }
    Ok(())
}

/// Checks the form of a name; an error calls it `what`.
pub(crate) fn check_form(what: &str, name: &str) -> Result<(), String> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
    if !fits || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Err(format!(
            "{what} must have 1 to {MAX_NAME_BYTES} letters, digits, dots, dashes or underscores"
        ));
    }
    Ok(())
}

fn grant(document: &Document<'_>, entry: &Entry<'_>) -> Result<Grant, String> {
    check_name(&entry.key).map_err(|wrong| document.wrong(entry, wrong))?;
    let mut grant = Grant {
        name: entry.key.clone(),
        keys: Vec::new(),
        models: ModelList::default(),
        terms: TenantTerms::default(),
        requests_per_minute: 0,
        max_priority: i32::MAX,
        output_hints: true,
    };
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for field in document.table(entry)? {
        let wrong = |message: String| document.wrong(&field, message);
        let name = field.key.replace('_', "-");
        // TOML refuses a key that is there twice, but not with dashes and with underscores.
        if let Some(other) = seen.insert(name.clone(), field.key.clone()) {
            return Err(wrong(format!("the tenant has this already, as `{other}`; keep one of the two")));
        }
        match name.as_str() {
            "keys" => grant.keys = digests(document, &field)?,
            "models" => {
                let names = field.texts().ok_or_else(|| wrong("expected a list of names".to_owned()))?;
                grant.models = ModelList::of(names).map_err(wrong)?;
            }
            "weight" => {
                let weight = weight_of(field.number()).map_err(wrong)?;
                grant.terms.weight_permille = (weight * 1_000.0).round() as u32;
            }
            "tokens-per-minute" => grant.terms.rate_per_minute = whole(&field, 1, u32::MAX).map_err(wrong)?,
            "burst" => grant.terms.burst = whole(&field, 1, u32::MAX).map_err(wrong)?,
            "requests-per-minute" => grant.requests_per_minute = whole(&field, 1, u32::MAX).map_err(wrong)?,
            "max-priority" => grant.max_priority = whole(&field, i32::MIN, i32::MAX).map_err(wrong)?,
            "output-hints" => grant.output_hints = flag(&field).map_err(wrong)?,
            other => return Err(wrong(format!("unknown key{}", document.near(other, &KEYS)))),
        }
    }
    if grant.terms.burst > 0 && grant.terms.rate_per_minute == 0 {
        let message = "`burst` needs `tokens-per-minute`, the rate at which it refills".to_owned();
        return Err(document.wrong(entry, message));
    }
    Ok(grant)
}

/// Reads a list of digests.
pub(crate) fn digests(document: &Document<'_>, field: &Entry<'_>) -> Result<Vec<KeyDigest>, String> {
    let expected = || document.wrong(field, "expected a list of digests, `[\"sha256:...\"]`");
    let list = field.value().as_array().ok_or_else(expected)?;
    list.iter()
        .map(|item| {
            let DeValue::String(text) = item.get_ref() else { return Err(expected()) };
            KeyDigest::parse(text).map_err(|wrong| document.wrong_at(item.span(), &field.path, &wrong))
        })
        .collect()
}

fn flag(field: &Entry<'_>) -> Result<bool, String> {
    field.value().as_bool().ok_or_else(|| "expected true or false".to_owned())
}

fn whole<T>(field: &Entry<'_>, min: T, max: T) -> Result<T, String>
where
    T: TryFrom<i64> + PartialOrd + Copy + std::fmt::Display,
{
    let value = field.integer().and_then(|n| T::try_from(n).ok()).filter(|n| (min..=max).contains(n));
    value.ok_or_else(|| format!("expected a whole number from {min} to {max}"))
}

/// A weight, if it is in range.
pub fn weight_of(number: Option<f64>) -> Result<f64, String> {
    let weight = number.filter(|weight| (0.001..=1_000.0).contains(weight));
    weight.ok_or_else(|| "expected a number from 0.001 to 1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_limits_are_read_with_their_defaults() {
        let digest = KeyDigest::of("k");
        let text = format!(
            "[tenants.alice]\nkeys = [\"{digest}\"]\nweight = 2.5\ntokens_per_minute = 600\nburst = 50\n\
             max-priority = -1\nrequests_per_minute = 30\nmodels = [\"demo\", \"org/sql\"]\noutput-hints = false\n\n\
             [tenants.bob]\n"
        );
        let all = grants("f", &text).unwrap();
        assert_eq!((all[0].name.as_str(), &all[0].keys[..]), ("alice", &[digest][..]));
        let terms = TenantTerms { weight_permille: 2_500, rate_per_minute: 600, burst: 50 };
        assert_eq!((all[0].terms, all[0].max_priority), (terms, -1));
        assert_eq!((all[0].requests_per_minute, all[1].requests_per_minute), (30, 0));
        let models = ["demo", "org/sql"].map(str::to_owned);
        assert_eq!(all[0].models, ModelList::of(models.to_vec()).unwrap());
        assert_eq!(all[1].models, ModelList::default());
        assert_eq!((all[1].terms, all[1].max_priority), (TenantTerms::default(), i32::MAX));
        assert_eq!([all[0].output_hints, all[1].output_hints], [false, true]);
    }

    #[test]
    fn errors_name_line_and_key() {
        let digest = KeyDigest::of("k");
        let twice = format!("[tenants.a]\nkeys=[\"{digest}\"]\n[tenants.b]\nkeys=[\"{digest}\"]");
        let cases = [
            ("[tenants.a]\nwieght = 2", "f:2: tenants.a.wieght: unknown key; did you mean `weight`?"),
            ("[tenant.a]", "f:1: tenant: unknown key; did you mean `tenants`?"),
            ("\n[tenants.a]\nweight = -1", "f:3: tenants.a.weight: expected a number"),
            (
                "[tenants.a]\nrequests-per-minute = 0",
                "f:2: tenants.a.requests-per-minute: expected a whole number from 1",
            ),
            ("[tenants.a]\nmodels = \"demo\"", "f:2: tenants.a.models: expected a list of names"),
            ("[tenants.a]\nmodels = [1]", "f:2: tenants.a.models: expected a list of names"),
            ("[tenants.a]\nmodels = []", "f:2: tenants.a.models: expected at least one model"),
            ("[tenants.a]\nburst = 5", "f:1: tenants.a: `burst` needs `tokens-per-minute`"),
            (
                "[tenants.a]\nmax-priority = 1\nmax_priority = 2",
                "f:3: tenants.a.max_priority: the tenant has this already, as `max-priority`",
            ),
            (
                "[tenants.a]\nmax-priority = 5000000000",
                "f:2: tenants.a.max-priority: expected a whole number",
            ),
            ("[tenants.a]\noutput-hints = 0", "f:2: tenants.a.output-hints: expected true or false"),
            ("[tenants.a]\nkeys = [\n  \"hunter2\",\n]", "f:3: tenants.a.keys: expected `sha256:`"),
            ("[tenants.\"a b\"]", "f:1: tenants.a b: a tenant's name"),
            ("[tenants.other]", "f:1: tenants.other: `other` is reserved"),
            ("tenants = 3", "f:1: tenants: expected a table"),
            ("[tenants.a", "f:1: "),
            (twice.as_str(), "f:3: tenants.b: the key sha256:"),
        ];
        for (text, start) in cases {
            let error = grants("f", text).unwrap_err();
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }
}
