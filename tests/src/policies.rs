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

/// A misbehaving policy, configured. Only an endless loop exceeds the generous deadline.
pub fn faulty(kind: PolicyKind, config: &str) -> AnyPolicy {
    let component = match kind {
        PolicyKind::Scheduler => FAULTY_SCHEDULER,
        PolicyKind::Admission => FAULTY_ADMISSION,
        PolicyKind::PrefixCache => FAULTY_PREFIX_CACHE,
    };
    static LOADER: OnceLock<PolicyLoader> = OnceLock::new();
    load_with(LOADER.get_or_init(|| loader(Duration::from_millis(500))), kind, component, config)
}

/// Loads a component with all checks. No time is too much for it: a fault would be the machine's.
pub fn load(kind: PolicyKind, component: &[u8], config: &str) -> AnyPolicy {
    static LOADER: OnceLock<PolicyLoader> = OnceLock::new();
    load_with(LOADER.get_or_init(|| loader(Duration::from_secs(3_600))), kind, component, config)
}

/// Compiles a component once, however often a test swaps it in.
fn loader(deadline: Duration) -> PolicyLoader {
    let cache_dir = Some(concat!(env!("OUT_DIR"), "/compiled").into());
    let config = LoaderConfig { deadline, cache_dir, ..LoaderConfig::default() };
    PolicyLoader::new(config).expect("the sandbox starts")
}

fn load_with(loader: &PolicyLoader, kind: PolicyKind, component: &[u8], config: &str) -> AnyPolicy {
    loader.load(kind, component, config).unwrap_or_else(|e| panic!("{kind} policy does not load: {e}"))
}
