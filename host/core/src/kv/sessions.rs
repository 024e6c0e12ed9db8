//! What the last turn of each conversation left, to tell a continuation from a surprise.
//!
//! A turn is remembered by the chain hashes of its full blocks: eight bytes for sixteen tokens, and
//! no client's text. Bounded; the session that was quiet longest is forgotten first.

use std::collections::BTreeMap;

use crate::ids::{SessionId, TenantId};

/// A conversation of a tenant.
type Owner = (TenantId, SessionId);

/// Conversations remembered.
const SESSIONS: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    turns: BTreeMap<Owner, (u64, Box<[u64]>)>,
    by_age: BTreeMap<u64, Owner>,
    clock: u64,
}

/// How a prompt relates to what its session left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// No session, or nothing known of it.
    Unknown,
    /// The prompt goes on from these leading blocks of the last turn, at least one.
    Shares(u32),
    /// The prompt begins otherwise than the last turn.
    Diverges,
    /// One of both has no full block: nothing can be said.
    TooShort,
}

impl Sessions {
    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Notes what a turn left.
    pub fn note(&mut self, session: Owner, hashes: &[u64]) {
        if session.1 == SessionId(0) {
            return;
        }
        self.clock += 1;
        if let Some((age, _)) = self.turns.insert(session, (self.clock, hashes.into())) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, session);
        if self.turns.len() > SESSIONS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.turns.remove(&oldest);
        }
    }

    /// Compares a prompt with what its session left.
    pub fn compare(&self, session: Owner, prompt: &[u64]) -> Continuity {
        let Some((_, left)) = self.turns.get(&session) else { return Continuity::Unknown };
        if left.is_empty() || prompt.is_empty() {
            return Continuity::TooShort;
        }
        match left.iter().zip(prompt).take_while(|(a, b)| a == b).count() {
            0 => Continuity::Diverges,
            shared => Continuity::Shares(shared as u32),
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
    fn a_turn_is_compared_by_its_leading_blocks() {
        let mut sessions = Sessions::default();
        sessions.note(of(7), &[1, 2, 3]);
        for (session, prompt, expected) in [
            (7, vec![1, 2, 3, 4], Continuity::Shares(3)),
            (7, vec![1, 9], Continuity::Shares(1)),
            (7, vec![9], Continuity::Diverges),
            (7, vec![], Continuity::TooShort),
            (8, vec![1], Continuity::Unknown),
        ] {
            assert_eq!(sessions.compare(of(session), &prompt), expected, "{session} {prompt:?}");
        }
    }

    #[test]
    fn the_quietest_session_is_forgotten_first() {
        let mut sessions = Sessions::default();
        for id in 1..=SESSIONS as u64 {
            sessions.note(of(id), &[id]);
        }
        sessions.note(of(1), &[1]);
        sessions.note(of(9_999), &[5]);
        assert_eq!(sessions.compare(of(1), &[1]), Continuity::Shares(1));
        assert_eq!(sessions.compare(of(2), &[2]), Continuity::Unknown);
        assert_eq!(sessions.turns.len(), SESSIONS);
        assert_eq!(sessions.by_age.len(), SESSIONS);
    }
}
