//! The engine's side of the prefix-cache policy: what it is asked, told, and allowed to drop.

use super::shadow::block_names;
use super::{Context, Engine, context};
use crate::guard::{Compared, Renewal};
use crate::ids::{BlockId, Micros};
use crate::kv::{Blocks, Continuity, Keep};
use crate::policy::prefix_cache::{ROWS_PER_OBSERVE, of_the_pool};
use crate::policy::{
    Answer, CacheEvents, Ended, FaultKind, FaultView, Hit, PolicyFault, PolicyKind, PrefixCachePolicy,
};
use crate::sequence::SeqIx;
use crate::trial::DivergenceKind;

/// Hits looked at again in one step; those behind keep a shorter, still valid answer until their turn.
const HITS_PER_STEP: usize = 256;
/// Flushes before `evict`, each of which may name blocks to drop.
const FLUSHES_PER_EVICTION: usize = 3;
/// Rows that a policy which knows nothing, or missed much, is told at a time beside what is new: while it hears of
/// a large pool at once every stream would stand still.
const CATCH_UP_ROWS: usize = ROWS_PER_OBSERVE;
/// Events after which a previous policy that is kept hot is told what it missed.
const BACKLOG_ROWS: usize = 4_096;

/// Events that policies are told later, or that are for others than the one in force.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// What the policy in force has yet to hear. Until it has, it can't know what may be dropped.
    behind: Behind,
    /// What the previous policy has missed. It is told in large pieces, so keeping it hot costs next
    /// to nothing; telling it everything at a rollback instead would leave blocks in its books that
    /// are long gone.
    backlog: CacheEvents,
    /// What happened since `begin_priming`.
    priming: Option<CacheEvents>,
    /// Leading events of the next flush that are older than that.
    priming_from: usize,
    /// More happened than is worth keeping: the primed policy must be told everything again.
    priming_overflowed: bool,
    /// What a shadow that just came knows.
    pub shadow_renewed: Option<Renewal>,
}

impl Feed {
    /// Whether the policy in force has yet to hear things.
    pub fn has_more(&self) -> bool {
        !self.behind.is_empty()
    }
}

