//! What became of a canary, and whether its host has any work that could decide that.

use infer_api::admin::{CanaryInfo, PolicySlot};

use super::Target;

/// Looks at a canary in a row without work after which that is said.
pub const IDLE_LOOKS: u32 = 20;

/// What became of a canary.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// Nothing yet.
    Watching { watched_s: f64, window_s: f64 },
    /// It is live for good; why, in the host's words.
    Stays(String),
    /// It isn't live any more; why.
    Gone(String),
}

/// Reads what became of a canary from its slot.
pub fn verdict(slot: &PolicySlot, target: &Target) -> Verdict {
    let canary = slot.canary.as_ref();
    if target.is_in(slot) && slot.state == "canary" {
        let (watched_s, window_s) = canary.map_or((0.0, 0.0), |canary| {
            let CanaryInfo { watched_s, window_s, longest_s, .. } = *canary;
            // A trial goes on beyond its window if that was extended.
            (watched_s, if watched_s < window_s { window_s } else { longest_s.max(window_s) })
        });
        return Verdict::Watching { watched_s, window_s };
    }
    if target.is_live(slot) {
        return Verdict::Stays(canary.map(|canary| canary.reason.clone()).unwrap_or_default());
    }
    match canary.filter(|canary| canary.state == "rolled_back" && canary.sha256 == target.sha256) {
        Some(canary) => Verdict::Gone(format!("the canary was rolled back: {}", canary.reason)),
        None => Verdict::Gone(format!("`{}` is live there now", slot.name)),
    }
}

/// Notices that a canary's window stands still: it counts only time with work, so without any it never ends.
#[derive(Default)]
pub struct Idleness {
    watched_s: f64,
    looks: u32,
    is_said: bool,
}

impl Idleness {
    /// Takes in the next look. True once, when the host has had no work for a while: work that comes and goes is no
    /// news.
    pub fn is_news(&mut self, watched_s: f64) -> bool {
        if watched_s > self.watched_s {
            (self.watched_s, self.looks) = (watched_s, 0);
        }
        self.looks = self.looks.saturating_add(1);
        let is_news = self.looks >= IDLE_LOOKS && !self.is_said;
        self.is_said |= is_news;
        is_news
    }
}
