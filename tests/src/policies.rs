//! Policy components: the shipped ones by name, misbehaving ones, and the templates of `infer policy new`.

use std::sync::OnceLock;
use std::time::Duration;

use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_wasm::{LoaderConfig, PolicyLoader};

include!(concat!(env!("OUT_DIR"), "/faulty.rs"));

/// A shipped policy, configured.
pub fn bundled(kind: PolicyKind, name: &str, config: &str) -> AnyPolicy {
    let policy = infer_bundle::find(kind.name(), name).expect("a shipped policy");
    load(kind, policy.component, config)
}

/// A misbehaving policy, configured.
pub fn faulty(kind: PolicyKind, config: &str) -> AnyPolicy {
    let component = match kind {
        PolicyKind::Scheduler => FAULTY_SCHEDULER,
        PolicyKind::Admission => FAULTY_ADMISSION,
        PolicyKind::PrefixCache => FAULTY_PREFIX_CACHE,
    };
    load(kind, component, config)
}

/// Loads a component with all checks. Only an endless loop exceeds the generous deadline.
pub fn load(kind: PolicyKind, component: &[u8], config: &str) -> AnyPolicy {
    static LOADER: OnceLock<PolicyLoader> = OnceLock::new();
    let loader = LOADER.get_or_init(|| {
        // Compiles a component once, however often a test swaps it in.
        let cache_dir = Some(concat!(env!("OUT_DIR"), "/compiled").into());
        let deadline = Duration::from_millis(200);
        let config = LoaderConfig { deadline, cache_dir, ..LoaderConfig::default() };
        PolicyLoader::new(config).expect("the sandbox starts")
    });
    loader.load(kind, component, config).unwrap_or_else(|e| panic!("{kind} policy does not load: {e}"))
}
