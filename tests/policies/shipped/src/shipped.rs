//! The shipped components, loaded as a host loads them, but limited by fuel instead of time: a call is cut off at the
//! same instruction on every machine.

use std::path::Path;

use infer_core::policy::{AdmissionPolicy, AnyPolicy, PolicyKind, PrefixCachePolicy, SchedulerPolicy};
use infer_wasm::{LoaderConfig, PolicyLoader};

/// Loads shipped policies by name, and compiles each only once.
pub struct Shipped {
    loader: PolicyLoader,
}

impl Shipped {
    /// A loader that caches compiled components in `cache_dir`.
    pub fn new(cache_dir: &Path) -> Self {
        let config = LoaderConfig {
            cache_dir: Some(cache_dir.join("compiled")),
            fuel: Some(1_000_000_000),
            ..LoaderConfig::default()
        };
        Self { loader: PolicyLoader::new(config).expect("a loader") }
    }

    /// A scheduler.
    pub fn scheduler(&self, name: &str, config: &str) -> Box<dyn SchedulerPolicy> {
        match self.load(PolicyKind::Scheduler, name, config) {
            AnyPolicy::Scheduler(policy) => policy,
            other => panic!("{other:?} is no scheduler"),
        }
    }

    /// An admission policy.
    pub fn admission(&self, name: &str, config: &str) -> Box<dyn AdmissionPolicy> {
        match self.load(PolicyKind::Admission, name, config) {
            AnyPolicy::Admission(policy) => policy,
            other => panic!("{other:?} is no admission policy"),
        }
    }

    /// A prefix-cache policy.
    pub fn prefix_cache(&self, name: &str, config: &str) -> Box<dyn PrefixCachePolicy> {
        match self.load(PolicyKind::PrefixCache, name, config) {
            AnyPolicy::PrefixCache(policy) => policy,
            other => panic!("{other:?} is no prefix-cache policy"),
        }
    }

    fn load(&self, kind: PolicyKind, name: &str, config: &str) -> AnyPolicy {
        let policy = infer_bundle::find(kind.name(), name).expect("it is shipped");
        self.loader.load(kind, policy.component, config).expect("it loads")
    }
}
