//! The file of `--policy-config`: a JSON object for each slot. What the objects mean is up to the policies.

use std::collections::BTreeMap;
use std::path::Path;

use infer_core::policy::PolicyKind;

use super::document::near;

/// Reads the file of the policies' configurations, by kind of policy.
pub fn read_policy_configs(path: &Path) -> Result<BTreeMap<String, serde_json::Value>, String> {
    let shown = path.display();
    let json = std::fs::read_to_string(path).map_err(|e| format!("can't read {shown}: {e}"))?;
    let map: BTreeMap<String, serde_json::Value> = serde_json::from_str(&json).map_err(|e| {
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
