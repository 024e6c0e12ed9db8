//! An operator's order to the engine: how long its response waits, and what the log says if it doesn't wait for the end.
//!
//! Deliberately absent: what was done, which whoever gives the order logs.

use std::time::Duration;

use super::operators::Caller;
use super::state::within;
use crate::app::App;
use crate::engine::EngineStopped;
use crate::http::ApiError;

/// An order. If it is dropped before it is done, since its client left or the engine took too long, the engine may carry
/// it out yet, and a line of the log says who gave it.
pub struct Order<'a> {
    caller: &'a Caller,
    /// As it follows "wanted to".
    what: &'static str,
    is_open: bool,
}

impl<'a> Order<'a> {
    /// An order of `caller`.
    pub fn of(caller: &'a Caller, what: &'static str) -> Self {
        Self { caller, what, is_open: true }
    }

    /// Returns what the engine did after the current step. 503 as for a `report`, but then it may still do it.
    pub async fn done<T>(
        self,
        app: &App,
        answer: impl Future<Output = Result<T, EngineStopped>>,
    ) -> Result<T, ApiError> {
        self.done_within(app.config.bounds.engine_patience, answer).await
    }

    async fn done_within<T>(
        mut self,
        patience: Duration,
        answer: impl Future<Output = Result<T, EngineStopped>>,
    ) -> Result<T, ApiError> {
        let message = "the engine is in a long step, and may still do this after it; look at /admin/state before you \
                       repeat it";
        let done = within(patience, answer, message).await?;
        self.is_open = false;
        Ok(done)
    }
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let Caller { operator, peer } = self.caller;
            tracing::info!(
                operator = operator.name,
                %peer,
                "an operator wanted to {}, and nobody waited until it was done",
                self.what
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::admin::operators::Operators;
    use crate::admin::token::Token;
    use crate::config::Config;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[tokio::test]
    async fn order_whose_end_nobody_waited_for_is_logged_with_who_gave_it() {
        const TOKEN: &str = "the-hosts-own-token";
        const HOUR: Duration = Duration::from_secs(3_600);
        let log = Log::default();
        let to = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let operators = Operators::open(&Config::default(), Token::given(TOKEN).unwrap()).unwrap();
        let caller = Caller { operator: operators.find(TOKEN).unwrap(), peer: ([127, 0, 0, 1], 9).into() };
        let order = || Order::of(&caller, "clear the queue");

        let done = order().done_within(HOUR, std::future::ready(Ok::<_, EngineStopped>(3))).await;
        assert_eq!((done.unwrap(), log.text()), (3, String::new()));
        {
            let never = std::future::pending::<Result<(), EngineStopped>>();
            let mut left = std::pin::pin!(order().done_within(HOUR, never));
            assert!(futures_util::poll!(left.as_mut()).is_pending());
        }
        let said = log.text();
        let words = "an operator wanted to clear the queue, and nobody waited until it was done";
        for part in [words, "operator=\"admin\"", "peer=127.0.0.1:9"] {
            assert!(said.contains(part), "`{part}` isn't in: {said}");
        }
    }
}
