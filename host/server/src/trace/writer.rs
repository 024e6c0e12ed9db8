//! Turns what happened into lines.

use std::collections::HashMap;
use std::sync::Arc;

use infer_api::trace::{End, Foot, Line, Member, Policy, Refused, Request, Started};
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_core::{Event, Micros, SequenceId};

use super::decision;
use super::names::Names;
use super::tap::Happening;
use crate::admin::refusal_name;
use crate::data::reason_name;
use crate::faults::Loaded;

type Describe = Box<dyn Fn(PolicyKind, &Arc<PolicyInfo>) -> Policy + Send>;

/// Writes a recording.
pub struct Writer {
    names: Names,
    live: HashMap<SequenceId, Live>,
    describe: Describe,
    written: u64,
    foot: Foot,
}

struct Live {
    tokens: Vec<u32>,
    prompt: usize,
    scope: (u32, u64),
    session: u64,
}

impl Writer {
    /// A writer for a host whose blocks are of this size. `describe` says what a policy is made of.
    pub fn new(
        block_size: u32,
        describe: impl Fn(PolicyKind, &Arc<PolicyInfo>) -> Policy + Send + 'static,
    ) -> Self {
        let names = Names::new(block_size);
        Self { names, live: HashMap::new(), describe: Box::new(describe), written: 0, foot: Foot::default() }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Appends a line.
    pub fn line(&mut self, line: &Line, out: &mut Vec<u8>) {
        let before = out.len();
        serde_json::to_writer(&mut *out, line).expect("a line is JSON");
        out.push(b'\n');
        self.written += (out.len() - before) as u64;
    }

    /// Appends what is to be said of a happening.
    pub fn happened(&mut self, happening: Happening, out: &mut Vec<u8>) {
        let line = match happening {
            Happening::Taken { id, sent, at, request } => self.taken(id, sent, at, &request),
            Happening::Refused { at, prompt, max, refusal } => {
                let reason = refusal_name(refusal.reason).to_owned();
                Line::Refused(Refused { id: 0, at: at.0, prompt, max, reason })
            }
            Happening::Step(step) => {
                self.foot.steps += 1;
                Line::Step(*step)
            }
            Happening::Decision(decision) => decision::line(&decision),
            Happening::Lost(happenings) => {
                self.foot.lost += happenings;
                Line::Lost { happenings }
            }
            Happening::Event { event, at } => match self.event(*event, at) {
                Some(line) => line,
                None => return,
            },
        };
        self.line(&line, out);
    }

    /// Appends the last lines: what hadn't ended, and why the recording did.
    pub fn end(&mut self, reason: &str, at: Micros, out: &mut Vec<u8>) {
        let mut open: Vec<SequenceId> = self.live.keys().copied().collect();
        open.sort_unstable();
        for id in open {
            if let Some(line) = self.ended(id, at, "open") {
                self.line(&line, out);
            }
        }
        let foot = Foot { at: at.0, reason: reason.to_owned(), ..self.foot.clone() };
        self.line(&Line::Foot(foot), out);
    }

    fn taken(&mut self, id: SequenceId, sent: Micros, at: Micros, request: &infer_core::Request) -> Line {
        self.foot.requests += 1;
        let scope = (request.tenant.0, request.cache_salt);
        let session = self.names.session(request.session.0);
        let named = self.names.prompt(id.0, scope, session, &request.prompt);
        let after = named.after.filter(|(_, ended)| *ended <= sent.0).map(|(id, _)| id);
        let (tokens, prompt) = (request.prompt.to_vec(), request.prompt.len());
        self.live.insert(id, Live { tokens, prompt, scope, session });
        Line::Request(Request {
            id: id.0,
            sent: sent.0,
            at: at.0,
            tenant: self.names.tenant(request.tenant.0),
            session,
            priority: request.priority,
            ttft: (request.deadline != Micros::NEVER).then(|| request.deadline.since(sent).0),
            prompt: request.prompt.len() as u32,
            max: request.max_new_tokens,
            blocks: named.blocks,
            whole: named.whole,
            shares: named.shares,
            after,
        })
    }

    fn event(&mut self, event: Event, at: Micros) -> Option<Line> {
        match event {
            Event::Token { id, token, .. } => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.tokens.push(token);
                }
                None
            }
            Event::Started { id, prefix, cached_tokens, .. } => self.live.contains_key(&id).then(|| {
                Line::Started(Started { id: id.0, cached: cached_tokens, event: prefix.name().to_owned() })
            }),
            Event::Preempted { id } => self.live.contains_key(&id).then_some(Line::Preempted { id: id.0 }),
            Event::Finished { id, reason, .. } => self.ended(id, at, reason_name(reason)),
            Event::Failed { id, .. } => self.ended(id, at, "failed"),
            Event::Refused { id, refusal } => {
                let live = self.live.remove(&id)?;
                let reason = refusal_name(refusal.reason).to_owned();
                let prompt = live.prompt as u32;
                Some(Line::Refused(Refused { id: id.0, at: at.0, prompt, max: 0, reason }))
            }
            Event::PolicyChanged { kind, policy, .. } => Some(Line::Policy((self.describe)(kind, &policy))),
            _ => None,
        }
    }

    fn ended(&mut self, id: SequenceId, at: Micros, reason: &str) -> Option<Line> {
        let Live { tokens, prompt, scope, session } = self.live.remove(&id)?;
        self.names.ended(id.0, scope, session, prompt, &tokens, at.0);
        let output = (tokens.len() - prompt) as u32;
        Some(Line::End(End { id: id.0, at: at.0, reason: reason.to_owned(), output }))
    }
}

/// What a policy is made of, where that is remembered.
pub fn describe(kind: PolicyKind, info: &PolicyInfo, loaded: Option<&Loaded>) -> Policy {
    let members = match loaded {
        Some(loaded) => loaded
            .members
            .iter()
            .map(|member| Member {
                name: member.info.name.clone(),
                sha256: member.info.digest.clone(),
                config: member.config.clone(),
            })
            .collect(),
        None => {
            let config = crate::policies::empty();
            vec![Member { name: info.name.clone(), sha256: info.digest.clone(), config }]
        }
    };
    Policy { kind: kind.name().to_owned(), members }
}
