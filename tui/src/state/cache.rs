//! The prefix cache, fetched while its screen is visible.

use infer_api::admin::CacheReport;

use super::Millis;

/// Time between two fetches. The host walks the whole prefix tree for each.
const REFRESH_MS: Millis = 2_000;

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct CachePane {
    /// The report; `None` until it arrives.
    pub report: Option<CacheReport>,
    /// When it arrived.
    pub at: Millis,
    /// Why the last fetch failed.
    pub error: Option<String>,
    /// The selected prefix.
    pub selected: usize,
    asked_at: Option<Millis>,
    waiting: bool,
}

impl CachePane {
    /// Whether a fetch is due; marks it as started.
    pub fn wants(&mut self, now: Millis) -> bool {
        let due = self.asked_at.is_none_or(|at| now.saturating_sub(at) >= REFRESH_MS);
        if self.waiting || !due {
            return false;
        }
        self.waiting = true;
        self.asked_at = Some(now);
        true
    }

    /// Discards what is known: the host restarted.
    pub fn clear(&mut self) {
        self.report = None;
        self.asked_at = None;
    }

    /// Takes the response.
    pub fn on_report(&mut self, result: Result<CacheReport, String>, now: Millis) {
        self.waiting = false;
        match result {
            Ok(report) => {
                self.selected = self.selected.min(report.prefixes.len().saturating_sub(1));
                self.report = Some(report);
                self.at = now;
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Moves the selection.
    pub fn move_by(&mut self, by: isize) {
        let last = self.report.as_ref().map_or(0, |report| report.prefixes.len().saturating_sub(1));
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_api::admin::PrefixInfo;

    #[test]
    fn fetches_do_not_overlap_and_the_selection_stays_inside() {
        let mut pane = CachePane::default();
        assert!(pane.wants(0));
        assert!(!pane.wants(60_000));
        let prefixes = vec![PrefixInfo::default(); 3];
        pane.on_report(Ok(CacheReport { prefixes, ..CacheReport::default() }), 0);
        assert!(pane.wants(60_000));
        pane.move_by(9);
        assert_eq!(pane.selected, 2);
        pane.on_report(Ok(CacheReport::default()), 60_500);
        assert_eq!(pane.selected, 0);
        pane.on_report(Err("no".into()), 70_000);
        assert!(pane.report.is_some() && pane.at == 60_500, "the last report stays, with its time");
    }
}
