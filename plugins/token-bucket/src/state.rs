//! What the next version of this policy is handed: levels, and who has paid.
//!
//! Little-endian: a version byte; the number of buckets, then tenant, level and time of each; then the ids
//! that were charged. A swap must neither fill buckets nor charge a waiting request twice.

use std::collections::{BTreeMap, BTreeSet};

use infer_policy_sdk::{Micros, SequenceId, TenantId};

use crate::{Bucket, MAX_CHARGED, MAX_TENANTS};

const VERSION: u8 = 1;

type State = (BTreeMap<TenantId, Bucket>, BTreeSet<SequenceId>);

pub(crate) fn write(buckets: &BTreeMap<TenantId, Bucket>, charged: &BTreeSet<SequenceId>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend((buckets.len() as u32).to_le_bytes());
    for (tenant, bucket) in buckets {
        bytes.extend(tenant.0.to_le_bytes());
        bytes.extend(bucket.level.to_le_bytes());
        bytes.extend(bucket.at.0.to_le_bytes());
    }
    bytes.extend(charged.iter().flat_map(|id| id.0.to_le_bytes()));
    bytes
}

pub(crate) fn read(state: &[u8]) -> Result<State, String> {
    let (buckets, charged) = parse(state).ok_or("this is no state of token buckets")?;
    if buckets.len() > MAX_TENANTS || charged.len() > MAX_CHARGED {
        return Err(format!("{} tenants and {} requests are too many", buckets.len(), charged.len()));
    }
    Ok((buckets, charged))
}

/// `None` where bytes are missing, left over, or of another version.
fn parse(state: &[u8]) -> Option<State> {
    let (version, rest) = state.split_first()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut buckets = BTreeMap::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (tenant, after) = rest.split_first_chunk()?;
        let (level, after) = after.split_first_chunk()?;
        let (at, after) = after.split_first_chunk()?;
        let bucket = Bucket { level: u64::from_le_bytes(*level), at: Micros(u64::from_le_bytes(*at)) };
        buckets.insert(TenantId(u32::from_le_bytes(*tenant)), bucket);
        rest = after;
    }
    let (ids, left) = rest.as_chunks();
    let charged = ids.iter().map(|id| SequenceId(u64::from_le_bytes(*id))).collect();
    (*version == VERSION && left.is_empty()).then_some((buckets, charged))
}
