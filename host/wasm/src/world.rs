//! What the three generated worlds have in common, so that instances are written once.

use infer_core::policy::{PolicyFault, PolicyInfo, PolicyKind};
use wasmtime::component::InstancePre;
use wasmtime::{Result, Store};

use crate::bindings::{admission, prefix_cache, scheduler};
use crate::instance::Instance;
use crate::runtime::HostState;

/// One world's bindings.
pub(crate) trait World: Sized + Send + 'static {
    /// A linked component that can be instantiated any number of times.
    type Pre: Send + Sync;
    const KIND: PolicyKind;

    fn link(pre: InstancePre<HostState>) -> Result<Self::Pre>;
    fn instantiate(pre: &Self::Pre, store: &mut Store<HostState>) -> Result<Self>;

    /// Everything but the digest, which a guest can't know.
    fn describe(&self, store: &mut Store<HostState>) -> Result<PolicyInfo>;
    fn configure(&self, store: &mut Store<HostState>, config: &str) -> Result<Result<(), String>>;
    fn export_state(&self, store: &mut Store<HostState>) -> Result<Vec<u8>>;
    fn import_state(&self, store: &mut Store<HostState>, state: &[u8]) -> Result<Result<(), String>>;

    /// Tests a throwaway instance with views that every policy must handle; the error names the view that it
    /// failed.
    fn self_test(instance: &mut Instance<Self>) -> Result<(), (&'static str, PolicyFault)>;
}

/// Forwards one world to its generated code.
macro_rules! world {
    ($exports:ty, $pre:ident in $module:ident, $kind:ident, $self_test:path) => {
        impl World for $exports {
            type Pre = $module::$pre<HostState>;
            const KIND: PolicyKind = PolicyKind::$kind;

            fn link(pre: InstancePre<HostState>) -> Result<Self::Pre> {
                $module::$pre::new(pre)
            }

            fn instantiate(pre: &Self::Pre, store: &mut Store<HostState>) -> Result<Self> {
                pre.instantiate(store)
            }

            fn describe(&self, store: &mut Store<HostState>) -> Result<PolicyInfo> {
                let info = self.infer_policy_lifecycle().call_describe(store)?;
                Ok(PolicyInfo {
                    name: info.name,
                    version: info.version,
                    description: info.description,
                    config_schema: info.config_schema,
                    ..PolicyInfo::default()
                })
            }

            fn configure(&self, store: &mut Store<HostState>, config: &str) -> Result<Result<(), String>> {
                self.infer_policy_lifecycle().call_configure(store, config)
            }

            fn export_state(&self, store: &mut Store<HostState>) -> Result<Vec<u8>> {
                self.infer_policy_lifecycle().call_export_state(store)
            }

            fn import_state(&self, store: &mut Store<HostState>, state: &[u8]) -> Result<Result<(), String>> {
                self.infer_policy_lifecycle().call_import_state(store, state)
            }

            fn self_test(instance: &mut Instance<Self>) -> Result<(), (&'static str, PolicyFault)> {
                $self_test(instance)
            }
        }
    };
}

world!(scheduler::SchedulerPolicy, SchedulerPolicyPre in scheduler, Scheduler, crate::self_test::scheduler);
world!(admission::AdmissionPolicy, AdmissionPolicyPre in admission, Admission, crate::self_test::admission);
world!(
    prefix_cache::PrefixCachePolicy,
    PrefixCachePolicyPre in prefix_cache,
    PrefixCache,
    crate::self_test::prefix_cache
);
