//! Tags: what a slot runs in one word, with which a change names exactly what its operator saw. A name stands for any
//! component and any configuration, a component's digest for any configuration.

use infer_core::policy::PolicyInfo;
use sha2::{Digest as _, Sha256};

/// Between a tag's name and its digest. No policy has it in its name.
const MARK: char = '@';
/// How much of the digest a tag has: operators tell policies apart by it, and nothing is trusted because of it.
const BYTES: usize = 8;

/// Returns the tag of a policy: policies that [are the same](PolicyInfo::is_same), and only these, have the same one.
pub fn tag(policy: &PolicyInfo) -> String {
    let PolicyInfo { name, digest, config_digest, .. } = policy;
    let all = Sha256::digest(format!("{name}\n{digest}\n{config_digest}"));
    let short: String = all.iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}{MARK}{short}")
}

/// Whether this can only be a tag, rather than a name or a digest.
pub(super) fn is_tag(text: &str) -> bool {
    text.contains(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_names_components_and_configurations_apart() {
        let policy = |name: &str, digest: &str, config_digest: &str| PolicyInfo {
            name: name.to_owned(),
            digest: digest.to_owned(),
            config_digest: config_digest.to_owned(),
            ..PolicyInfo::default()
        };
        let all = [
            policy("fair", "", ""),
            policy("fair", "a", ""),
            policy("fair", "", "a"),
            policy("fair", "a", "a"),
            policy("srpt", "a", "a"),
            policy("fair+srpt", "a+a", "a+"),
            policy("fair+srpt", "a+a", "+a"),
        ];
        for (at, one) in all.iter().enumerate() {
            let own = tag(one);
            assert!(own.starts_with(&format!("{}@", one.name)) && is_tag(&own), "{own}");
            assert!(!is_tag(&one.name) && own.len() == one.name.len() + 1 + 2 * BYTES, "{own}");
            assert!(all[..at].iter().all(|other| tag(other) != own), "{own}");
            let described = PolicyInfo { version: "2.0.0".to_owned(), ..one.clone() };
            assert_eq!(tag(&described), own, "only what `is_same` looks at");
        }
    }
}
