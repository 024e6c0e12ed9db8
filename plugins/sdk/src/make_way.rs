//! Lets running sequences give way to one that waits.

use std::cmp::Reverse;

use crate::planner::{Planner, Short};
use crate::scheduler::{Sequence, Step};
use crate::starts::Blocked;

/// A plan in which running sequences are preempted so that `blocked` starts: of those that `gives_way` allows,
/// as few as make room, those of least `worth` first and among equals the latest to start. `None` if all of
/// them would not make enough, or if room isn't what it lacks. Only that one starts: what others would find
/// cached may be freed with the preempted ones.
pub fn make_way<'a, K: Ord>(
    step: &'a Step,
    blocked: &Blocked<'a>,
    gives_way: impl Fn(Sequence<'a>) -> bool,
    worth: impl Fn(Sequence<'_>) -> K,
) -> Option<Planner<'a>> {
    let victims = victims(step, blocked, gives_way, &worth);
    if victims.is_empty() {
        return None;
    }
    let mut planner = Planner::new(step);
    victims.iter().for_each(|victim| planner.preempt(*victim));
    let others = planner.go_on_by(worth);
    let started = planner.start(blocked.sequence, u32::MAX);
    (others == 0 && started.is_ok()).then_some(planner)
}

fn victims<'a, K: Ord>(
    step: &'a Step,
    blocked: &Blocked<'a>,
    gives_way: impl Fn(Sequence<'a>) -> bool,
    worth: impl Fn(Sequence<'_>) -> K,
) -> Vec<Sequence<'a>> {
    let waiting = blocked.sequence;
    if blocked.short == Short::Compute || waiting.pending_tokens() > waiting.computed_tokens() {
        return Vec::new();
    }
    let mut weaker: Vec<_> = step.running.iter().filter(|running| gives_way(*running)).enumerate().collect();
    weaker.sort_by_cached_key(|(row, running)| (worth(*running), Reverse(*row)));
    // Blocks of its prefix that sequences use now become idle if those are preempted, and starting takes
    // them.
    let prefix = waiting.computed_tokens() / step.memory.block_size.max(1);
    let in_use = i64::from(prefix.saturating_sub(waiting.idle_blocks()));
    let mut lacking = blocked.lacking_blocks + in_use;
    let mut victims = Vec::new();
    for (_, running) in weaker {
        if lacking <= 0 && !victims.is_empty() {
            break;
        }
        lacking -= i64::from(running.freeable_blocks());
        victims.push(running);
    }
    if lacking <= 0 { victims } else { Vec::new() }
}
