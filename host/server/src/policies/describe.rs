//! Policies as operators see them: what can be swapped in, and what a policy was made of.

use std::sync::Arc;

use infer_api::admin::AvailablePolicy;
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_wasm::{LoadError, PolicyLoader};
use serde_json::{Value, json};

use super::{Origin, PolicyManager, blocking, builtin, empty};

impl PolicyManager {
    /// Returns what a policy that is or was live was made of, as recordings say it.
    pub fn describe(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> infer_api::trace::Policy {
        crate::trace::describe(kind, policy, self.origins.find(kind, policy).as_ref())
    }

    /// Returns a policy's configuration.
    pub fn config_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Value {
        self.origins.find(kind, policy).map_or_else(empty, |origin| origin.config())
    }

    /// Returns the JSON Schema of a policy's configuration; of a list, its members' as `prefixItems`.
    pub fn schema_of(&self, kind: PolicyKind, policy: &Arc<PolicyInfo>) -> Value {
        match self.origins.find(kind, policy) {
            Some(Origin { members, .. }) if members.len() > 1 => {
                let schemas: Vec<Value> = members.iter().map(|member| schema(&member.info)).collect();
                json!({"type": "array", "prefixItems": schemas})
            }
            _ => schema(policy),
        }
    }

    /// Returns the policies that can be swapped in by name. Compiles every bundled policy on the first call, after the start. While the
    /// machine has no memory for that, these are only the native ones.
    pub async fn available(&self) -> Vec<AvailablePolicy> {
        match self.available.get_or_try_init(|| self.describe_shipped()).await {
            Ok(all) => all.clone(),
            Err(error) => {
                tracing::warn!("the bundled policies can't be listed now: {error}");
                native().collect()
            }
        }
    }

    /// Finds out what that returns, before anybody asks. Says nothing if the machine has no memory for it now.
    pub async fn prepare(&self) {
        let _ = self.available.get_or_try_init(|| self.describe_shipped()).await;
    }

    /// Whether that answers at once.
    pub fn is_listed(&self) -> bool {
        self.available.initialized()
    }

    /// One after the other, so that a host that ends waits for one at most.
    async fn describe_shipped(&self) -> Result<Vec<AvailablePolicy>, LoadError> {
        let mut all = Vec::new();
        for bundled in infer_bundle::POLICIES {
            let loader = self.loader.clone();
            let described = blocking(move || loader.describe(bundled.component)).await;
            all.extend(usable(bundled.name, described)?);
        }
        all.extend(native());
        Ok(all)
    }
}

/// Returns the policies in this binary: the bundled and the native ones. Compiles those that aren't cached.
///
/// # Errors
/// The machine has no memory to run one ([`LoadError::Machine`]).
pub fn shipped(loader: &PolicyLoader) -> Result<Vec<AvailablePolicy>, LoadError> {
    let mut all = Vec::new();
    for bundled in infer_bundle::POLICIES {
        all.extend(usable(bundled.name, loader.describe(bundled.component))?);
    }
    all.extend(native());
    Ok(all)
}

/// Leaves out a policy that is at fault itself.
fn usable(
    name: &str,
    described: Result<(PolicyKind, PolicyInfo), LoadError>,
) -> Result<Option<AvailablePolicy>, LoadError> {
    match described {
        Ok((kind, info)) => Ok(Some(available(kind, &info))),
        Err(error @ LoadError::Machine(_)) => Err(error),
        Err(error) => {
            tracing::error!(policy = name, "can't load a bundled policy: {error}");
            Ok(None)
        }
    }
}

fn native() -> impl Iterator<Item = AvailablePolicy> {
    PolicyKind::ALL.into_iter().map(|kind| available(kind, &builtin(kind).info()))
}

fn available(kind: PolicyKind, info: &PolicyInfo) -> AvailablePolicy {
    AvailablePolicy {
        kind: kind.name().to_owned(),
        name: info.name.clone(),
        version: info.version.clone(),
        description: info.description.clone(),
        sha256: info.digest.clone(),
        config_schema: schema(info),
    }
}

/// Returns a policy's configuration schema; null if it has none.
pub fn schema(info: &PolicyInfo) -> Value {
    serde_json::from_str(&info.config_schema).unwrap_or(Value::Null)
}
