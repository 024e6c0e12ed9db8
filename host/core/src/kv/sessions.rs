//! What the last turn of each conversation left, to tell a continuation from an unexpected prompt.
//!
//! A turn is remembered by the chain hash of its first block, which tells whether two prompts share anything:
//! eight bytes, however long it was, and no client text. Bounded; the longest idle session is forgotten
//! first.

use std::collections::BTreeMap;

use crate::ids::{SessionId, TenantId};

/// A conversation of a tenant.
type Owner = (TenantId, SessionId);

/// Conversations remembered.
const SESSIONS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// When the last turn ended, and its first block.
    turns: BTreeMap<Owner, (u64, u64)>,
    by_age: BTreeMap<u64, Owner>,
    clock: u64,
}

/// How a prompt relates to what its session left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// No session, or nothing known of it, or the prompt fills no block.
    Unknown,
    /// The prompt continues from at least the last turn's first block.
    Shares,
    /// The prompt starts differently from the last turn.
    Diverges,
}

impl Sessions {
    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Notes the first block that a turn left.
    pub fn note(&mut self, session: Owner, first: u64) {
        if session.1 == SessionId(0) {
            return;
        }
        self.clock += 1;
        if let Some((age, _)) = self.turns.insert(session, (self.clock, first)) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, session);
        if self.turns.len() > SESSIONS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.turns.remove(&oldest);
        }
    }

    /// Compares a prompt's first block, if it fills one, with what its session left.
    pub fn compare(&self, session: Owner, first: Option<u64>) -> Continuity {
        match (self.turns.get(&session), first) {
            (Some(&(_, left)), Some(first)) if left == first => Continuity::Shares,
            (Some(_), Some(_)) => Continuity::Diverges,
            _ => Continuity::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(session: u64) -> Owner {
        (TenantId(1), SessionId(session))
    }

    #[test]
    fn a_turn_is_compared_by_its_first_block() {
        let mut sessions = Sessions::default();
        sessions.note(of(7), 1);
        for (session, first, expected) in [
            (7, Some(1), Continuity::Shares),
            (7, Some(9), Continuity::Diverges),
            (7, None, Continuity::Unknown),
            (8, Some(1), Continuity::Unknown),
        ] {
            assert_eq!(sessions.compare(of(session), first), expected, "{session} {first:?}");
        }
    }

    #[test]
    fn the_longest_idle_session_is_forgotten_first() {
        let mut sessions = Sessions::default();
        for id in 1..=SESSIONS as u64 {
            sessions.note(of(id), id);
        }
        sessions.note(of(1), 1);
        sessions.note(of(9_999), 5);
        assert_eq!(sessions.compare(of(1), Some(1)), Continuity::Shares);
        assert_eq!(sessions.compare(of(2), Some(2)), Continuity::Unknown);
        assert_eq!(sessions.turns.len(), SESSIONS);
        assert_eq!(sessions.by_age.len(), SESSIONS);
    }
}
