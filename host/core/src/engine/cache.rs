//! The engine's side of the prefix-cache policy: its calls, its events, and what it may drop.

use super::Engine;
use super::shadow::block_names;
use crate::guard::{Compared, Renewal};
use crate::ids::{AdapterId, BlockId, Micros};
use crate::kv::cached::CachedBlock;
use crate::kv::{Blocks, Continuity, Fate, Keep};
use crate::policy::prefix_cache::{ROWS_PER_OBSERVE, of_the_pool};
use crate::policy::{
    Answer, CacheEvents, Ended, FaultKind, FaultView, Hit, PolicyFault, PolicyKind, PrefixCachePolicy,
};
use crate::sequence::SeqIx;
use crate::trial::DivergenceKind;

/// Hits reexamined in one step; the others keep a shorter but valid answer until their turn.
const HITS_PER_STEP: usize = 256;
/// Flushes before `evict`, each of which may name blocks to drop.
const FLUSHES_PER_EVICTION: usize = 3;
/// Rows of backlog sent per flush, beside the new events, to a policy that knows nothing or missed much:
/// sending it a large pool at once would stall every stream.
const CATCH_UP_ROWS: usize = ROWS_PER_OBSERVE;
/// Missed events after which a previous policy that is kept up to date receives them.
const BACKLOG_ROWS: usize = 4_096;

/// What emptying the cache, or forgetting a part of it, dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Blocks of the pool that became free.
    pub cached: u32,
    /// Blocks of the second level.
    pub offloaded: u32,
}

/// Events that policies receive later, or that are for other policies than the live one.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// What the live policy has yet to receive. Until it has, it can't know what may be dropped.
    behind: Behind,
    /// What the previous policy missed. It receives that in large pieces, so keeping it up to date costs next
    /// to nothing. Sending it all cached blocks at a rollback instead would leave blocks in its books that
    /// are long gone.
    backlog: CacheEvents,
    /// What happened since `begin_priming`.
    priming: Option<CacheEvents>,
    /// Leading events of the next flush that are older than that.
    priming_from: usize,
    /// More happened than is worth keeping: the primed policy must receive all cached blocks again.
    priming_overflowed: bool,
    /// What a new shadow knows.
    pub shadow_renewed: Option<Renewal>,
}

impl Feed {
    /// Whether the live policy has yet to receive events.
    pub fn has_more(&self) -> bool {
        !self.behind.is_empty()
    }
}

/// Events that are sent piece by piece.
#[derive(Debug, Default)]
struct Behind {
    events: CacheEvents,
    told: usize,
}

impl Behind {
    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn next(&mut self, rows: usize) -> CacheEvents {
        let piece = self.events.piece(self.told, rows);
        self.told += piece.len();
        if self.told == self.events.len() {
            *self = Self::default();
        }
        piece
    }
}

impl Engine {
    /// Reexamines hits that may have changed, and calls `reuse` for those that grew.
    pub(super) fn refresh_hits(&mut self, now: Micros) {
        self.kv.settle(&mut self.slab);
        for _ in 0..HITS_PER_STEP {
            let Some(ix) = self.kv.next_stale(&mut self.slab) else { break };
            match self.slab[ix].is_waiting() {
                true => self.examine_hit(ix, now),
                false => self.kv.watch(&mut self.slab, ix),
            }
        }
    }

    /// Looks up what a waiting sequence would find, calls `reuse` if that grew, and shows it.
    pub(super) fn examine_hit(&mut self, ix: SeqIx, now: Micros) {
        self.kv.watch(&mut self.slab, ix);
        self.ask_reuse(ix, now);
        self.refresh_waiting(ix);
    }

