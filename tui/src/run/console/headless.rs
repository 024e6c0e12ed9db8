//! `--print` of a live host: watches it without a terminal, presses the keys of `--keys`, and returns the
//! screen as text. A recording is not printed here, because that needs no loop (`print`).

use std::time::Duration;

use ratatui::layout::Rect;
use tokio::time::{Instant, sleep_until};

use super::{Console, RunError, TICK, ticks};
use crate::args::Args;
use crate::state::{Effect, Link};
use crate::{print, view};

/// Time for the host to respond to what the last key of `--keys` asked for.
const SETTLE: Duration = Duration::from_secs(1);

impl Console {
    /// Watches without a terminal and returns a screen as text.
    pub(in crate::run) async fn watch_and_print(&mut self, args: &Args) -> Result<String, RunError> {
        let mut end = Instant::now() + Duration::from_secs(args.after.unwrap_or(2));
        let mut ticks = ticks();
        let area = Rect::new(0, 0, args.size.0, args.size.1);
        let mut keys = args.keys.0.iter();
        loop {
            self.app.fit(view::room(&self.app, self.now(), area));
            // One key per tick, so that the host's response to one is there for the next.
            let effects = tokio::select! {
                message = self.news.recv() => match message {
                    Some(message) => self.on_news(message)?,
                    None => return Err(RunError::Died),
                },
                _ = ticks.tick() => {
                    let now = self.now();
                    self.app.pass(TICK);
                    let next = if self.app.state().is_some() { keys.next() } else { None };
                    match next {
                        Some(&key) => {
                            end = end.max(Instant::now() + SETTLE);
                            self.app.on_key(key, now)
                        }
                        None => self.app.on_tick(now),
                    }
                }
                // All keys of a script are pressed, unless there is no host.
                () = sleep_until(end), if keys.len() == 0 || self.has_nothing() => break,
            };
            // Without a terminal there is no clipboard and no mouse.
            let effects = effects.into_iter().filter(|e| !matches!(e, Effect::Copy(_) | Effect::Mouse(_)));
            if self.start_effects(effects.collect())? {
                break;
            }
        }
        if self.app.state().is_none() {
            // Fail with the reason instead of printing an empty screen.
            self.client.as_ref().ok_or(RunError::Nothing)?.state().await?;
        }
        Ok(print::screen(&self.app, self.now(), area))
    }

    /// Whether there is no host and was none before.
    fn has_nothing(&self) -> bool {
        self.app.state().is_none() && matches!(self.app.link, Link::Lost { .. })
    }
}
