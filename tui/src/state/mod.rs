//! What the console knows and how it changes. Every function here is pure: news or a key and the clock
//! go in, the requests to make come out ([`Effect`]). No terminal, no network, no `Instant::now`; so a
//! test is a list of messages, and a snapshot test has a frozen clock.

pub mod actions;
pub mod blocks;
pub mod history;
pub mod keys;
pub mod log;
pub mod policies;
pub mod requests;

use infer_api::admin::{AdminEvent, Blocks, HistoryEntry, Policies, State, SwapAnswer};

use crate::conn::feed::Report;
use actions::{Dialog, Notice};
use blocks::BlocksPane;
use history::{History, Sample};
use log::{Level, Log};
use policies::PoliciesPane;
use requests::RequestsPane;

/// Milliseconds since the console started.
pub type Millis = u64;

/// A snapshot older than this is shown as stale.
pub const STALE_AFTER_MS: Millis = 2_000;

/// What the host is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they ask")]
pub enum Effect {
    Quit,
    FetchBlocks,
    FetchPolicies,
    FetchHistory { kind: String },
    Swap { kind: String, name: String },
    Rollback { kind: String },
    Cancel { id: u64 },
}

/// What reaches the state from outside, besides keys. Every effect but `Quit` is answered by exactly one.
#[derive(Debug)]
#[allow(missing_docs, reason = "named by what they answer")]
pub enum Message {
    Feed(Report),
    Blocks(Result<Blocks, String>),
    Policies(Result<Policies, String>),
    History { kind: String, result: Result<Vec<HistoryEntry>, String> },
    Swapped { kind: String, rollback: bool, result: Result<SwapAnswer, String> },
    Cancelled { id: u64, result: Result<(), String> },
}

impl From<Report> for Message {
    fn from(report: Report) -> Self {
        Self::Feed(report)
    }
}

/// The screens, in the order of their digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they show")]
pub enum Screen {
    #[default]
    Overview,
    Blocks,
    Requests,
    Policies,
    Log,
}

impl Screen {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Overview, Self::Blocks, Self::Requests, Self::Policies, Self::Log];

    /// Its title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Blocks => "Blocks",
            Self::Requests => "Requests",
            Self::Policies => "Policies",
            Self::Log => "Log",
        }
    }

    /// Its title where there is little room.
    #[must_use]
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "All",
            Self::Blocks => "Blk",
            Self::Requests => "Req",
            Self::Policies => "Pol",
            Self::Log => "Log",
        }
    }

    fn step(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

/// How the connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not yet open.
    Connecting,
    /// Open.
    Live,
    /// Broken; tried again at `retry_at`.
    Lost {
        /// Why.
        why: String,
        /// When it is tried again.
        retry_at: Millis,
    },
}

/// What the host said so far. Pausing keeps a copy of it on the screen.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// The latest snapshot.
    pub state: Option<State>,
    /// When it came.
    pub at: Millis,
    /// Rates and latencies over the last minutes.
    pub history: History,
    /// What happened.
    pub log: Log,
}

/// The console.
#[derive(Debug)]
pub struct App {
    /// Address of the host, for the title.
    pub address: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Which screen is shown.
    pub screen: Screen,
    /// Whether the help covers it.
    pub help: bool,
    /// What covers it and wants an answer.
    pub dialog: Option<Dialog>,
    /// The last outcome, shown for a while.
    pub notice: Option<Notice>,
    /// The connection.
    pub link: Link,
    /// The block map.
    pub blocks: BlocksPane,
    /// The table of requests.
    pub requests: RequestsPane,
    /// The policy slots.
    pub policies: PoliciesPane,
    live: Feed,
    frozen: Option<Box<Feed>>,
}

impl App {
    /// A console that has heard nothing yet.
    #[must_use]
    pub fn new(address: String, read_only: bool) -> Self {
        Self {
            address,
            read_only,
            screen: Screen::Overview,
            help: false,
            dialog: None,
            notice: None,
            link: Link::Connecting,
            blocks: BlocksPane::default(),
            requests: RequestsPane::default(),
            policies: PoliciesPane::default(),
            live: Feed::default(),
            frozen: None,
        }
    }

    /// What is to be shown: the latest, or what was on the screen when it was paused.
    #[must_use]
    pub fn feed(&self) -> &Feed {
        self.frozen.as_deref().unwrap_or(&self.live)
    }

