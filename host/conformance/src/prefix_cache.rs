//! Checks of prefix-cache policies alone: they name idle blocks, enough of them, and recover when a swap
//! sends them every cached block at once.

use std::collections::{BTreeMap, BTreeSet};

use infer_core::policy::{CacheEventKind, CacheEvents, Ended, Hit, Memory, PolicyFault, PrefixCachePolicy};
use infer_core::testing::SplitMix;
use infer_core::{BlockId, Micros, SequenceId, SessionId, TenantId};

use crate::run::Run;
use crate::sheet::{Check, Sheet};
use crate::transcript::Exchange;

const CONSISTENT: u64 = 300;
const HOSTILE: u64 = 100;
/// Caches that a swap hands over: what 32 sequences of 4,096 tokens fill, and that of a large device. The
/// length of a prefix in them.
const USUAL_CACHE: u32 = 8_192;
const LARGEST_CACHE: u32 = 100_000;
const PREFIX_BLOCKS: u32 = 100;
const FIRST: u32 = u32::MAX;

pub(crate) fn judge_views(policy: &mut dyn PrefixCachePolicy, seed: u64, sheet: &mut Sheet) {
    let mut rng = SplitMix(seed);
    for nth in 0..CONSISTENT {
        let prompt_tokens = rng.between(1, 4_096) as u32;
        let hit = hit(&mut rng, prompt_tokens);
        match policy.reuse(&hit) {
            Ok(tokens) if tokens > hit.cached_tokens => sheet.fail(Check::Views, || {
                format!("view {nth}: it reuses {tokens} tokens of {} that are cached", hit.cached_tokens)
            }),
            Ok(_) => {}
            Err(fault) => failed(policy, Check::Views, nth, &fault, &format!("{hit:?}"), sheet),
        }
        let ended = ended(&mut rng, prompt_tokens);
        if let Err(fault) = policy.retain(&ended) {
            failed(policy, Check::Views, nth, &fault, &format!("{ended:?}"), sheet);
        }
    }
    sheet.done(
        Check::Views,
        format!("{CONSISTENT} hits and ended sequences; it never reuses more than is cached"),
    );
    for nth in 0..HOSTILE {
        let events = hostile(&mut rng);
        let shown = format!("{} events of extreme numbers", events.len());
        let asked = policy.observe(&events).and_then(|_| policy.evict(Micros(u64::MAX), u32::MAX));
        if let Err(fault) = asked {
            failed(policy, Check::Hostile, nth, &fault, &shown, sheet);
        }
    }
    sheet.done(
        Check::Hostile,
        format!("{HOSTILE} reports of extreme and contradictory events, each answered"),
    );
    if let Err(fault) = policy.restart() {
        sheet.fail(Check::Resync, || fault.to_string());
        return;
    }
    judge_resync(policy, sheet);
}

fn failed(
    policy: &mut dyn PrefixCachePolicy,
    check: Check,
    nth: u64,
    fault: &PolicyFault,
    shown: &str,
    sheet: &mut Sheet,
) {
    sheet.fail(check.of_fault(fault.kind), || format!("view {nth}: {fault}; it was shown {shown}"));
    if let Err(fault) = policy.restart() {
        sheet.fail(check, || format!("view {nth}: {fault}"));
    }
}

/// A new instance receives a whole cache, in pieces as from a host, and must name blocks of it.
fn judge_resync(policy: &mut dyn PrefixCachePolicy, sheet: &mut Sheet) {
    for blocks in [USUAL_CACHE, LARGEST_CACHE] {
        match resync(policy, blocks, sheet) {
            Ok(()) => sheet.done(
                Check::Resync,
                format!("after receiving {blocks} cached blocks it names idle ones, and enough of them"),
            ),
            Err(fault) => sheet.fail(Check::Resync.of_fault(fault.kind), || {
                format!("on a cache of {blocks} blocks: {fault}")
            }),
        }
        if let Err(fault) = policy.restart() {
            sheet.fail(Check::Resync, || fault.to_string());
            return;
        }
    }
}

fn resync(policy: &mut dyn PrefixCachePolicy, blocks: u32, sheet: &mut Sheet) -> Result<(), PolicyFault> {
    let events = idle_cache(blocks, PREFIX_BLOCKS);
    let mut book = Book::default();
    book.learn(&events);
    book.judge(&policy.observe_all(&events)?, 0, "after receiving the whole cache", Check::Resync, sheet);
    for need in [1, 64, 1_000] {
        book.judge(&policy.evict(Micros(3_000_000), need)?, need, "after a swap", Check::Resync, sheet);
    }
    Ok(())
}

pub(crate) fn judge_runs(runs: &[Run], sheet: &mut Sheet) {
    let (mut asked, mut swaps) = (0u64, 0usize);
    for run in runs {
        swaps += run.transcripts.len() - 1;
        for transcript in &run.transcripts {
            let mut book = Book::default();
            for exchange in &transcript.exchanges {
                match exchange {
                    Exchange::Observe(events, names) => {
                        book.learn(events);
                        book.judge(names, 0, run.name, Check::Evictions, sheet);
                    }
                    Exchange::Evict(_, need, names) => {
                        asked += 1;
                        book.judge(names, *need, run.name, Check::Evictions, sheet);
                    }
                    _ => {}
                }
            }
        }
    }
    sheet.done(
        Check::Evictions,
        format!("{asked} evictions across {swaps} swaps: it named idle blocks, and enough, each time"),
    );
}

