//! Which hits the miniature tells a policy are its own session's.

use super::*;
use crate::{NoConfig, Policy};

/// Keeps everything, and records which hits were flagged as its own session's.
#[derive(Default)]
struct Listener(Vec<bool>);

impl Policy for Listener {
    type Config = NoConfig;
    const NAME: &'static str = "listener";
    const VERSION: &'static str = "0.1.0";
    const DESCRIPTION: &'static str = "Listens.";

    fn new(_config: NoConfig) -> Result<Self, String> {
        Ok(Self::default())
    }
}

impl PrefixCache for Listener {
    fn reuse(&mut self, hit: &Hit) -> u32 {
        self.0.push(hit.same_session);
        hit.cached_tokens
    }

    fn observe(&mut self, _events: &Events) -> Vec<BlockId> {
        Vec::new()
    }

    fn evict(&mut self, _now: Micros, _need: u32) -> Vec<BlockId> {
        Vec::new()
    }
}

#[test]
fn a_hit_is_the_sessions_own_from_the_first_block_that_it_computed() {
    let mut host = CacheHost::new(Listener::default(), 16, 50);
    let turn = |session, text, blocks| Turn { session: SessionId(session), ..Turn::new("any", text, blocks) };
    let turns = [(1, 7, 2), (2, 7, 2), (2, 7, 3), (2, 7, 4), (2, 7, 2), (2, 7, 4), (0, 7, 4), (0, 7, 4)];
    for (session, text, blocks) in turns {
        host.play(&turn(session, text, blocks));
    }
    // Session 1 computed two blocks and session 2 the others; no session has any.
    assert_eq!(host.policy.0, [false, false, true, false, false, false, false]);
    for (session, text, blocks) in [(1, 8, 2), (1, 8, 2), (1, 7, 2), (1, 7, 2)] {
        host.play(&turn(session, text, blocks));
    }
    // A text of its own; then one that only its turn before the last had.
    assert_eq!(host.policy.0[7..], [true, false, false]);
}

#[test]
fn a_hit_is_the_sessions_own_before_the_turn_that_computed_it_ends() {
    let mut host = CacheHost::new(Listener::default(), 16, 50);
    let turn = |session, blocks| Turn { session: SessionId(session), ..Turn::new("any", 7, blocks) };
    let first = host.start(&turn(1, 2)).expect("there is room");
    for (session, blocks) in [(1, 3), (2, 3)] {
        host.play(&turn(session, blocks));
    }
    assert_eq!(host.policy.0, [true, false]);
    host.end(first);
    assert!(host.open.is_empty());
}
