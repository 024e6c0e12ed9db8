//! What the console knows and how it changes. Every function here is pure: a message or an input and the
//! clock go in, the requests to make come out ([`Effect`]). No terminal, no network, no `Instant::now`, so a
//! test is a list of messages, and a snapshot test has a frozen clock.

pub mod actions;
pub mod blocks;
pub mod cache;
pub mod command;
pub mod dialog;
pub mod form;
pub mod history;
pub mod keys;
pub mod log;
pub mod news;
pub mod paths;
pub mod policies;
pub mod requests;
pub mod schema;
mod screen;
pub mod settings;
pub mod swap;
pub mod table;
pub mod tenants;
pub mod text;
pub mod why;

use std::time::Duration;

use infer_api::admin::{
    BlockMap, CacheReport, HistoryEntry, OperatorInfo, Policies, RequestDetail, RequestRow, State,
    SwapAnswer, TenantRow,
};

use crate::order::Order;
use blocks::{BlocksPane, Under, Wanted};
use cache::CachePane;
use dialog::{Dialog, Notice, Prompt};
use history::History;
use log::{Log, LogPane};
pub use news::Report;
use policies::PoliciesPane;
use requests::RequestsPane;
pub use screen::Screen;
use settings::Settings;
use table::Table;

/// Milliseconds since the console started, or since the start of the recording being played.
pub type Millis = u64;

/// Age from which a snapshot is shown as stale.
pub const STALE_AFTER_MS: Millis = 2_000;

/// What the state wants done by the host or the terminal.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named by what they ask")]
pub enum Effect {
    Quit,
    /// Restart the feed with a whole snapshot, because a change was missed.
    Resync,
    /// Copy this text to the clipboard.
    Copy(String),
    /// Capture the mouse, or release it.
    Mouse(bool),
    /// List a folder of this machine, given as typed.
    ListFolder(String),
    FetchBlocks(Wanted),
    FetchCache,
    FetchPolicies,
    FetchHistory {
        kind: String,
    },
    FetchRequest {
        id: u64,
    },
    Swap(Order),
    Promote {
        kind: String,
        of: String,
    },
    Rollback {
        kind: String,
        of: String,
    },
    StopShadow {
        kind: String,
    },
    Cancel {
        id: u64,
    },
    /// Cancel all sequences of a request; `id` is one of them, `first_id` that of the first.
    CancelAll {
        id: u64,
        first_id: u64,
    },
    ClearQueue,
    EmptyCache,
    Drain,
    Undrain,
}

/// What reaches the state from outside, besides inputs. Each effect that asks the host leads to exactly one
/// message.
#[derive(Debug)]
#[allow(missing_docs, reason = "named by what they answer")]
pub enum Message {
    Feed(Report),
    /// Entries of a folder, to complete a path with.
    Folder {
        folder: String,
        result: Result<Vec<String>, String>,
    },
    Map(Result<BlockMap, String>),
    Under(Wanted, Result<Under, String>),
    Cache(Result<CacheReport, String>),
    Policies(Result<Policies, String>),
    History {
        kind: String,
        result: Result<Vec<HistoryEntry>, String>,
    },
    Request {
        id: u64,
        result: Result<RequestDetail, String>,
    },
    /// The outcome of a swap, a promotion or a rollback.
    Swapped {
        kind: String,
        verb: &'static str,
        result: Result<SwapAnswer, String>,
    },
    /// The outcome of any other change: what was done, or why it failed.
    Done(Result<String, String>),
}

impl From<Report> for Message {
    fn from(report: Report) -> Self {
        Self::Feed(report)
    }
}

/// State of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not open yet.
    Connecting,
    /// Open.
    Live,
    /// A recording is playing.
    Replay,
    /// A recording has ended.
    Ended,
    /// Broken.
    Lost {
        /// Why.
        why: String,
        /// Time of the next attempt.
        retry_at: Millis,
    },
}

/// How far a list can be scrolled, in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scroll {
    /// Largest scroll offset: the rows that don't fit.
    pub most: usize,
    /// Visible rows.
    pub page: usize,
}

/// Sizes that the view derives from the terminal and that keys depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Columns and rows of the block map.
    pub blocks: (u16, u16),
    /// The facts of a policy slot.
    pub facts: Scroll,
    /// The help.
    pub help: Scroll,
    /// The lines of the log.
    pub log: Scroll,
}

/// What the host has sent so far. While paused the screen shows a copy of it.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// The latest snapshot.
    pub state: Option<State>,
    /// When it arrived.
    pub at: Millis,
    /// How often the host restarted while the console watched.
    pub restarts: u32,
    /// Rates and latencies over the last hour.
    pub history: History,
    /// Events so far.
    pub log: Log,
}

impl Feed {
    /// Returns the listed requests.
    #[must_use]
    pub fn requests(&self) -> &[RequestRow] {
        self.state.as_ref().map_or(&[], |state| &state.requests)
    }