/// What a policy knows: every cached block with the one before it, and which are idle.
#[derive(Default)]
struct Book {
    parents: BTreeMap<u32, u32>,
    idle: BTreeSet<u32>,
}

impl Book {
    fn learn(&mut self, events: &CacheEvents) {
        for row in 0..events.len() {
            let (kind, block) = (events.kind[row], events.block[row]);
            if kind == CacheEventKind::Dropped as u8 {
                self.parents.remove(&block);
                self.idle.remove(&block);
                continue;
            }
            self.parents.insert(block, events.parent[row]);
            if kind == CacheEventKind::Idle as u8 {
                self.idle.insert(block);
            } else {
                self.idle.remove(&block);
            }
        }
    }

    /// Named blocks must be idle and, with those that follow them, at least `need`, if there are that many.
    fn judge(&self, names: &[BlockId], need: u32, place: &str, check: Check, sheet: &mut Sheet) {
        if let Some(BlockId(name)) = names.iter().find(|name| !self.idle.contains(&name.0)) {
            let known = if self.parents.contains_key(name) { "in use" } else { "unknown to it" };
            sheet.fail(check, || format!("`{place}`: it names block {name}, which is {known}"));
        }
        let wanted = (need as usize).min(self.idle.len());
        if names.len() >= wanted && names.len() == names.iter().collect::<BTreeSet<_>>().len() {
            return;
        }
        let given = self.given_by(names);
        if given < wanted {
            sheet.fail(check, || {
                format!(
                    "`{place}`: {need} of {} idle blocks are needed, but it names {}, which frees {given}; the \
                     host has to pick the rest",
                    self.idle.len(),
                    names.len()
                )
            });
        }
    }

    /// Idle blocks that are named, or follow a named one.
    fn given_by(&self, names: &[BlockId]) -> usize {
        let named: BTreeSet<u32> = names.iter().map(|name| name.0).collect();
        let goes = |block: &&u32| {
            let mut at = **block;
            // A prefix is no longer than there are blocks.
            for _ in 0..=self.parents.len() {
                if named.contains(&at) {
                    return true;
                }
                match self.parents.get(&at) {
                    Some(&parent) if parent != FIRST => at = parent,
                    _ => return false,
                }
            }
            false
        };
        self.idle.iter().filter(goes).count()
    }
}

/// Every block of a cache of many prefixes, reported as idle, least recently used first.
pub(crate) fn idle_cache(blocks: u32, prefix_blocks: u32) -> CacheEvents {
    let memory = Memory { block_size: 16, total_blocks: blocks, free_blocks: 0, cached_blocks: blocks };
    let mut events = CacheEvents { memory, ..CacheEvents::default() };
    for block in 0..blocks {
        let depth = block % prefix_blocks;
        events.at.push(1_000_000 + u64::from(block / prefix_blocks));
        events.kind.push(CacheEventKind::Idle as u8);
        events.block.push(block);
        events.parent.push(if depth == 0 { FIRST } else { block - 1 });
        events.depth.push(depth);
        events.tenant.push(block / prefix_blocks % 3);
        events.session.push(u64::from(block / prefix_blocks));
    }
    events
}

/// A hit on some of a prompt.
pub(crate) fn hit(rng: &mut SplitMix, prompt_tokens: u32) -> Hit {
    Hit {
        now: Micros(1_000_000 + rng.below(1_000_000)),
        id: SequenceId(rng.between(1, 1_000)),
        tenant: TenantId(rng.below(4) as u32),
        session: SessionId(rng.below(10)),
        prompt_tokens,
        cached_tokens: rng.below(u64::from(prompt_tokens) + 1) as u32,
        same_session: rng.chance(50),
    }
}

fn ended(rng: &mut SplitMix, prompt_tokens: u32) -> Ended {
    let total_blocks = 1_024;
    let free_blocks = rng.below(1_024) as u32;
    Ended {
        now: Micros(1_000_000 + rng.below(1_000_000)),
        id: SequenceId(rng.between(1, 1_000)),
        tenant: TenantId(rng.below(4) as u32),
        session: SessionId(rng.below(10)),
        prompt_tokens,
        generated_tokens: rng.below(1_000) as u32,
        reused_tokens: rng.below(u64::from(prompt_tokens) + 1) as u32,
        memory: Memory {
            block_size: 16,
            total_blocks,
            free_blocks,
            cached_blocks: total_blocks - free_blocks,
        },
    }
}

/// Events of all kinds and some that don't exist, about blocks some of which don't either.
fn hostile(rng: &mut SplitMix) -> CacheEvents {
    let mut events = CacheEvents::default();
    for _ in 0..rng.below(40) {
        let number =
            |rng: &mut SplitMix| [0, 1, 2, 3, 1 << 20, u32::MAX - 1, u32::MAX][rng.below(7) as usize];
        events.at.push(rng.next_u64());
        events.kind.push(rng.below(6) as u8);
        events.block.push(number(rng));
        events.parent.push(number(rng));
        events.depth.push(number(rng));
        events.tenant.push(number(rng));
        events.session.push(rng.next_u64());
    }
    events
}