    /// Calls `reuse` for a waiting sequence whose hit grew.
    pub(super) fn ask_reuse(&mut self, ix: SeqIx, now: Micros) {
        let sequence = &self.slab[ix];
        let cached = self.kv.cached_tokens(sequence);
        if cached <= sequence.hit.asked {
            return;
        }
        let hit = Hit {
            now,
            id: sequence.id,
            tenant: sequence.request.tenant,
            session: sequence.request.session,
            prompt_tokens: sequence.prompt_len,
            cached_tokens: cached,
            same_session: self.kv.continuity(sequence, cached) == Continuity::Shares,
        };
        self.note_state(PolicyKind::PrefixCache, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let decisions = &mut self.decisions;
        let allowed = |reuse: u32| {
            if reuse > cached {
                let message = format!("it reuses {reuse} tokens of {cached} that are cached");
                return Err(PolicyFault::new(FaultKind::InvalidDecision, message));
            }
            Ok(reuse)
        };
        let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let reuse = p.reuse(&hit)?;
            let view = || FaultView::Reuse(hit);
            decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Reuse(reuse));
            allowed(reuse)
        };
        let answer = self.policies.prefix.ask(&mut cx, question, || FaultView::Reuse(hit));
        let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let shadow = p.reuse(&hit).and_then(allowed)?;
            Ok(Compared::of(DivergenceKind::Reuse, &answer, &shadow, |tokens| {
                format!("reuses {tokens} of {cached} cached tokens for sequence {}", hit.id.0)
            }))
        };
        self.policies.prefix.ask_shadow(&mut cx, compared, || FaultView::Reuse(hit));
        let state = &mut self.slab[ix].hit;
        state.asked = cached;
        state.answer = answer;
    }

    /// Calls `retain` for a sequence that ends.
    pub(super) fn ask_retain(&mut self, ix: SeqIx, now: Micros) -> Keep {
        let sequence = &self.slab[ix];
        if !self.config.prefix_caching || sequence.table.is_empty() {
            return Keep::Indexed;
        }
        let ended = Ended {
            now,
            id: sequence.id,
            tenant: sequence.request.tenant,
            session: sequence.request.session,
            prompt_tokens: sequence.prompt_len,
            generated_tokens: sequence.generated,
            reused_tokens: sequence.reused,
            memory: self.kv.blocks.memory(),
        };
        self.note_state(PolicyKind::PrefixCache, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let decisions = &mut self.decisions;
        let view = || FaultView::Retain(ended);
        let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let retention = p.retain(&ended)?;
            decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Retention(retention));
            Ok(retention)
        };
        let retention = self.policies.prefix.ask(&mut cx, question, view);
        let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let shadow = p.retain(&ended)?;
            // More than there is means everything.
            let all = ended.prompt_tokens.saturating_add(ended.generated_tokens);
            let [live, shadow] = [retention, shadow].map(|r| (r.keep_tokens.min(all), r.ttl));
            Ok(Compared::of(DivergenceKind::Retain, &live, &shadow, |(tokens, ttl)| {
                let id = ended.id.0;
                format!("keeps {tokens} of {all} tokens of sequence {id}, ttl {} ms", ttl.0 / 1_000)
            }))
        };
        self.policies.prefix.ask_shadow(&mut cx, compared, || FaultView::Retain(ended));
        Keep::Leading { tokens: retention.keep_tokens, ttl: retention.ttl }
    }

    /// Sends the policy what happened, and drops what it names.
    pub(super) fn flush_cache_events(&mut self, now: Micros) {
        let mut cx = self.outbox.context(self.view.number, now);
        self.policies.prefix.mend(&mut cx);
        if self.policies.prefix.is_over_budget() {
            // It receives them in the next step.
            return;
        }
        self.note_state(PolicyKind::PrefixCache, now);
        let mut events = std::mem::take(&mut self.kv.blocks.events);
        self.feed_others(&events);
        let for_shadow = self.events_for_shadow(&events, now);
        let same = !self.is_told_otherwise() && for_shadow.is_none();
        if self.is_told_otherwise() {
            events = self.catch_up(events, now);
        }
        let caught_up = !self.feed.has_more();
        let mut names = Vec::new();
        if !events.is_empty() {
            events.memory = self.kv.blocks.memory();
            let mut cx = self.outbox.context(self.view.number, now);
            let (blocks, decisions) = (&self.kv.blocks, &mut self.decisions);
            let view = || FaultView::Observe(Box::new(events.clone()));
            let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let names = p.observe_all(&events)?;
                decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Blocks(names.clone()));
                if caught_up { only_idle(blocks, names) } else { Ok(Vec::new()) }
            };
            names = self.policies.prefix.ask(&mut cx, question, view);
        }
        if self.policies.prefix.has_shadow() {
            self.shadow_observe(for_shadow.as_ref().unwrap_or(&events), same.then_some(&names), now);
        }
        for name in names {
            if self.kv.blocks.is_idle(name) {
                self.counters.evicted_blocks += u64::from(self.kv.drop_cached(name, Fate::Forgotten, now));
            }
        }
        events.clear();
        if self.kv.blocks.events.is_empty() {
            self.kv.blocks.events = events;
        }
    }

    /// Drops all cached blocks without holders, the prompts kept behind them, and the second level, whatever the policy
    /// wants. Blocks of running requests stay, and can still be found.
    pub fn empty_cache(&mut self, now: Micros) -> Emptied {
        let now = self.tick(now);
        let (_, offloaded) = self.kv.offload_slots();
        let cached = self.kv.drop_oldest(self.config.total_blocks, Fate::Forgotten, now);
        self.kv.empty_offload();
        self.counters.evicted_blocks += u64::from(cached);
        self.note_load(now);
        Emptied { cached, offloaded }
    }

    /// Drops what is cached of an adapter that no request will have again, in both levels, with the prompts kept behind it,
    /// whatever the policy wants: nothing could find it. None of its requests may be live.
    pub fn forget_adapter(&mut self, adapter: AdapterId, now: Micros) -> Emptied {
        let now = self.tick(now);
        let (_, before) = self.kv.offload_slots();
        let cached = self.kv.forget_adapter(adapter, now);
        let (_, after) = self.kv.offload_slots();
        self.counters.evicted_blocks += u64::from(cached);
        self.note_load(now);
        Emptied { cached, offloaded: before - after }
    }

    /// Makes blocks that an earlier engine listed cached ones of this one, which has done nothing yet, and returns where:
    /// `None` for those that don't fit, whose time is over, or that don't follow a restored one. The driver must fill them
    /// with their keys and values before the first step, or call `empty_cache`. The policy receives them over several
    /// steps.
    pub fn restore_cache(&mut self, list: &[CachedBlock], now: Micros) -> Vec<Option<BlockId>> {
        let is_new = self.counters.submitted == 0 && self.kv.blocks.free() == self.config.total_blocks;
        assert!(is_new, "the engine is new");
        let now = self.tick(now);
        let places = self.kv.restore(list, now);
        self.kv.blocks.events.clear();
        self.policies.prefix.renewed = Some(Renewal::Blank);
        self.note_load(now);
        places
    }

    /// Flushes before an operator's command that replaces a receiver, even if the policy gets no more calls
    /// in this step: otherwise the next events would be cut off from those before them.
    pub(super) fn flush_before_command(&mut self, now: Micros) {
        self.policies.prefix.begin_step();
        self.flush_cache_events(now);
    }

    /// Whether the live policy receives something else than what just happened.
    fn is_told_otherwise(&self) -> bool {
        self.policies.prefix.renewed.is_some() || self.feed.has_more()
    }

    /// What a policy that is catching up receives next, given what just happened.
    fn catch_up(&mut self, events: CacheEvents, now: Micros) -> CacheEvents {
        let missed = match self.policies.prefix.renewed.take() {
            None => {
                self.feed.behind.events.extend_from(&events, 0);
                None
            }
            Some(Renewal::Blank) => Some(self.kv.blocks.idle_events(now)),
            Some(Renewal::Primed) => Some(self.missed_while_primed(now)),
            Some(Renewal::CameBack) => Some(std::mem::take(&mut self.feed.backlog)),
        };
        if let Some(missed) = missed {
            self.feed.behind = Behind { events: missed, told: 0 };
        }
        // More than the new events, or it would never catch up.
        self.feed.behind.next(events.len() + CATCH_UP_ROWS)
    }

    /// The live policy is about to be replaced. If it has not received everything and comes back, it is
    /// restarted.
    pub(super) fn stop_catching_up(&mut self) {
        if self.feed.has_more() {
            self.feed.behind = Behind::default();
            self.policies.prefix.renewed = Some(Renewal::Blank);
        }
    }

    /// What happened since `begin_priming`.
    fn missed_while_primed(&mut self, now: Micros) -> CacheEvents {
        let overflowed = std::mem::take(&mut self.feed.priming_overflowed);
        match self.feed.priming.take() {
            Some(missed) if !overflowed => missed,
            _ => self.kv.blocks.resync_events(now),
        }
    }

    /// What a shadow receives if that is not `events`, which is what happened since the last flush.
    fn events_for_shadow(&mut self, events: &CacheEvents, now: Micros) -> Option<CacheEvents> {
        match self.feed.shadow_renewed.take() {
            // The live policy receives something else.
            None if self.policies.prefix.has_shadow() && self.is_told_otherwise() => Some(events.clone()),
            None => None,
            Some(Renewal::Primed) => Some(self.missed_while_primed(now)),
            Some(Renewal::Blank | Renewal::CameBack) => Some(self.kv.blocks.idle_events(now)),
        }
    }

    /// Keeps events for the previous policy, and for one that is being primed.
    fn feed_others(&mut self, events: &CacheEvents) {
        if let Some(priming) = &mut self.feed.priming {
            priming.extend_from(events, std::mem::take(&mut self.feed.priming_from));
            if priming.len() > 16 * self.config.total_blocks as usize + BACKLOG_ROWS {
                priming.clear();
                self.feed.priming_overflowed = true;
            }
        }
        let comes_back = self.policies.prefix.renewed == Some(Renewal::CameBack);
        if !(self.policies.prefix.has_hot_previous() || comes_back) {
            self.feed.backlog.clear();
            return;
        }
        self.feed.backlog.extend_from(events, 0);
        if !comes_back && self.feed.backlog.len() >= BACKLOG_ROWS {
            self.feed.backlog.memory = self.kv.blocks.memory();
            let backlog = std::mem::take(&mut self.feed.backlog);
            self.policies.prefix.tell_previous(|p| p.observe_all(&backlog));
        }
    }

    /// A new policy becomes live: the previous one's backlog starts here.
    pub(super) fn restart_feed(&mut self) {
        self.feed.backlog.clear();
    }

    /// Whether `begin_priming` was called since the last swap.
    pub(super) fn is_primed(&self) -> bool {
        self.feed.priming.is_some()
    }

    /// Starts to keep events for a policy that is being primed with everything else.
    pub(super) fn start_priming(&mut self) -> CacheEvents {
        let now = self.clock;
        self.flush_before_command(now);
        // Blocks dropped by that flush are in neither: they aren't cached any more, and they are no news.
        self.feed.priming = Some(CacheEvents::default());
        self.feed.priming_from = self.kv.blocks.events.len();
        self.feed.priming_overflowed = false;
        let cached = CacheEvents { memory: self.kv.blocks.memory(), ..self.kv.blocks.idle_events(now) };
        self.decisions.note_priming(&cached);
        cached
    }

    /// Forgets what `start_priming` began.
    pub(super) fn stop_priming(&mut self) {
        self.feed.priming = None;
        self.feed.priming_overflowed = false;
    }

    /// Evicts cached blocks until `want` are free: those the policy names first, then the least recently used. They go to
    /// the second level, if there is one.
    pub(super) fn make_room(&mut self, want: u32, now: Micros) {
        if self.kv.blocks.free() >= want {
            return;
        }
        // Blocks dropped by a flush are reported in the next one: the policy must not name a block that is
        // gone.
        for _ in 0..FLUSHES_PER_EVICTION {
            self.flush_cache_events(now);
            if self.kv.blocks.events.is_empty() {
                break;
            }
        }
        let before = self.kv.blocks.free();
        if before < want {
            let need = want - before;
            self.note_state(PolicyKind::PrefixCache, now);
            // A policy without calls left in this step, one that names more in every flush, or one that came back in
            // the last one and has yet to receive what it missed, can't know what may be dropped.
            let untold = !self.kv.blocks.events.is_empty() || self.policies.prefix.renewed.is_some();
            let mut cx = self.outbox.context(self.view.number, now);
            let (blocks, decisions) = (&self.kv.blocks, &mut self.decisions);
            let view = || FaultView::Evict { now, need };
            let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let names = p.evict(now, need)?;
                decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Blocks(names.clone()));
                only_idle(blocks, names)
            };
            let names = match untold || self.feed.has_more() {
                false => self.policies.prefix.ask(&mut cx, question, view),
                true => self.policies.prefix.ask_builtin(question),
            };
            let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let shadow = p.evict(now, need).and_then(|names| only_idle(blocks, names))?;
                let [live, shadow] = [&names, &shadow].map(|names| first(names, need));
                Ok(Compared::of(DivergenceKind::Evict, &live, &shadow, |names| block_names("evicts", names)))
            };
            if !untold {
                self.policies.prefix.ask_shadow(&mut cx, compared, || FaultView::Evict { now, need });
            }
            for name in names {
                if self.kv.blocks.free() < want && self.kv.blocks.is_idle(name) {
                    self.kv.drop_cached(name, Fate::Evicted, now);
                }
            }
            self.kv.drop_oldest(want, Fate::Evicted, now);
            self.counters.evicted_blocks += u64::from(self.kv.blocks.free() - before);
        }
        assert!(self.kv.blocks.free() >= want, "cached blocks can always be dropped");
    }
}

/// The first `need` blocks of an answer as a set, because all of them are dropped.
fn first(names: &[BlockId], need: u32) -> Vec<BlockId> {
    let mut set = names[..names.len().min(need as usize)].to_vec();
    set.sort_unstable();
    set
}

/// Blocks that a policy may drop; naming any other is a fault.
pub(super) fn only_idle(blocks: &Blocks, names: Vec<BlockId>) -> Result<Vec<BlockId>, PolicyFault> {
    let names = of_the_pool(names, blocks.memory().total_blocks)?;
    match names.iter().find(|name| !blocks.is_idle(**name)) {
        None => Ok(names),
        Some(BlockId(name)) => {
            let message = format!("it drops block {name}, which is not idle");
            Err(PolicyFault::new(FaultKind::InvalidDecision, message))
        }
    }
}