    /// Returns the listed tenants.
    #[must_use]
    pub fn tenants(&self) -> &[TenantRow] {
        self.state.as_ref().map_or(&[], |state| &state.tenants)
    }
}

/// The console.
#[derive(Debug)]
pub struct App {
    /// Address of the host, for the title.
    pub address: String,
    /// Whether changes are refused whoever the operator is.
    pub read_only: bool,
    /// Whether a recording is made, which needs the data of all screens.
    pub recording: bool,
    /// Display settings.
    pub settings: Settings,
    /// The visible screen.
    pub screen: Screen,
    /// Scroll offset of the help while it is open.
    pub help: Option<usize>,
    /// The open dialog.
    pub dialog: Option<Dialog>,
    /// The line being typed at the bottom.
    pub prompt: Option<Prompt>,
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
    /// The prefix cache.
    pub cache: CachePane,
    /// Filter and scroll position of the log.
    pub log: LogPane,
    /// The table of tenants.
    pub tenants: Table<tenants::SortBy>,
    /// The command that was entered last, whether it was carried out or refused.
    last_command: String,
    room: Room,
    /// Whether a snapshot arrived since the connection opened; until then it may be another host than before.
    heard: bool,
    live: Feed,
    frozen: Option<Box<Feed>>,
}

impl App {
    /// Creates a console that has received nothing yet.
    #[must_use]
    pub fn new(address: String, read_only: bool) -> Self {
        Self {
            address,
            read_only,
            recording: false,
            settings: Settings::default(),
            screen: Screen::Overview,
            help: None,
            dialog: None,
            prompt: None,
            notice: None,
            link: Link::Connecting,
            blocks: BlocksPane::default(),
            requests: RequestsPane::default(),
            policies: PoliciesPane::default(),
            cache: CachePane::default(),
            log: LogPane::default(),
            tenants: Table::default(),
            last_command: String::new(),
            room: Room::default(),
            heard: false,
            live: Feed::default(),
            frozen: None,
        }
    }

    /// Returns what to show: the latest data, or the data at the time of the pause.
    #[must_use]
    pub fn feed(&self) -> &Feed {
        self.frozen.as_deref().unwrap_or(&self.live)
    }

    /// Returns the snapshot to show.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.feed().state.as_ref()
    }

    /// Returns the operator whose token this is, if that is one who may change nothing.
    #[must_use]
    pub fn viewer(&self) -> Option<&OperatorInfo> {
        let operator = self.live.state.as_ref()?.operator.as_ref();
        operator.filter(|operator| !operator.may_change())
    }

    /// Whether the screen is paused.
    #[must_use]
    pub fn paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// Returns the age of the latest snapshot if it is stale, paused or not.
    #[must_use]
    pub fn stale_ms(&self, now: Millis) -> Option<Millis> {
        self.live.state.as_ref()?;
        let age = now.saturating_sub(self.live.at);
        (age > STALE_AFTER_MS && self.link != Link::Ended).then_some(age)
    }

    /// Takes the sizes of the terminal; whatever is scrolled past its end is moved back to it.
    pub fn fit(&mut self, room: Room) {
        self.blocks.room = room.blocks;
        self.policies.scroll = self.policies.scroll.min(room.facts.most);
        self.help = self.help.map(|scroll| scroll.min(room.help.most));
        if self.screen == Screen::Log {
            self.log.fit(room.log.most);
        }
        self.room = room;
    }

    /// Advances the operator's time, which runs at its own pace during a replay: notices expire by it.
    pub fn pass(&mut self, time: Duration) {
        self.notice = self.notice.take().filter(|notice| notice.left > time);
        if let Some(notice) = &mut self.notice {
            notice.left -= time;
        }
    }

    /// Advances the host's time: returns the fetches that are due for the visible screen.
    pub fn on_tick(&mut self, now: Millis) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.link != Link::Live || self.paused() {
            return effects;
        }
        let shows = |screen| self.screen == screen || self.recording;
        if shows(Screen::Blocks) {
            effects.extend(self.blocks.wants(now).into_iter().map(Effect::FetchBlocks));
        }
        if shows(Screen::Cache) && self.cache.wants(now) {
            effects.push(Effect::FetchCache);
        }
        if shows(Screen::Policies)
            && let Some(kind) = self.policies.wants_history(now)
        {
            effects.push(Effect::FetchHistory { kind });
        }
        if let Some(Dialog::Details { id }) = self.dialog
            && self.requests.wants_detail(id, now)
        {
            effects.push(Effect::FetchRequest { id });
        }
        effects
    }

    /// Pauses or resumes the screen.
    fn toggle_pause(&mut self) {
        self.frozen = match self.frozen.take() {
            None => Some(Box::new(self.live.clone())),
            Some(_) => None,
        };
        self.reorder();
    }

    /// Updates the tables to what is shown.
    fn reorder(&mut self) {
        let feed = self.frozen.as_deref().unwrap_or(&self.live);
        self.requests.reconcile(feed.requests());
        self.tenants.reconcile(feed.tenants());
    }
}

#[cfg(test)]
mod tests;
