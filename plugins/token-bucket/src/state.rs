//! The state handed to the next version of this policy: the buckets, and the requests that are charged. A
//! swap must neither refill a bucket nor charge a waiting request twice.
//!
//! Little-endian: a version byte; a byte that says whether output lengths are known; the number of buckets,
//! then the fields of each; then the charged requests, as `charged` writes them. A state of another version
//! is refused, and the policy starts cold, with full buckets.

use std::collections::BTreeMap;

use infer_policy_sdk::{Micros, TenantId};

use crate::charged::Charged;
use crate::{Bucket, MAX_TENANTS};

const VERSION: u8 = 3;

type State = (BTreeMap<TenantId, Bucket>, Charged, bool);

pub(crate) fn write(buckets: &BTreeMap<TenantId, Bucket>, charged: &Charged, knows_lengths: bool) -> Vec<u8> {
    let mut bytes = vec![VERSION, u8::from(knows_lengths)];
    bytes.extend((buckets.len() as u32).to_le_bytes());
    for (tenant, bucket) in buckets {
        bytes.extend(tenant.0.to_le_bytes());
        bytes.extend(bucket.level.to_le_bytes());
        bytes.extend(bucket.at.0.to_le_bytes());
        bytes.extend(bucket.output_charged.to_le_bytes());
        bytes.extend(bucket.in_flight.to_le_bytes());
        bytes.extend(bucket.granted.to_le_bytes());
        bytes.extend(bucket.reserved.to_le_bytes());
    }
    charged.write(&mut bytes);
    bytes
}

pub(crate) fn read(state: &[u8]) -> Result<State, String> {
    let (buckets, charged, knows_lengths) =
        parse(state).ok_or("this is no state of token buckets, or one of another version")?;
    if buckets.len() > MAX_TENANTS {
        return Err(format!("{} tenants are too many", buckets.len()));
    }
    Ok((buckets, charged, knows_lengths))
}

/// `None` if bytes are missing or wrong, or the version is another one.
fn parse(state: &[u8]) -> Option<State> {
    let (version, mut rest) = state.split_first()?;
    if *version != VERSION {
        return None;
    }
    let [knows_lengths] = take(&mut rest)?;
    let mut buckets = BTreeMap::new();
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let tenant = TenantId(u32::from_le_bytes(take(&mut rest)?));
        let bucket = Bucket {
            level: i64::from_le_bytes(take(&mut rest)?),
            at: Micros(u64::from_le_bytes(take(&mut rest)?)),
            output_charged: u64::from_le_bytes(take(&mut rest)?),
            in_flight: u32::from_le_bytes(take(&mut rest)?),
            granted: u64::from_le_bytes(take(&mut rest)?),
            reserved: u64::from_le_bytes(take(&mut rest)?),
        };
        buckets.insert(tenant, bucket);
    }
    Some((buckets, Charged::read(rest)?, knows_lengths != 0))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}