/// Events that are told piece by piece.
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
    /// Looks again at hits that may have changed, and asks the policy where they grew.
    pub(super) fn refresh_hits(&mut self, now: Micros) {
        self.kv.settle(&mut self.slab);
        for _ in 0..HITS_PER_STEP {
            let Some(ix) = self.kv.next_stale(&mut self.slab) else { break };
            self.kv.watch(&mut self.slab, ix);
            if self.slab[ix].is_waiting() {
                self.ask_reuse(ix, now);
                self.refresh_waiting(ix);
            }
        }
    }

    /// Asks how much of a waiting sequence's hit it may have, where the hit grew.
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
            same_session: self.kv.continuity(sequence) == Continuity::Shares,
        };
        self.note_state(PolicyKind::PrefixCache, now);
        let mut cx = context!(self, now);
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
        let answer = self.prefix.ask(&mut cx, question, || FaultView::Reuse(hit));
        let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let shadow = p.reuse(&hit).and_then(allowed)?;
            Ok(Compared::of(DivergenceKind::Reuse, &answer, &shadow, |tokens| {
                format!("reuses {tokens} of {cached} cached tokens for sequence {}", hit.id.0)
            }))
        };
        self.prefix.ask_shadow(&mut cx, compared, || FaultView::Reuse(hit));
        let state = &mut self.slab[ix].hit;
        state.asked = cached;
        state.answer = answer;
    }

    /// Asks what to keep of a sequence that ends.
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
        let mut cx = context!(self, now);
        let decisions = &mut self.decisions;
        let view = || FaultView::Retain(ended);
        let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let retention = p.retain(&ended)?;
            decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Retention(retention));
            Ok(retention)
        };
        let retention = self.prefix.ask(&mut cx, question, view);
        let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
            let shadow = p.retain(&ended)?;
            // Keeping more than there is keeps everything.
            let all = ended.prompt_tokens.saturating_add(ended.generated_tokens);
            let [live, shadow] = [retention, shadow].map(|r| (r.keep_tokens.min(all), r.ttl));
            Ok(Compared::of(DivergenceKind::Retain, &live, &shadow, |(tokens, ttl)| {
                let id = ended.id.0;
                format!("keeps {tokens} of {all} tokens of sequence {id}, ttl {} ms", ttl.0 / 1_000)
            }))
        };
        self.prefix.ask_shadow(&mut cx, compared, || FaultView::Retain(ended));
        Keep::Leading { tokens: retention.keep_tokens, ttl: retention.ttl }
    }

    /// Tells the policy what happened, and drops what it names.
    pub(super) fn flush_cache_events(&mut self, now: Micros) {
        let mut cx = context!(self, now);
        self.prefix.mend(&mut cx);
        if self.prefix.is_over_budget() {
            // It is told in the next step.
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
            let mut cx = context!(self, now);
            let (blocks, decisions) = (&self.kv.blocks, &mut self.decisions);
            let view = || FaultView::Observe(Box::new(events.clone()));
            let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let names = p.observe_all(&events)?;
                decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Blocks(names.clone()));
                if caught_up { only_idle(blocks, names) } else { Ok(Vec::new()) }
            };
            names = self.prefix.ask(&mut cx, question, view);
        }
        if self.prefix.has_shadow() {
            self.shadow_observe(for_shadow.as_ref().unwrap_or(&events), same.then_some(&names), now);
        }
        for name in names {
            if self.kv.blocks.is_idle(name) {
                self.counters.evicted_blocks += u64::from(self.kv.drop_cached(name, now));
            }
        }
        events.clear();
        if self.kv.blocks.events.is_empty() {
            self.kv.blocks.events = events;
        }
    }

    /// The same before an operator's command that changes who listens: also where the policy rests, or what comes next
    /// would be told apart from what it follows.
    pub(super) fn flush_before_command(&mut self, now: Micros) {
        self.prefix.begin_step();
        self.flush_cache_events(now);
    }

    /// Whether the policy in force is told something else than what just happened.
    fn is_told_otherwise(&self) -> bool {
        self.prefix.renewed.is_some() || self.feed.has_more()
    }

    /// What a policy that has yet to hear things is told now, given what just happened.
    fn catch_up(&mut self, events: CacheEvents, now: Micros) -> CacheEvents {
        let missed = match self.prefix.renewed.take() {
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
        // More than what is new, or it would stay behind.
        self.feed.behind.next(events.len() + CATCH_UP_ROWS)
    }

    /// The policy in force is about to leave: should it come back, it begins afresh where it has not heard all.
    pub(super) fn stop_catching_up(&mut self) {
        if self.feed.has_more() {
            self.feed.behind = Behind::default();
            self.prefix.renewed = Some(Renewal::Blank);
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

    /// What a shadow is told where that is not `events`, which is what happened since the last flush.
    fn events_for_shadow(&mut self, events: &CacheEvents, now: Micros) -> Option<CacheEvents> {
        match self.feed.shadow_renewed.take() {
            // The live one is told something else.
            None if self.prefix.has_shadow() && self.is_told_otherwise() => Some(events.clone()),
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
        let comes_back = self.prefix.renewed == Some(Renewal::CameBack);
        if !(self.prefix.has_hot_previous() || comes_back) {
            self.feed.backlog.clear();
            return;
        }
        self.feed.backlog.extend_from(events, 0);
        if !comes_back && self.feed.backlog.len() >= BACKLOG_ROWS {
            self.feed.backlog.memory = self.kv.blocks.memory();
            let backlog = std::mem::take(&mut self.feed.backlog);
            self.prefix.tell_previous(|p| p.observe_all(&backlog));
        }
    }

    /// A new policy takes over: what the previous one missed begins now.
    pub(super) fn restart_feed(&mut self) {
        self.feed.backlog.clear();
    }

    /// Whether `begin_priming` was called since the last swap.
    pub(super) fn is_primed(&self) -> bool {
        self.feed.priming.is_some()
    }

    /// Starts to keep what happens for a policy that is told everything else meanwhile.
    pub(super) fn start_priming(&mut self) -> CacheEvents {
        let now = self.clock;
        self.flush_before_command(now);
        // What that flush dropped stands in neither: it isn't cached any more, and is no news.
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

    /// Drops cached blocks until `want` are free: those the policy names first, then the least
    /// recently used.
    pub(super) fn make_room(&mut self, want: u32, now: Micros) {
        if self.kv.blocks.free() >= want {
            return;
        }
        // What a flush drops is told in the next one: the policy must not name a block that is gone.
        for _ in 0..FLUSHES_PER_EVICTION {
            self.flush_cache_events(now);
            if self.kv.blocks.events.is_empty() {
                break;
            }
        }
        // A policy that rests, or names more at every flush, can't know yet what may be dropped.
        let untold = !self.kv.blocks.events.is_empty();
        let before = self.kv.blocks.free();
        if before < want {
            let need = want - before;
            self.note_state(PolicyKind::PrefixCache, now);
            let mut cx = context!(self, now);
            let (blocks, decisions) = (&self.kv.blocks, &mut self.decisions);
            let view = || FaultView::Evict { now, need };
            let question = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let names = p.evict(now, need)?;
                decisions.note(PolicyKind::PrefixCache, p.info(), view, || Answer::Blocks(names.clone()));
                only_idle(blocks, names)
            };
            let names = match untold || self.feed.has_more() {
                false => self.prefix.ask(&mut cx, question, view),
                true => self.prefix.ask_builtin(question),
            };
            let compared = |p: &mut (dyn PrefixCachePolicy + 'static)| {
                let shadow = p.evict(now, need).and_then(|names| only_idle(blocks, names))?;
                let [live, shadow] = [&names, &shadow].map(|names| first(names, need));
                Ok(Compared::of(DivergenceKind::Evict, &live, &shadow, |names| block_names("evicts", names)))
            };
            if !untold {
                self.prefix.ask_shadow(&mut cx, compared, || FaultView::Evict { now, need });
            }
            for name in names {
                if self.kv.blocks.free() < want && self.kv.blocks.is_idle(name) {
                    self.kv.drop_cached(name, now);
                }
            }
            self.kv.drop_oldest(want, now);
            self.counters.evicted_blocks += u64::from(self.kv.blocks.free() - before);
        }
        assert!(self.kv.blocks.free() >= want, "cached blocks can always be dropped");
    }
}

/// The first `need` blocks of an answer, as a set: all of them go.
fn first(names: &[BlockId], need: u32) -> Vec<BlockId> {
    let mut set = names[..names.len().min(need as usize)].to_vec();
    set.sort_unstable();
    set
}

/// Blocks that a policy may drop; a name of anything else is a fault.
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
