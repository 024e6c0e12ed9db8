//! What the turns of each conversation computed, to tell whose blocks a prompt finds, and whether it continues.
//!
//! Chats begin alike: a system prompt that another session computed says nothing about this one. So a session is
//! remembered by the first block that it computed itself. Blocks that a prompt finds from there on are its session's;
//! those before it are others'. A chain hash stands for everything up to its block: 24 bytes a session, however long it
//! is, and no client text. Bounded; the longest idle session is forgotten first.
//!
//! Turns may overlap, so each that isn't over is known by the first such block, too, from the step that computed it on:
//! an entry a turn, and a look-up by the blocks that a prompt finds, however many turns its session has.
//!
//! A session that computed the common head itself can't be told from it: to that session, the head is its own. Who
//! computes a block again after it was dropped isn't asked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::ids::{SessionId, TenantId};

/// A conversation of a tenant.
type Owner = (TenantId, SessionId);

/// Conversations remembered.
const SESSIONS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// When the last turn ended, and what it left.
    turns: BTreeMap<Owner, (u64, Left)>,
    by_age: BTreeMap<u64, Owner>,
    clock: u64,
    /// First blocks of their own of turns that aren't over, by chain hash, and how many turns have them.
    open: BTreeMap<(Owner, u64), u32>,
}

/// Blocks by index, and their chain hashes.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// The first block that the session computed, at most `at`; the largest number if it computed none so far.
    own: u32,
    /// The block that later prompts are compared by: the first that the session computed, or the last before that.
    at: u32,
    hash: u64,
    /// Block 0, for prompts that end before `at`.
    first: u64,
}

/// A turn that ends. Blocks are full ones, given by their chain hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    /// Those of its prompt.
    pub prompt: &'a [u64],
    /// Those that it leaves: of its prompt, then of its output.
    pub left: &'a [u64],
    /// The first that its session computed, in this turn or another; the largest number if there is none.
    pub own: u32,
}

/// How a prompt relates to what its session left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// It finds nothing that its session is known to have computed.
    Unknown,
    /// It finds blocks that its session computed, in a turn that is over or in one that isn't.
    Shares,
    /// The last of its session's turns that are over began differently, up to the first block that the session computed.
    /// One that ends before that block is compared by its first block.
    Diverges,
}

impl Sessions {
    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Notes what a turn left. If that is nothing, the earlier note stays.
    pub fn note(&mut self, session: Owner, turn: &Turn<'_>) {
        let computed = if (turn.own as usize) < turn.left.len() { turn.own } else { u32::MAX };
        let known = self.turns.get(&session).map(|(_, left)| *left);
        let left = match known {
            Some(left) if left.own <= left.at && left.is_in(turn.prompt) => {
                // What the session computed again after it was dropped doesn't move `at`.
                Some(Left { own: left.own.min(computed), ..left })
            }
            Some(left) if !left.differs(turn.prompt) => {
                // It may be one of several outputs of a prompt, and any of them may be continued.
                Left::of(&turn.left[..turn.left.len().min(turn.prompt.len())], computed)
            }
            _ => Left::of(turn.left, computed),
        };
        let Some(left) = left.filter(|_| session.1 != SessionId(0) && !turn.left.is_empty()) else { return };
        self.clock += 1;
        if let Some((age, _)) = self.turns.insert(session, (self.clock, left)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, session);
        if self.turns.len() > SESSIONS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.turns.remove(&oldest);
        }
    }

    /// Compares the full blocks of a prompt, of which the first `found` are cached, with what its session left.
    pub fn compare(&self, session: Owner, prompt: &[u64], found: u32) -> Continuity {
        if self.own(session, prompt, found).is_some() {
            return Continuity::Shares;
        }
        match self.turns.get(&session) {
            Some((_, left)) if left.differs(prompt) => Continuity::Diverges,
            _ => Continuity::Unknown,
        }
    }

    /// The first of a prompt's cached blocks that its session is known to have computed.
    pub fn own(&self, session: Owner, prompt: &[u64], found: u32) -> Option<u32> {
        let of_the_last = self
            .turns
            .get(&session)
            .filter(|(_, left)| left.is_in(prompt) && found > left.own)
            .map(|(_, left)| left.own);
        let of_an_open_one = self.own_of_open(session, &prompt[..prompt.len().min(found as usize)]);
        of_the_last.into_iter().chain(of_an_open_one).min()
    }

    /// The first of these blocks that a turn has as the first of its own.
    fn own_of_open(&self, session: Owner, found: &[u64]) -> Option<u32> {
        self.open.range((session, 0)..=(session, u64::MAX)).next()?;
        found.iter().position(|&hash| self.open.contains_key(&(session, hash))).map(|at| at as u32)
    }

    /// A turn that isn't over has this block as the first of its own; so far it had `before`, or none.
    pub fn open(&mut self, session: Owner, before: Option<u64>, hash: u64) {
        if let Some(before) = before {
            self.close(session, before);
        }
        if session.1 != SessionId(0) {
            *self.open.entry((session, hash)).or_default() += 1;
        }
    }

    /// A turn that has this block as the first of its own is over.
    pub fn close(&mut self, session: Owner, hash: u64) {
        if let Entry::Occupied(mut turns) = self.open.entry((session, hash)) {
            *turns.get_mut() -= 1;
            if *turns.get() == 0 {
                turns.remove();
            }
        }
    }

    pub fn assert_none_open(&self) {
        assert!(self.open.is_empty(), "turns that aren't over: {:?}", self.open);
    }
}

