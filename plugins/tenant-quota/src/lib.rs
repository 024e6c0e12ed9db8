//! `tenant-quota`: one tenant's flood evicts that tenant's own prefixes, not those of others.
//!
//! Each tenant with cached blocks is entitled to an equal share of them all; blocks are evicted from the
//! tenant furthest above its share, least recently used first. Under pressure holdings converge to max-min
//! fairness (Bertsekas and Gallager 1992): no tenant below its share loses anything while another is above,
//! and others may fill an unused share. Shares are of the idle blocks; what runs is the scheduler's concern.
//! Weights are deliberately absent: a cache is worth to a tenant what its own traffic finds in it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use infer_policy_sdk::{
    BlockId, EventKind, Events, IdleTree, Micros, Policy, PrefixCache, Taken, TenantId, export_policy,
};
use serde::{Deserialize, Serialize};

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How far above its share, as a share of all cached blocks, a tenant may be before its blocks go first.
    /// While no tenant is further above, the least recently used blocks go, whichever tenant they belong to.
    pub slack: f64,
}

/// Equal shares among tenants, least recently used first within one.
pub struct TenantQuota {
    config: Config,
    idle: IdleTree<(TenantId, u64)>,
    /// Idle blocks of each tenant that has any.
    held: BTreeMap<TenantId, usize>,
    clock: u64,
}

impl Policy for TenantQuota {
    type Config = Config;
    const NAME: &'static str = "tenant-quota";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "Entitles each tenant to an equal share of the cached blocks; the tenant \
         furthest above it loses blocks first.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "slack": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.0,
                "description": "How far above its share a tenant may be before its blocks go first"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&config.slack) {
            return Err(format!("`slack` must be from 0 to 1, not {}", config.slack));
        }
        Ok(Self { config, idle: IdleTree::default(), held: BTreeMap::new(), clock: 0 })
    }
}

impl PrefixCache for TenantQuota {
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            self.take(event.block);
            if event.kind == EventKind::Idle {
                self.clock += 1;
                let key = (event.tenant, self.clock);
                self.put(Taken { block: event.block, parent: event.parent, key });
            }
        }
        Vec::new()
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        let mut by_held: BTreeSet<(usize, TenantId)> =
            self.held.iter().map(|(tenant, held)| (*held, *tenant)).collect();
        let mut by_age = None;
        let mut named = Vec::new();
        while named.len() < need as usize
            && let Some(most) = by_held.last()
            && let Some(block) = self.victim(*most, &mut by_age)
            && let Some(taken) = self.take(block)
        {
            let tenant = taken.key.0;
            let left = self.held.get(&tenant).copied().unwrap_or(0);
            by_held.remove(&(left + 1, tenant));
            if left > 0 {
                by_held.insert((left, tenant));
            }
            if let Some(by_age) = &mut by_age {
                by_age.remove(&(taken.key.1, block));
                // The block before it may be a leaf now; no host shows one of another tenant there.
                let above = taken.parent.and_then(|above| self.idle.key(above)).map(|key| key.0);
                let owners = [Some(tenant), above].into_iter().flatten();
                by_age.extend(owners.filter_map(|owner| self.oldest_of(owner)));
            }
            named.push(taken);
        }
        let names = named.iter().map(|taken| taken.block).collect();
        // Named blocks stay until the host reports that they are gone.
        named.into_iter().rev().for_each(|taken| self.put(taken));
        names
    }
}

/// Leaves by when they were used, among them the oldest of each tenant.
type Leaves = BTreeSet<(u64, BlockId)>;

impl TenantQuota {
    /// The block that is evicted next, given the tenant that holds most. Makes `by_age` once it is needed: to search
    /// all tenants for each block would cost their product.
    fn victim(&self, (most, tenant): (usize, TenantId), by_age: &mut Option<Leaves>) -> Option<BlockId> {
        let (all, tenants) = (self.idle.len() as f64, self.held.len() as f64);
        let bound = all / tenants + all * self.config.slack;
        let furthest = (most as f64 > bound).then(|| self.oldest_of(tenant)).flatten();
        // Equal, or within the slack: the least recently used of all.
        let oldest = || self.held.keys().filter_map(|tenant| self.oldest_of(*tenant)).collect();
        let any = || by_age.get_or_insert_with(oldest).first().copied();
        furthest.or_else(any).map(|(_, block)| block)
    }

    /// A tenant's leaf that was used longest ago, and when.
    fn oldest_of(&self, tenant: TenantId) -> Option<(u64, BlockId)> {
        let ((owner, used), block) = self.idle.first_leaf_from((tenant, 0))?;
        (owner == tenant).then_some((used, block))
    }

    fn take(&mut self, block: BlockId) -> Option<Taken<(TenantId, u64)>> {
        let taken = self.idle.remove(block)?;
        if let Entry::Occupied(mut held) = self.held.entry(taken.key.0) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
        Some(taken)
    }

    fn put(&mut self, taken: Taken<(TenantId, u64)>) {
        self.idle.put_back(taken);
        if self.idle.key(taken.block).is_some() {
            *self.held.entry(taken.key.0).or_default() += 1;
        }
    }
}

export_policy!(prefix_cache: TenantQuota);

#[cfg(test)]
mod tests;
