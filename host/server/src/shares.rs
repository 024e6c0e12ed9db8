//! Memory that tenants share: a budget of which requests hold parts.
//!
//! First come, first served would let one tenant hold all of it, and have everybody else refused. So a tenant may hold at
//! most three times what would then still be free: the rule of dynamic thresholds in switches with shared buffers
//! (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998), where the limit of a
//! queue is alpha times the free memory. One tenant alone thus gets three quarters, two get three sevenths each, and some
//! is always left for the next. Fixed shares would leave most of a budget unused, since few tenants send long requests at
//! once; here nothing is kept for a tenant that sends none, and no number of tenants has to be known. What is held is
//! never taken back: a limit that sinks because others come refuses only what a tenant wants in addition.
//!
//! The only tenant of a host, as without a file of tenants, may hold all of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use infer_core::TenantId;

/// What a tenant may hold for each byte that it leaves free.
const ALPHA: usize = 3;

/// Who holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tenant.
    pub tenant: TenantId,
    /// Whether nobody else could need the memory.
    pub alone: bool,
}

/// Memory that tenants share. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes: usize,
    held: Arc<Mutex<Held>>,
}

/// What is held. Its sum is at most the budget.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// By tenant. Who holds nothing has no entry, so there are at most as many as parts.
    tenants: BTreeMap<TenantId, usize>,
}

/// What one request holds of a budget, until it is dropped.
#[derive(Debug)]
pub struct Part {
    budget: Budget,
    holder: Holder,
    bytes: usize,
}

/// Why there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The budget has none.
    Budget,
    /// The tenant holds what it may.
    Share,
}

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, held: Arc::default() }
    }

    /// Bytes that are held.
    pub fn used(&self) -> usize {
        self.lock().bytes
    }

    /// The most that a holder may ever hold.
    pub fn most(&self, holder: Holder) -> usize {
        if holder.alone { self.bytes } else { self.bytes / (ALPHA + 1) * ALPHA }
    }

    /// A part that holds nothing yet.
    pub fn part(&self, holder: Holder) -> Part {
        Part { budget: self.clone(), holder, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it hold so many bytes more. A tenant that then holds at most `least` is refused only by the budget.
    ///
    /// # Errors
    /// Whose memory is exhausted. The part stays as it was.
    pub fn grow(&mut self, bytes: usize, least: usize) -> Result<(), Full> {
        if bytes == 0 {
            return Ok(());
        }
        let mut held = self.budget.lock();
        let free = (self.budget.bytes - held.bytes).checked_sub(bytes);
        let own = held.tenants.get(&self.holder.tenant).map_or(bytes, |own| own.saturating_add(bytes));
        if !self.holder.alone && own > least && own > free.unwrap_or(0).saturating_mul(ALPHA) {
            return Err(Full::Share);
        }
        if free.is_none() {
            return Err(Full::Budget);
        }
        held.bytes += bytes;
        held.tenants.insert(self.holder.tenant, own);
        self.bytes += bytes;
        Ok(())
    }

    /// Divides off so many of its bytes, or all if it holds fewer.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: self.budget.clone(), holder: self.holder, bytes }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut held = self.budget.lock();
        held.bytes -= self.bytes;
        if let Some(own) = held.tenants.get_mut(&self.holder.tenant) {
            *own -= self.bytes;
            if *own == 0 {
                held.tenants.remove(&self.holder.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: u32) -> Holder {
        Holder { tenant: TenantId(number), alone: false }
    }

    /// What a tenant gets that wants all it can get, a byte at a time.
    fn most_of(budget: &Budget, number: u32) -> Part {
        let mut part = budget.part(tenant(number));
        while part.grow(1, 0).is_ok() {}
        part
    }

    #[test]
    fn tenants_hold_what_their_number_allows_and_leave_some_for_the_next() {
        let budget = Budget::new(1_000);
        let first = most_of(&budget, 1);
        assert_eq!((first.bytes(), budget.most(tenant(1))), (750, 750));
        let second = most_of(&budget, 2);
        assert_eq!(second.bytes(), 187, "three quarters of the rest");
        assert_eq!(budget.part(tenant(1)).grow(1, 0), Err(Full::Share), "its limit has sunk");
        drop(first);
        let third = most_of(&budget, 3);
        assert_eq!((third.bytes(), budget.used()), (609, 796));
        drop((second, third));
        let held = budget.lock();
        assert!(held.bytes == 0 && held.tenants.is_empty(), "{held:?}");
    }

    #[test]
    fn only_tenant_may_hold_all() {
        let budget = Budget::new(1_000);
        let only = Holder { alone: true, ..tenant(0) };
        let mut part = budget.part(only);
        assert_eq!((part.grow(1_000, 0), part.grow(1, 0)), (Ok(()), Err(Full::Budget)));
        assert_eq!((budget.used(), budget.most(only)), (1_000, 1_000));
    }

    #[test]
    fn least_of_a_tenant_needs_only_what_is_free() {
        let budget = Budget::new(1_000);
        let (_most, mut part) = (most_of(&budget, 1), budget.part(tenant(2)));
        assert_eq!((part.grow(200, 0), part.bytes()), (Err(Full::Share), 0));
        assert_eq!((part.grow(200, 200), part.bytes()), (Ok(()), 200));
        assert_eq!(part.grow(1, 200), Err(Full::Share));
        assert_eq!(budget.part(tenant(3)).grow(51, 51), Err(Full::Budget));
        assert_eq!(budget.part(tenant(3)).grow(50, 50), Ok(()));
    }

    #[test]
    fn split_part_is_held_after_the_rest() {
        let budget = Budget::new(1_000);
        let mut whole = budget.part(tenant(1));
        whole.grow(600, 0).unwrap();
        let (some, none) = (whole.split(200), budget.part(tenant(1)).split(10));
        assert_eq!((whole.bytes(), some.bytes(), none.bytes()), (400, 200, 0));
        drop(whole);
        assert_eq!(budget.used(), 200);
        let more = most_of(&budget, 1);
        assert_eq!((more.bytes(), budget.used()), (550, 750), "it counts for its tenant");
        drop((some, none, more));
        assert_eq!(budget.used(), 0);
    }
}
