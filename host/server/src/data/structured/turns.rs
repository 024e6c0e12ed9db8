//! Who may compile next. Few may at once, and each may take seconds: in order of arrival, one tenant's many heavy shapes
//! would keep everybody else's waiting. So tenants take turns, those first that have the fewest now, and among equals one
//! after the other in the order of their numbers; only within a tenant the first comes first. The next one that waits has
//! its turn as soon as one ends, whatever the others have queued.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use infer_core::TenantId;
use tokio::sync::oneshot;

/// A number of turns. Clones are the same ones.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Turns that nobody has. If there are any, nobody waits.
    free: usize,
    /// Turns that each tenant has; no entry for those without.
    taken: BTreeMap<TenantId, usize>,
    /// Who waits, by tenant and number; no entry for tenants of whom nobody does.
    waiting: BTreeMap<TenantId, BTreeMap<u64, oneshot::Sender<Permit>>>,
    /// The next number.
    next: u64,
    /// Who had the last turn.
    last: TenantId,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    turns: Turns,
    tenant: TenantId,
}

/// A place among those who wait, until it is dropped.
struct Place {
    turns: Turns,
    tenant: TenantId,
    number: u64,
    permit: oneshot::Receiver<Permit>,
}

impl Turns {
    /// Turns for `count` at once.
    pub(super) fn new(count: usize) -> Self {
        let (taken, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State { free: count, taken, waiting, next: 0, last: TenantId(0) })))
    }

    /// Waits for a turn of a tenant. Whoever gives up waiting leaves nothing behind.
    pub(super) async fn take(&self, tenant: TenantId) -> Permit {
        let mut place = match self.take_or_queue(tenant) {
            Ok(permit) => return permit,
            Err(place) => place,
        };
        (&mut place.permit).await.expect("only the place itself removes who waits in it")
    }

    fn take_or_queue(&self, tenant: TenantId) -> Result<Permit, Place> {
        let mut state = self.lock();
        if state.free > 0 {
            state.free -= 1;
            state.give(tenant);
            return Ok(self.permit(tenant));
        }
        let (sender, permit) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.waiting.entry(tenant).or_default().insert(number, sender);
        Err(Place { turns: self.clone(), tenant, number, permit })
    }

    fn permit(&self, tenant: TenantId) -> Permit {
        Permit { turns: self.clone(), tenant }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give(&mut self, tenant: TenantId) {
        *self.taken.entry(tenant).or_default() += 1;
        self.last = tenant;
    }

    /// Takes a turn back, and gives it to the next who waits, if anybody does.
    fn pass_on(&mut self, from: TenantId) -> Option<(TenantId, oneshot::Sender<Permit>)> {
        if let Some(taken) = self.taken.get_mut(&from) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&from);
            }
        }
        let Some(tenant) = self.next_tenant() else {
            self.free += 1;
            return None;
        };
        let (_, sender) = self.waiting.get_mut(&tenant)?.pop_first()?;
        self.tidy(tenant);
        self.give(tenant);
        Some((tenant, sender))
    }

    /// Of the tenants that wait and have the fewest turns, the first after the one that had the last.
    fn next_tenant(&self) -> Option<TenantId> {
        let after = |tenant: TenantId| tenant.0.wrapping_sub(self.last.0).wrapping_sub(1);
        let rank = |tenant: TenantId| (self.taken.get(&tenant).copied().unwrap_or(0), after(tenant));
        self.waiting.keys().copied().min_by_key(|&tenant| rank(tenant))
    }

    /// Forgets a tenant of whom nobody waits.
    fn tidy(&mut self, tenant: TenantId) {
        if self.waiting.get(&tenant).is_some_and(BTreeMap::is_empty) {
            self.waiting.remove(&tenant);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = self.turns.lock().pass_on(self.tenant);
        if let Some((tenant, sender)) = next {
            // Who has just given up sends it back, and so passes it on.
            drop(sender.send(self.turns.permit(tenant)));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        if let Some(waiting) = state.waiting.get_mut(&self.tenant) {
            waiting.remove(&self.number);
            state.tidy(self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt as _;

    use super::*;

    type Waiting<'a> = Pin<Box<dyn Future<Output = Permit> + 'a>>;

    /// Tenants that wait for turns in this order, all of which are taken.
    fn waiting<'a>(turns: &'a Turns, tenants: &[u32]) -> Vec<(u32, Waiting<'a>)> {
        let queue = |&tenant: &u32| {
            let mut waiting: Waiting<'a> = Box::pin(turns.take(TenantId(tenant)));
            assert!(waiting.as_mut().now_or_never().is_none(), "a turn is free");
            (tenant, waiting)
        };
        tenants.iter().map(queue).collect()
    }

    /// The tenant whose turn it is now, and the turn.
    fn served(waiting: &mut Vec<(u32, Waiting<'_>)>) -> Option<(u32, Permit)> {
        let ready = |(at, (tenant, waiting)): (usize, &mut (u32, Waiting<'_>))| {
            Some((at, *tenant, waiting.as_mut().now_or_never()?))
        };
        let (at, tenant, permit) = waiting.iter_mut().enumerate().find_map(ready)?;
        drop(waiting.remove(at));
        Some((tenant, permit))
    }

    fn take(turns: &Turns, tenant: u32) -> Permit {
        turns.take(TenantId(tenant)).now_or_never().expect("a turn is free")
    }

    #[test]
    fn tenants_take_turns_whatever_one_of_them_has_queued() {
        for (count, tenants, order) in [
            (1, vec![1, 1, 1, 1, 2, 3, 2], vec![2, 3, 1, 2, 1, 1, 1]),
            (1, vec![3, 2, 1, 3], vec![2, 3, 1, 3]),
            // The other turn of the first tenant goes on all the time.
            (2, vec![1, 1, 2, 3], vec![2, 3, 1, 1]),
            (2, vec![1, 1, 1], vec![1, 1, 1]),
        ] {
            let turns = Turns::new(count);
            let mut taken: Vec<Permit> = (0..count).map(|_| take(&turns, 1)).collect();
            let mut waiting = waiting(&turns, &tenants);
            let mut served_in = Vec::new();
            while !waiting.is_empty() {
                assert!(served(&mut waiting).is_none(), "all turns are taken");
                drop(taken.pop());
                let (tenant, permit) = served(&mut waiting).expect("a turn has ended");
                served_in.push(tenant);
                taken.push(permit);
            }
            assert_eq!(served_in, order, "{count} at once, {tenants:?}");
        }
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let turns = Turns::new(1);
        let held = take(&turns, 1);
        let mut all = waiting(&turns, &[2, 3, 3]);
        // One before its turn, and one that has its turn and doesn't know yet.
        drop(all.remove(1));
        drop(held);
        drop(all.remove(0));
        let (tenant, permit) = served(&mut all).expect("the turn was passed on");
        assert_eq!((tenant, all.len()), (3, 0));
        drop(permit);
        let state = turns.lock();
        assert!(state.free == 1 && state.taken.is_empty() && state.waiting.is_empty(), "{state:?}");
    }
}
