//! The shipped policies as components, built from `plugins/` by this crate's build script.
//!
//! The host embeds them, so that it starts without any file; they are the very components that could be
//! loaded from disk, and nothing about them is special to the host.
#![forbid(unsafe_code)]

/// A shipped policy.
#[derive(Clone, Copy)]
pub struct Bundled {
    /// The slot it belongs in: `scheduler`, `admission` or `prefix-cache`.
    pub kind: &'static str,
    /// Its name, such as `continuous`.
    pub name: &'static str,
    /// The component.
    pub component: &'static [u8],
    /// SHA-256 of the component in hex.
    pub sha256: &'static str,
}

impl std::fmt::Debug for Bundled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({} bytes, {})", self.kind, self.name, self.component.len(), self.sha256)
    }
}

/// All of them.
pub const POLICIES: &[Bundled] = include!(concat!(env!("OUT_DIR"), "/policies.rs"));

/// The shipped policy of a kind with this name.
pub fn find(kind: &str, name: &str) -> Option<&'static Bundled> {
    POLICIES.iter().find(|policy| policy.kind == kind && policy.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_default_and_names_are_unique() {
        for (kind, name) in
            [("scheduler", "continuous"), ("admission", "memory-aware"), ("prefix-cache", "lru")]
        {
            assert!(find(kind, name).is_some(), "{kind} {name}");
        }
        assert!(find("scheduler", "lru").is_none());
        for (place, policy) in POLICIES.iter().enumerate() {
            let twins = POLICIES[..place].iter().filter(|p| (p.kind, p.name) == (policy.kind, policy.name));
            assert_eq!(twins.count(), 0, "{policy:?}");
        }
    }

    #[test]
    fn every_policy_is_a_component() {
        for policy in POLICIES {
            // Magic, then version 13 of layer 1: a component, no core module.
            assert_eq!(policy.component[..8], *b"\0asm\x0d\0\x01\0", "{policy:?}");
            assert_eq!(policy.sha256.len(), 64);
        }
    }
}