impl Left {
    /// What these blocks leave if the session computed those from `computed` on; `None` if there are none.
    fn of(blocks: &[u64], computed: u32) -> Option<Self> {
        let last = blocks.len().checked_sub(1)? as u32;
        let at = computed.min(last);
        let own = if computed <= last { computed } else { u32::MAX };
        Some(Self { own, at, hash: blocks[at as usize], first: blocks[0] })
    }

    /// Whether a prompt begins like this, up to `at`.
    fn is_in(&self, prompt: &[u64]) -> bool {
        prompt.get(self.at as usize) == Some(&self.hash)
    }

    /// Whether it begins differently. One that ends before `at` may do neither.
    fn differs(&self, prompt: &[u64]) -> bool {
        match prompt.get(self.at as usize) {
            Some(&hash) => hash != self.hash,
            None => prompt.first().is_some_and(|&first| first != self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(session: u64) -> Owner {
        (TenantId(1), SessionId(session))
    }

    /// A turn whose prompt fills `prompt` of the blocks that it leaves, of which `own` is the first that it computed.
    fn turn(left: &[u64], prompt: usize, own: u32) -> Turn<'_> {
        Turn { prompt: &left[..prompt], left, own }
    }

    /// A session whose first turn found blocks 1 and 2 and computed 3 to 5, the last of them as output.
    fn chat() -> Sessions {
        let mut sessions = Sessions::default();
        sessions.note(of(7), &turn(&[1, 2, 3, 4, 5], 4, 2));
        sessions
    }

    #[test]
    fn a_prompt_is_compared_up_to_the_first_block_that_its_session_computed() {
        let sessions = chat();
        for (session, prompt, found, expected) in [
            (7, &[1, 2, 3, 4, 5, 6][..], 5, Continuity::Shares),
            (7, &[1, 2, 3, 9], 3, Continuity::Shares),
            (7, &[1, 2, 3, 4], 2, Continuity::Unknown),
            (7, &[1, 2, 9, 9], 2, Continuity::Diverges),
            (7, &[9, 9, 9, 9], 0, Continuity::Diverges),
            (7, &[1, 2], 2, Continuity::Unknown),
            (7, &[9], 0, Continuity::Diverges),
            (7, &[], 0, Continuity::Unknown),
            (8, &[1, 2, 3], 3, Continuity::Unknown),
        ] {
            assert_eq!(
                sessions.compare(of(session), prompt, found),
                expected,
                "{session} {prompt:?} {found}"
            );
        }
    }

    #[test]
    fn a_turn_that_diverges_is_the_one_to_continue() {
        let mut sessions = chat();
        sessions.note(of(7), &turn(&[1, 2, 8, 9], 3, 2));
        assert_eq!(sessions.compare(of(7), &[1, 2, 8, 9], 4), Continuity::Shares);
        assert_eq!(sessions.compare(of(7), &[1, 2, 3, 4], 4), Continuity::Diverges);
        // It ends before the first block that the session computed.
        sessions.note(of(7), &turn(&[5, 6], 1, 0));
        assert_eq!(sessions.compare(of(7), &[5, 6, 7], 2), Continuity::Shares);
    }

    #[test]
    fn a_turn_that_computes_no_block_has_none_of_its_own() {
        let mut sessions = Sessions::default();
        sessions.note(of(7), &turn(&[1, 2], 2, 2));
        assert_eq!(sessions.compare(of(7), &[1, 2, 3, 4], 4), Continuity::Unknown);
        assert_eq!(sessions.compare(of(7), &[1, 9], 1), Continuity::Diverges);
        sessions.note(of(7), &turn(&[1, 2, 3], 3, 2));
        assert_eq!(sessions.compare(of(7), &[1, 2, 3], 3), Continuity::Shares);
        assert_eq!(sessions.compare(of(7), &[1, 2, 9], 2), Continuity::Diverges);
    }

    #[test]
    fn each_of_several_outputs_of_a_prompt_may_be_continued() {
        let mut sessions = Sessions::default();
        for (output, found) in [(3, 0), (4, 2), (5, 2)] {
            sessions.note(of(7), &turn(&[1, 2, output], 2, found));
        }
        for output in [3, 4, 5] {
            assert_eq!(sessions.compare(of(7), &[1, 2, output, 6], 3), Continuity::Shares, "{output}");
        }
        // Of this prompt, another session computed all blocks. Only one of the outputs could be told from others' blocks.
        for output in [3, 4, 5] {
            sessions.note(of(8), &turn(&[1, 2, output], 2, 2));
        }
        for output in [3, 4, 5] {
            assert_eq!(sessions.compare(of(8), &[1, 2, output, 6], 3), Continuity::Unknown, "{output}");
        }
        sessions.note(of(8), &turn(&[1, 2, 4, 6, 7], 4, 3));
        assert_eq!(sessions.compare(of(8), &[1, 2, 4, 6, 7], 5), Continuity::Shares);
        assert_eq!(sessions.compare(of(8), &[1, 2, 3], 3), Continuity::Unknown);
        assert_eq!(sessions.compare(of(8), &[1, 2, 3, 9], 3), Continuity::Diverges);
    }

    #[test]
    fn what_a_session_computes_again_is_its_own() {
        let mut sessions = chat();
        sessions.note(of(7), &turn(&[1, 2, 3, 4, 5, 6], 6, 0));
        assert_eq!(sessions.compare(of(7), &[1, 2, 3], 1), Continuity::Shares);
        assert_eq!(sessions.compare(of(7), &[1, 2, 9], 2), Continuity::Diverges, "still");
    }

    #[test]
    fn a_turn_that_is_broken_off_takes_nothing_away() {
        let mut sessions = chat();
        let prompt = [1, 2, 3, 4, 5, 6];
        for left in [0, 1, 2] {
            sessions.note(of(7), &Turn { prompt: &prompt, left: &prompt[..left], own: 2 });
            assert_eq!(sessions.compare(of(7), &prompt, 3), Continuity::Shares);
            assert_eq!(sessions.compare(of(7), &prompt, 2), Continuity::Unknown);
        }
    }

    #[test]
    fn what_a_turn_computed_is_its_sessions_before_it_is_over() {
        let mut sessions = chat();
        // It finds blocks 1 and 2, and computes others than the last turn's.
        sessions.open(of(7), None, 8);
        for (session, prompt, found, expected) in [
            (7, &[1, 2, 8, 9][..], 3, Continuity::Shares),
            (7, &[1, 2, 8, 9], 2, Continuity::Diverges),
            (7, &[1, 2, 3, 4], 3, Continuity::Shares),
            (7, &[1, 2], 2, Continuity::Unknown),
            (8, &[1, 2, 8, 9], 3, Continuity::Unknown),
        ] {
            let continuity = sessions.compare(of(session), prompt, found);
            assert_eq!(continuity, expected, "{session} {prompt:?} {found}");
        }
        assert_eq!(sessions.own(of(7), &[1, 2, 8, 9], 4), Some(2));
        // Block 1 was dropped, and it computed that again.
        sessions.open(of(7), Some(8), 1);
        assert_eq!(sessions.own(of(7), &[1, 2, 8, 9], 4), Some(0));
        // Another turn is known by the same block, and outlasts it.
        sessions.open(of(7), None, 1);
        sessions.close(of(7), 1);
        assert_eq!(sessions.own(of(7), &[1, 2, 8, 9], 4), Some(0));
        sessions.close(of(7), 1);
        assert_eq!(sessions.compare(of(7), &[1, 2, 8, 9], 4), Continuity::Diverges);
        sessions.assert_none_open();
    }

    #[test]
    fn requests_without_a_session_have_no_blocks_of_their_own() {
        let mut sessions = Sessions::default();
        sessions.open(of(0), None, 1);
        assert_eq!(sessions.own(of(0), &[1], 1), None);
        sessions.close(of(0), 1);
        sessions.assert_none_open();
    }

    #[test]
    fn the_longest_idle_session_is_forgotten_first() {
        let mut sessions = Sessions::default();
        for id in 1..=SESSIONS as u64 {
            sessions.note(of(id), &turn(&[id], 1, 0));
        }
        sessions.note(of(1), &turn(&[1], 1, 0));
        sessions.note(of(9_999), &turn(&[5], 1, 0));
        assert_eq!(sessions.compare(of(1), &[1], 1), Continuity::Shares);
        assert_eq!(sessions.compare(of(2), &[2], 1), Continuity::Unknown);
        assert_eq!(sessions.turns.len(), SESSIONS);
        assert_eq!(sessions.by_age.len(), SESSIONS);
        assert_eq!(size_of::<Left>(), 24);
    }
}
