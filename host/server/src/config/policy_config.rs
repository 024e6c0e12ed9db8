//! The file of `--policy-config`: a JSON object for each slot. What the objects mean is up to the policies.

use std::collections::BTreeMap;
use std::path::Path;

use infer_api::unique;
use infer_core::policy::PolicyKind;

use super::document::{near, read_text};

/// Reads the file of the policies' configurations, by kind of policy.
pub fn read_policy_configs(path: &Path) -> Result<BTreeMap<String, serde_json::Value>, String> {
    let shown = path.display();
    let json = read_text(path).map_err(|e| format!("can't read {shown}: {e}"))?;
    let map = unique::parse(json.as_bytes()).and_then(serde_json::from_value);
    let map: BTreeMap<String, serde_json::Value> = map.map_err(|e| {
        format!("{shown} is not a JSON object of {{\"scheduler\": {{..}}, \"admission\": {{..}}}}: {e}")
    })?;
    for (key, value) in &map {
        let kinds = PolicyKind::ALL.map(PolicyKind::name);
        if !kinds.contains(&key.as_str()) {
            let meant = near(key, &kinds).map_or_else(
                || format!("known keys are {}", kinds.join(", ")),
                |meant| format!("did you mean `{meant}`?"),
            );
            return Err(format!("{shown}: unknown key `{key}`; {meant}"));
        }
        if !value.is_object() {
            return Err(format!("{shown}: {key}: expected a JSON object"));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_by_kind_and_names_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policies.json");
        let read = |json: &str| {
            std::fs::write(&path, json).unwrap();
            read_policy_configs(&path)
        };
        let all = read(r#"{"scheduler": {"step_target_ms": 10}, "admission": {}}"#).unwrap();
        assert_eq!((all.len(), &all["scheduler"]["step_target_ms"]), (2, &10.into()));
        for (json, says) in [
            ("[]", "policies.json is not a JSON object of"),
            ("{", "policies.json is not a JSON object of"),
            (r#"{"sheduler": {}}"#, "unknown key `sheduler`; did you mean `scheduler`?"),
            (r#"{"scheduler": 1}"#, "scheduler: expected a JSON object"),
            (r#"{"scheduler": {}, "scheduler": {}}"#, "the key `scheduler` occurs twice"),
            (r#"{"admission": {"slo": {"a": 1, "a": 2}}}"#, "the key `a` occurs twice"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
