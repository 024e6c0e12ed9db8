//! Makes a failing case small: leaves out operations as long as the same violation is found (delta debugging,
//! Zeller and Hildebrandt 2002), then simplifies what is left.

use super::case::{Ask, Case, Op, Script, Setup, Style};
use super::machine::{Checks, Outsider, Violation, play};

/// Most runs of a case.
const RUNS: u32 = 20_000;

/// Returns the smallest case found that breaks in the same place, and its violation. `progress` receives the
/// number of operations left.
pub fn minimize(
    case: &Case,
    outsiders: &[Outsider<'_>],
    checks: Checks,
    mut progress: impl FnMut(usize),
) -> Option<(Case, Violation)> {
    let first = play(case, outsiders, checks).err()?;
    let mut search = Search { outsiders, checks, place: first.place.clone(), runs: 0 };
    let mut best = (case.clone(), first);
    // What comes after the violation is useless.
    let end = usize::try_from(best.1.step).unwrap_or(usize::MAX).min(case.ops.len());
    search.take(&mut best, Case { ops: case.ops[..end].to_vec(), ..case.clone() });
    loop {
        let before = best.0.clone();
        search.leave_out(&mut best, &mut progress);
        search.make_plain(&mut best);
        if best.0 == before || search.runs >= RUNS {
            return Some(best);
        }
    }
}

struct Search<'a> {
    outsiders: &'a [Outsider<'a>],
    checks: Checks,
    place: String,
    runs: u32,
}

impl Search<'_> {
    /// Replaces `best` if the candidate breaks in the same place.
    fn take(&mut self, best: &mut (Case, Violation), candidate: Case) -> bool {
        if self.runs >= RUNS || candidate == best.0 {
            return false;
        }
        self.runs += 1;
        match play(&candidate, self.outsiders, self.checks) {
            Err(violation) if violation.place == self.place => {
                *best = (candidate, violation);
                true
            }
            _ => false,
        }
    }

    /// Leaves out halves, quarters, and so on down to single operations.
    fn leave_out(&mut self, best: &mut (Case, Violation), progress: &mut impl FnMut(usize)) {
        let mut piece = best.0.ops.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < best.0.ops.len() {
                let mut candidate = best.0.clone();
                let end = (at + piece).min(candidate.ops.len());
                candidate.ops.drain(at..end);
                if self.take(best, candidate) {
                    progress(best.0.ops.len());
                } else {
                    at += piece;
                }
            }
            if piece == 1 {
                return;
            }
            piece = piece.div_ceil(2);
        }
    }

    /// Plainer policies and requests.
    fn make_plain(&mut self, best: &mut (Case, Violation)) {
        for slot in 0..best.0.setup.policies.len() {
            self.make_script_plain(best, |case| Some(&mut case.setup.policies[slot]));
        }
        for at in 0..best.0.ops.len() {
            self.make_script_plain(best, |case| match &mut case.ops[at] {
                Op::Swap { script, .. } => Some(script),
                _ => None,
            });
        }
        let settings: [fn(&mut Setup); 4] = [
            |s| s.unaided = false,
            |s| s.prefix_caching = false,
            |s| s.prompt_cache_entries = 0,
            |s| s.speculate = 0,
        ];
        for setting in settings {
            let mut candidate = best.0.clone();
            setting(&mut candidate.setup);
            self.take(best, candidate);
        }
        for at in 0..best.0.ops.len() {
            if matches!(best.0.ops[at], Op::Submit(_)) {
                self.make_ask_plain(best, at);
            }
        }
    }

    fn make_script_plain(
        &mut self,
        best: &mut (Case, Violation),
        script: impl Fn(&mut Case) -> Option<&mut Script>,
    ) {
        let plainer: [fn(&mut Script); 6] = [
            |s| s.evil = 0,
            |s| s.slow_us = 0,
            |s| s.style = Style::Plain,
            |s| s.also.clear(),
            |s| s.also.truncate(1),
            |s| s.also = s.also.split_off(s.also.len().min(1)),
        ];
        for plain in plainer {
            let mut candidate = best.0.clone();
            let Some(script) = script(&mut candidate) else { return };
            plain(script);
            self.take(best, candidate);
        }
    }

    fn make_ask_plain(&mut self, best: &mut (Case, Violation), at: usize) {
        let plainer: [fn(&mut Ask); 16] = [
            |a| a.tenant = 0,
            |a| a.session = 0,
            |a| a.salt = 0,
            |a| a.priority = 0,
            |a| a.deadline_us = 0,
            |a| (a.follow, a.again) = (false, 0),
            |a| a.shared = 0,
            |a| a.own /= 2,
            |a| a.max_new = a.max_new.div_ceil(2),
            |a| (a.stops, a.min_new) = (false, 0),
            |a| a.drawn = false,
            |a| a.likely = false,
            |a| a.lag = 0,
            |a| (a.more, a.batch) = (0, false),
            |a| a.more = a.more.div_ceil(2),
            |a| a.batch = false,
        ];
        for plainer in plainer {
            let mut candidate = best.0.clone();
            if let Op::Submit(ask) = &mut candidate.ops[at] {
                plainer(ask);
            }
            self.take(best, candidate);
        }
    }
}
