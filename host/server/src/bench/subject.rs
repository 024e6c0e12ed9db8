//! What a report says about what was measured besides its name, so that two runs can be told apart and repeated.

use infer_core::policy::PolicyInfo;
use serde::{Deserialize, Serialize};

use super::Report;

/// Digits of a digest that are shown.
const SHOWN: usize = 12;

/// The policy in a slot of the measured host. Those of a list are joined by `+`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPolicy {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the component in hex; empty for a native policy.
    pub sha256: String,
    /// Its configuration as JSON; empty if it has none.
    pub config: String,
}

impl From<&PolicyInfo> for SlotPolicy {
    fn from(info: &PolicyInfo) -> Self {
        Self {
            name: info.name.clone(),
            version: info.version.clone(),
            sha256: info.digest.clone(),
            config: info.config.clone(),
        }
    }
}

impl SlotPolicy {
    fn text(&self) -> String {
        let Self { name, version, sha256, config } = self;
        let short = |digest: &str| digest.get(..SHOWN).unwrap_or(digest).to_owned();
        let digests: Vec<String> = sha256.split('+').map(short).collect();
        let config = if matches!(config.as_str(), "" | "{}") { String::new() } else { format!(" {config}") };
        match sha256.is_empty() {
            true => format!("{name} {version}{config}"),
            false => format!("{name} {version} (SHA-256 {}){config}", digests.join("+")),
        }
    }
}

impl Report {
    /// Version, settings and policies, a line each; none if the report is too old to know them.
    pub(super) fn about(&self) -> Vec<String> {
        if self.version.is_empty() {
            return Vec::new();
        }
        let settings: Vec<String> =
            self.settings.iter().map(|(key, value)| format!("--{key} {value}")).collect();
        let settings = if settings.is_empty() { "default settings".to_owned() } else { settings.join(" ") };
        let mut lines = vec![format!("infer {} with {settings}", self.version)];
        for (when, policies) in
            [("policies", &self.policies), ("changed meanwhile; policies at the end", &self.policies_after)]
        {
            let policies: Vec<String> =
                policies.iter().map(|(slot, policy)| format!("{slot} {}", policy.text())).collect();
            if !policies.is_empty() {
                lines.push(format!("{when}: {}", policies.join(", ")));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Sample, html};
    use super::*;

    /// A report as it was written before reports had settings.
    fn old() -> Report {
        let machine = json!({"cpu": "a processor", "cores": 2, "load_average_before": null});
        let report = json!({
            "subject": "old", "url": "http://h", "dialect": "named", "api": "completions", "model": "demo",
            "seed": 1, "machine": machine, "load_average_after": null, "workloads": [],
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn settings_and_policies_are_listed() {
        let policy = |name: &str, sha256: &str, config: &str| SlotPolicy {
            name: name.to_owned(),
            version: "1.2.0".to_owned(),
            sha256: sha256.to_owned(),
            config: config.to_owned(),
        };
        let digest = "0123456789abcdef".repeat(4);
        let list = policy("slo+fair", &format!("{digest}+{digest}"), r#"[{},{"x":"<y>"}]"#);
        let policies = [("admission", list), ("scheduler", policy("builtin", "", ""))];
        let settings = [("kv-cache", "contiguous"), ("max-batch-size", "4")];
        let plain = Report { version: "0.1.0".to_owned(), ..old() };
        let full = Report {
            settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            policies: policies.map(|(slot, policy)| (slot.to_owned(), policy)).into(),
            ..plain.clone()
        };
        assert_eq!(plain.about(), ["infer 0.1.0 with default settings"]);
        let lines = [
            "infer 0.1.0 with --kv-cache contiguous --max-batch-size 4",
            r#"policies: admission slo+fair 1.2.0 (SHA-256 0123456789ab+0123456789ab) [{},{"x":"<y>"}], scheduler builtin 1.2.0"#,
        ];
        assert_eq!(full.about(), lines);
        let changed = Report {
            policies_after: [("scheduler".to_owned(), policy("fair", "", ""))].into(),
            ..full.clone()
        };
        assert_eq!(changed.about()[2], "changed meanwhile; policies at the end: scheduler fair 1.2.0");
        let text = full.text();
        assert!(lines.iter().all(|line| text.contains(&format!("\n{line}\n"))), "{text}");
        let page = html(&[full]);
        assert!(page.contains(lines[0]) && page.contains("SHA-256 0123456789ab+0123456789ab"), "{page}");
        assert!(page.contains("&lt;y&gt;") && !page.contains("<y>"), "{page}");
    }

    #[test]
    fn reports_without_settings_are_still_read() {
        assert_eq!((old().about().len(), old().text().lines().count()), (0, 2), "{}", old().text());
        let sample = json!({"sent_ms": 0.0, "ttft_ms": 1.0, "itl_ms": [], "latency_ms": 1.0});
        let sample: Sample = serde_json::from_value(sample).unwrap();
        assert_eq!((sample.prompt_tokens, sample.cached_tokens), (0, 0));
    }
}
