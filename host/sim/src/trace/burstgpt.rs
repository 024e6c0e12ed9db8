//! BurstGPT's traces: seconds, model, request and response tokens. Each model becomes a tenant of its name. Rows without
//! response tokens, which are failures according to the authors, are left out, and so are those without request tokens.
//!
//! Files of version 2 also name sessions and how long each request took. A prompt long enough for the previous prompt
//! and response of its session is taken to start with them.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;
use std::sync::Arc;

use super::empty::{Empty, Rows};
use super::lines::{Cells, Lines, short};
use super::{After, MAX_NEW_TOKENS, Recorded, Shares, TraceError};

pub(super) const NAMES: [&str; 4] = ["Timestamp", "Model", "Request tokens", "Response tokens"];
/// Columns since version 2; empty for requests outside of a session.
const SESSION: &str = "Session ID";
/// Seconds.
const ELAPSED: &str = "Elapsed time";
/// Maximum number of models. A file with more probably has its columns mixed up.
const MAX_MODELS: usize = 1_000;
/// Sessions whose last turn is remembered.
const MAX_SESSIONS: usize = 1 << 16;

pub(super) fn is_head(line: &str) -> bool {
    let cells = Cells::of(1, line);
    NAMES.iter().all(|name| cells.find(name).is_ok())
}

pub(super) struct BurstGpt<R> {
    lines: Lines<R>,
    columns: Option<Columns>,
    models: Vec<Arc<str>>,
    turns: Turns,
    rows: Rows,
    id: u64,
}

/// Indexes of the columns.
#[derive(Clone, Copy)]
struct Columns {
    always: [usize; 4],
    session: Option<usize>,
    elapsed: Option<usize>,
}

impl<R: BufRead> BurstGpt<R> {
    pub fn new(file: R, empty: &Empty) -> Self {
        Self {
            lines: Lines::new(file),
            columns: None,
            models: Vec::new(),
            turns: Turns::default(),
            rows: Rows::new(empty),
            id: 0,
        }
    }

    fn read(&mut self) -> Result<Option<Recorded>, TraceError> {
        if self.columns.is_none() {
            let Some((line, text)) = self.lines.next()? else { return Ok(None) };
            self.columns = Some(Columns::of(&Cells::of(line, text))?);
        }
        let columns = self.columns.expect("the head was read");
        let [at, model, request, response] = columns.always;
        loop {
            let Some((line, text)) = self.lines.next()? else { return Ok(None) };
            let row = Cells::of(line, text);
            let (column, time) = row.get(at, NAMES[0])?;
            let at_us = microseconds(time).ok_or_else(|| {
                row.wrong(column, format!("`{}` is not a number of seconds from 0 to 10^10", short(time)))
            })?;
            let (model_column, name) = row.get(model, NAMES[1])?;
            let (prompt_tokens, output_tokens) =
                (row.tokens(request, NAMES[2])?, row.tokens(response, NAMES[3])?);
            if !self.rows.add(prompt_tokens.into(), output_tokens.into()) {
                continue;
            }
            let known = self.models.iter().position(|known| **known == *name);
            if known.is_none() && self.models.len() == MAX_MODELS {
                let message = format!("`{}` is one model too many; the limit is {MAX_MODELS}", short(name));
                return Err(row.wrong(model_column, message));
            }
            let tenant = known.unwrap_or_else(|| {
                self.models.push(name.into());
                self.models.len() - 1
            });
            let tenant_name = Some(Arc::clone(&self.models[tenant]));
            let tenant = u32::try_from(tenant).expect("models are bounded");
            self.id += 1;
            let recorded = Recorded {
                id: self.id,
                at_us,
                tenant,
                session: columns.session(tenant, &row),
                prompt_tokens,
                output_tokens,
                max_tokens: output_tokens.max(MAX_NEW_TOKENS),
                tenant_name,
                ..Recorded::default()
            };
            return Ok(Some(self.turns.link(recorded, columns.elapsed_us(&row))));
        }
    }
}

impl Columns {
    fn of(head: &Cells<'_>) -> Result<Self, TraceError> {
        let mut always = [0; 4];
        for (column, name) in always.iter_mut().zip(NAMES) {
            *column = head.find(name)?;
        }
        Ok(Self { always, session: head.find(SESSION).ok(), elapsed: head.find(ELAPSED).ok() })
    }

    /// Id of the row's session (FNV-1a), or 0. Models share no text, so a session with two models counts as two.
    fn session(&self, tenant: u32, row: &Cells<'_>) -> u64 {
        let name = self.session.and_then(|at| row.get(at, SESSION).ok()).map_or("", |(_, name)| name);
        if name.is_empty() {
            return 0;
        }
        let bytes = tenant.to_le_bytes().into_iter().chain(name.bytes());
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        bytes.fold(0xCBF2_9CE4_8422_2325, add).max(1)
    }

    /// How long the row's request took; 0 if unknown.
    fn elapsed_us(&self, row: &Cells<'_>) -> u64 {
        let cell = self.elapsed.and_then(|at| row.get(at, ELAPSED).ok());
        cell.and_then(|(_, seconds)| microseconds(seconds)).unwrap_or(0)
    }
}

impl<R: BufRead> Iterator for BurstGpt<R> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

fn microseconds(seconds: &str) -> Option<u64> {
    let seconds = seconds.parse::<f64>().ok().filter(|seconds| (0.0..1e10).contains(seconds))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    let us = (seconds * 1e6) as u64;
    Some(us)
}

/// The last turn of each session; the sessions that came first are forgotten first.
#[derive(Default)]
struct Turns {
    last: BTreeMap<u64, Turn>,
    order: VecDeque<u64>,
}

struct Turn {
    id: u64,
    ended_us: u64,
    /// Length of its prompt and response.
    tokens: u32,
}

impl Turns {
    /// Links a request to the turn before it, if that had ended and fits into its prompt.
    fn link(&mut self, recorded: Recorded, elapsed_us: u64) -> Recorded {
        let Recorded { id, at_us, session, prompt_tokens, output_tokens, .. } = recorded;
        if session == 0 {
            return recorded;
        }
        let turn =
            Turn { id, ended_us: at_us + elapsed_us, tokens: prompt_tokens.saturating_add(output_tokens) };
        let last = self.last.insert(session, turn);
        if last.is_none() {
            self.order.push_back(session);
        }
        if self.last.len() > MAX_SESSIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
        let mut recorded = Recorded { followed: true, ..recorded };
        if let Some(Turn { id, ended_us, tokens }) = last
            && ended_us <= at_us
            && tokens <= prompt_tokens
        {
            recorded.after = Some(After { id, think_us: at_us - ended_us });
            recorded.text.shares = Some(Shares { id, tokens });
        }
        recorded
    }
}
