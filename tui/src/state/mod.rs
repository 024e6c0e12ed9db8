//! What the console knows and how it changes. Every function here is pure: news or an input and the clock
//! go in, the requests to make come out ([`Effect`]). No terminal, no network, no `Instant::now`; so a
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
pub mod settings;
pub mod swap;
pub mod text;
pub mod why;

use std::time::Duration;

use infer_api::admin::{BlockMap, CacheReport, HistoryEntry, Policies, RequestDetail, State, SwapAnswer};

use crate::conn::feed::Report;
use blocks::{BlocksPane, Under, Wanted};
use cache::CachePane;
use dialog::{Dialog, Notice, Prompt};
use history::History;
use log::{Log, LogPane};
use policies::PoliciesPane;
use requests::RequestsPane;
use settings::Settings;

/// Milliseconds since the console started, or of a recording's time.
pub type Millis = u64;

/// A snapshot older than this is shown as stale.
pub const STALE_AFTER_MS: Millis = 2_000;

/// What is to be done outside: of the host, of the terminal.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named by what they ask")]
pub enum Effect {
    Quit,
    /// The feed lost its thread: it is to begin anew.
    Resync,
    /// Put this into the clipboard.
    Copy(String),
    /// Take the mouse, or leave it.
    Mouse(bool),
    /// Look into a folder of this machine, as it was typed.
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
    Swap(swap::Order),
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
    ClearQueue,
    Drain,
}

/// What reaches the state from outside, besides inputs. Every effect that asks the host is answered by
/// exactly one.
#[derive(Debug)]
#[allow(missing_docs, reason = "named by what they answer")]
pub enum Message {
    Feed(Report),
    /// What a folder holds that a path may go on with.
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
    /// Of a swap, a promotion or a rollback.
    Swapped {
        kind: String,
        verb: &'static str,
        result: Result<SwapAnswer, String>,
    },
    /// Of anything else that was to be done; what was done, or why not.
    Done(Result<String, String>),
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
    Cache,
    Log,
}

impl Screen {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Overview, Self::Blocks, Self::Requests, Self::Policies, Self::Cache, Self::Log];

    /// Its title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Blocks => "Blocks",
            Self::Requests => "Requests",
            Self::Policies => "Policies",
            Self::Cache => "Cache",
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
            Self::Cache => "Cac",
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
    /// A recording plays.
    Replay,
    /// A recording has been played.
    Ended,
    /// Broken; tried again at `retry_at`.
    Lost {
        /// Why.
        why: String,
        /// When it is tried again.
        retry_at: Millis,
    },
}

/// How far something can be scrolled where it is shown, in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scroll {
    /// Rows that can be scrolled away before the last one stands at the bottom.
    pub most: usize,
    /// Rows in sight.
    pub page: usize,
}

/// What the screen has room for, worked out by the view from the size of the terminal.
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

/// What the host said so far. Pausing keeps a copy of it on the screen.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    /// The latest snapshot.
    pub state: Option<State>,
    /// When it came.
    pub at: Millis,
    /// How often the host was restarted while the console watched.
    pub restarts: u32,
    /// Rates and latencies over the last hour.
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
    /// Whether everything that a recording shall hold is asked for, shown or not.
    pub recording: bool,
    /// How things are shown.
    pub settings: Settings,
    /// Which screen is shown.
    pub screen: Screen,
    /// Whether the help covers it, and how far it is scrolled.
    pub help: Option<usize>,
    /// What covers it and wants an answer.
    pub dialog: Option<Dialog>,
    /// What is typed in the last line.
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
    /// The log's filter and place.
    pub log: LogPane,
    room: Room,
    /// Whether a snapshot came since the connection opened: until then it may be another host than before.
    heard: bool,
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
            room: Room::default(),
            heard: false,
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
        (age > STALE_AFTER_MS && self.link != Link::Ended).then_some(age)
    }

    /// Takes the room that there is; facts and help that were scrolled further than they go stand at their ends.
    pub fn fit(&mut self, room: Room) {
        self.blocks.room = room.blocks;
        self.policies.scroll = self.policies.scroll.min(room.facts.most);
        self.help = self.help.map(|scroll| scroll.min(room.help.most));
        self.room = room;
    }

    /// Lets so much time pass for whoever looks: an outcome goes when there was time to read it.
    pub fn pass(&mut self, time: Duration) {
        self.notice = self.notice.take().filter(|notice| notice.left > time);
        if let Some(notice) = &mut self.notice {
            notice.left -= time;
        }
    }

    /// Lets time pass on the host: asks for what the shown screen needs beside the feed.
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

    /// Freezes the screen, or lets it run on.
    fn toggle_pause(&mut self) {
        self.frozen = match self.frozen.take() {
            None => Some(Box::new(self.live.clone())),
            Some(_) => None,
        };
        self.reorder_requests();
    }

    /// Brings the table of requests in line with what is shown.
    fn reorder_requests(&mut self) {
        let feed = self.frozen.as_deref().unwrap_or(&self.live);
        self.requests.reconcile(feed.state.as_ref().map_or(&[][..], |state| &state.requests));
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