    /// The snapshot to be shown.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.feed().state.as_ref()
    }

    /// Whether the screen is paused.
    #[must_use]
    pub fn paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// Age of the latest snapshot where that is too much, paused or not.
    #[must_use]
    pub fn stale_ms(&self, now: Millis) -> Option<Millis> {
        self.live.state.as_ref()?;
        let age = now.saturating_sub(self.live.at);
        (age > STALE_AFTER_MS).then_some(age)
    }

    /// Takes news.
    pub fn on_message(&mut self, message: Message, now: Millis) -> Vec<Effect> {
        match message {
            Message::Feed(report) => return self.on_report(report, now),
            Message::Blocks(result) => self.blocks.on_answer(result, now),
            Message::Policies(result) => self.on_available(result),
            Message::History { kind, result } => self.policies.on_history(kind, result),
            Message::Swapped { kind, rollback, result } => {
                return self.on_swapped(&kind, rollback, result, now);
            }
            Message::Cancelled { id, result } => self.on_cancelled(id, result, now),
        }
        Vec::new()
    }

    /// Lets time pass: fetches what the shown screen needs beside the feed.
    pub fn on_tick(&mut self, now: Millis) -> Vec<Effect> {
        if self.notice.as_ref().is_some_and(|notice| now >= notice.until) {
            self.notice = None;
        }
        if self.link != Link::Live || self.paused() {
            return Vec::new();
        }
        match self.screen {
            Screen::Blocks if self.blocks.wants_fetch(now) => vec![Effect::FetchBlocks],
            Screen::Policies => match self.policies.wants_history() {
                Some(kind) => vec![Effect::FetchHistory { kind }],
                None => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn on_report(&mut self, report: Report, now: Millis) -> Vec<Effect> {
        match report {
            Report::Connected => {
                if matches!(self.link, Link::Lost { .. }) {
                    self.live.log.push(now, Level::Info, "console", "connected again".to_owned());
                }
                self.link = Link::Live;
                self.policies.forget_history();
            }
            Report::Lost { error, retry_in } => {
                let why = error.to_string();
                if self.link == Link::Live {
                    self.live.log.push(now, Level::Warning, "console", why.clone());
                }
                let retry_at = now + u64::try_from(retry_in.as_millis()).unwrap_or(u64::MAX);
                self.link = Link::Lost { why, retry_at };
            }
            Report::Event(event) => self.on_event(event, now),
        }
        self.on_tick(now)
    }

    fn on_event(&mut self, event: AdminEvent, now: Millis) {
        match event {
            AdminEvent::Snapshot(state) => self.on_snapshot(*state, now),
            AdminEvent::Swap(answer) => {
                self.policies.forget_history();
                let text = format!(
                    "{}: {} replaced {} at step {}, state {}, pause {:.0} us",
                    answer.kind, answer.to, answer.from, answer.at_step, answer.state, answer.pause_us
                );
                self.live.log.push(now, Level::Info, "swap", text);
            }
            AdminEvent::Fault(fault) => {
                self.policies.forget_history();
                let end = if fault.removed { "; taken out" } else { "" };
                let text = format!(
                    "{}: {} at step {}: {}{end}",
                    fault.policy, fault.reason, fault.step, fault.message
                );
                self.live.log.push(now, Level::Error, "fault", text);
            }
            AdminEvent::Canary(canary) => {
                self.policies.forget_history();
                let text =
                    format!("{}: {} is {}: {}", canary.kind, canary.policy, canary.state, canary.reason);
                self.live.log.push(now, Level::Info, "canary", text);
            }
            AdminEvent::Refusal { reason, message, .. } => {
                self.live.log.push(now, Level::Warning, "refusal", format!("{reason}: {message}"));
            }
            AdminEvent::Preemption { id } => {
                let text = format!("request {id} gave its blocks back");
                self.live.log.push(now, Level::Info, "preemption", text);
            }
            AdminEvent::Lagged { missed } => {
                let text = format!("this console was too slow and missed {missed} events");
                self.live.log.push(now, Level::Warning, "console", text);
            }
        }
    }

    fn on_snapshot(&mut self, state: State, now: Millis) {
        let restarted = self.live.state.as_ref().is_some_and(|old| state.uptime_ms < old.uptime_ms);
        if restarted {
            self.live.history = History::default();
            self.live.log.push(now, Level::Warning, "console", "the host was restarted".to_owned());
            self.policies.forget_history();
        }
        self.live.history.push(now, Sample::of(&state));
        self.live.at = now;
        if !self.paused() {
            self.requests.reconcile(&state.requests);
        }
        self.live.state = Some(state);
    }

    /// Freezes the screen, or lets it run on.
    fn toggle_pause(&mut self) {
        self.frozen = match self.frozen.take() {
            None => Some(Box::new(self.live.clone())),
            Some(_) => {
                if let Some(state) = &self.live.state {
                    self.requests.reconcile(&state.requests);
                }
                None
            }
        };
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
