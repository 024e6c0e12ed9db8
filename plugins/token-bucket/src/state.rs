//! What the next version of this policy is handed: levels, and who has paid.
//!
//! Little-endian: a version byte; the number of buckets, then tenant, level and time of each; then who was
//! charged, as `charged` writes it. A swap must neither fill buckets nor charge a waiting request twice.

use std::collections::BTreeMap;

use infer_policy_sdk::{Micros, TenantId};

use crate::charged::Charged;
use crate::{Bucket, MAX_TENANTS};

const VERSION: u8 = 2;

type State = (BTreeMap<TenantId, Bucket>, Charged);

pub(crate) fn write(buckets: &BTreeMap<TenantId, Bucket>, charged: &Charged) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend((buckets.len() as u32).to_le_bytes());
    for (tenant, bucket) in buckets {
        bytes.extend(tenant.0.to_le_bytes());
        bytes.extend(bucket.level.to_le_bytes());
        bytes.extend(bucket.at.0.to_le_bytes());
    }
    charged.write(&mut bytes);
    bytes
}

pub(crate) fn read(state: &[u8]) -> Result<State, String> {
    let (buckets, charged) = parse(state).ok_or("this is no state of token buckets")?;
    if buckets.len() > MAX_TENANTS {
        return Err(format!("{} tenants are too many", buckets.len()));
    }
    Ok((buckets, charged))
}

/// `None` where bytes are missing, wrong, or of another version.
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
    (*version == VERSION).then_some((buckets, Charged::read(rest)?))
}
