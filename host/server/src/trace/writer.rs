//! Writes happenings as lines.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_api::trace::{End, Foot, Line, Member, Policy, Refused, Request, Settings, Started, Tenant};
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_core::{FinishReason, Micros, SequenceId, TenantId, TenantTerms};

use super::decision;
use super::happening::Happening;
use super::names::{Names, Scope};
use super::settings;
use crate::policies::Origin;

type Describe = Box<dyn Fn(PolicyKind, &Arc<PolicyInfo>) -> Policy + Send>;

/// Writes a recording.
pub struct Writer {
    names: Names,
    /// Requests whose end was not recorded yet, in the order of their arrival.
    live: BTreeMap<SequenceId, Live>,
    /// Most requests that the host holds at once.
    most_live: usize,
    describe: Describe,
    written: u64,
    foot: Foot,
}

struct Live {
    tokens: Vec<u32>,
    prompt: usize,
    scope: Scope,
    session: u64,
}

impl Writer {
    /// Returns a writer for a host with these settings. `describe` says what a policy was made of.
    pub fn new(
        host: &Settings,
        describe: impl Fn(PolicyKind, &Arc<PolicyInfo>) -> Policy + Send + 'static,
    ) -> Self {
        Self {
            names: Names::new(host.block_size),
            live: BTreeMap::new(),
            most_live: host.max_batch_size as usize + host.max_waiting_requests as usize,
            describe: Box::new(describe),
            written: 0,
            foot: Foot::default(),
        }
    }

    /// Returns the terms that are not the default, each under the number that the tenant has in this recording.
    pub fn tenants(&mut self, all: &[(TenantId, TenantTerms)]) -> Vec<Tenant> {
        let granted = all.iter().filter(|(_, terms)| *terms != TenantTerms::default());
        granted.map(|(id, terms)| settings::tenant(self.names.tenant(id.0), *terms)).collect()
    }

    /// Returns the bytes written so far.
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

    /// Appends the line of a happening, if it has one.
    pub fn happened(&mut self, happening: Happening, out: &mut Vec<u8>) {
        if let Some(line) = self.line_of(happening) {
            self.line(&line, out);
        }
    }

    /// Appends the last lines: requests that are still open, and why the recording ended.
    pub fn end(&mut self, reason: &str, at: Micros, out: &mut Vec<u8>) {
        let open: Vec<SequenceId> = self.live.keys().copied().collect();
        for id in open {
            if let Some(line) = self.ended(id, at, "open") {
                self.line(&line, out);
            }
        }
        let foot = Foot { at: at.0, reason: reason.to_owned(), ..self.foot.clone() };
        self.line(&Line::Foot(foot), out);
    }

    fn line_of(&mut self, happening: Happening) -> Option<Line> {
        match happening {
            Happening::Taken { id, sent, at, request } => Some(self.taken(id, sent, at, &request)),
            Happening::Refused { at, prompt, max, reason } => {
                let reason = reason.name().to_owned();
                Some(Line::Refused(Refused { id: 0, at: at.0, prompt, max, reason }))
            }
            Happening::Started { id, prefix, cached } => self
                .live
                .contains_key(&id)
                .then(|| Line::Started(Started { id: id.0, cached, event: prefix.name().to_owned() })),
            Happening::Token { id, token } => {
                if let Some(live) = self.live.get_mut(&id) {
                    live.tokens.push(token);
                }
                None
            }
            Happening::Preempted { id } => {
                self.live.contains_key(&id).then_some(Line::Preempted { id: id.0 })
            }
            Happening::Ended { id, at, reason } => {
                self.ended(id, at, reason.map_or("failed", FinishReason::name))
            }
            Happening::TurnedAway { id, at, reason } => {
                let prompt = self.live.remove(&id)?.prompt as u32;
                let reason = reason.name().to_owned();
                Some(Line::Refused(Refused { id: id.0, at: at.0, prompt, max: 0, reason }))
            }
            Happening::Policy { kind, policy } => Some(Line::Policy((self.describe)(kind, &policy))),
            Happening::Step(step) => {
                self.foot.steps += 1;
                Some(Line::Step(*step))
            }
            Happening::Decision(decision) => Some(decision::line(&decision)),
            Happening::Lost(happenings) => {
                self.foot.lost += happenings;
                Some(Line::Lost { happenings })
            }
        }
    }

    fn taken(&mut self, id: SequenceId, sent: Micros, at: Micros, request: &infer_core::Request) -> Line {
        self.foot.requests += 1;
        let scope = (request.tenant.0, request.cache_salt, request.adapter.0);
        let session = self.names.session(request.tenant.0, request.session.0);
        let named = self.names.prompt(id.0, scope, session, &request.prompt);
        let after = named.after.filter(|(_, ended)| *ended <= sent.0).map(|(id, _)| id);
        let (tokens, prompt) = (request.prompt.to_vec(), request.prompt.len());
        self.live.insert(id, Live { tokens, prompt, scope, session });
        self.forget_lost_ends();
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
            expected: request.expected_output,
            embed: request.sampling.embeds(),
            blocks: named.blocks,
            whole: named.whole,
            shares: named.shares,
            after,
        })
    }

    /// Drops requests whose end was lost: if more are open than the host can hold, the oldest have ended.
    fn forget_lost_ends(&mut self) {
        while self.foot.lost > 0 && self.live.len() > self.most_live {
            self.live.pop_first();
        }
    }

    fn ended(&mut self, id: SequenceId, at: Micros, reason: &str) -> Option<Line> {
        let Live { tokens, prompt, scope, session } = self.live.remove(&id)?;
        self.names.ended(id.0, scope, session, prompt, &tokens, at.0);
        let output = (tokens.len() - prompt) as u32;
        Some(Line::End(End { id: id.0, at: at.0, reason: reason.to_owned(), output }))
    }
}

/// Describes a policy by its origin, or by its info alone if that was forgotten.
pub fn describe(kind: PolicyKind, info: &PolicyInfo, origin: Option<&Origin>) -> Policy {
    let members = match origin {
        Some(origin) => origin
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

#[cfg(test)]
mod tests {
    use infer_core::{AdapterId, SamplingParams, SessionId};

    use super::*;

    fn writer() -> Writer {
        let host =
            Settings { block_size: 4, max_batch_size: 2, max_waiting_requests: 3, ..Settings::default() };
        Writer::new(&host, |_, _| Policy::default())
    }

    fn taken(id: u64) -> Happening {
        let request = infer_core::Request {
            tenant: TenantId(0),
            session: SessionId(0),
            cache_salt: 0,
            adapter: AdapterId::NONE,
            priority: 0,
            deadline: Micros::NEVER,
            prompt: [id as u32; 9].into(),
            max_new_tokens: 4,
            expected_output: None,
            min_new_tokens: 0,
            stop_tokens: [].into(),
            sampling: SamplingParams::default(),
        };
        Happening::Taken { id: SequenceId(id), sent: Micros(id), at: Micros(id), request: Box::new(request) }
    }

    #[test]
    fn requests_whose_end_was_lost_are_dropped() {
        let (mut writer, mut out) = (writer(), Vec::new());
        (1..=4).for_each(|id| writer.happened(taken(id), &mut out));
        writer.happened(Happening::Lost(7), &mut out);
        (5..=90).for_each(|id| writer.happened(taken(id), &mut out));
        assert_eq!(writer.live.len(), 5, "two run and three wait at most");
        let late = Happening::Ended { id: SequenceId(1), at: Micros(99), reason: None };
        let before = out.len();
        writer.happened(late, &mut out);
        assert_eq!(out.len(), before, "no line is written for the end of a dropped request");
        writer.end("stopped", Micros(100), &mut out);
        let text = String::from_utf8(out).unwrap();
        let open: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let open = open.iter().filter_map(|line| match line {
            Line::End(end) => Some((end.id, end.reason.as_str())),
            _ => None,
        });
        assert_eq!(open.collect::<Vec<_>>(), (86..=90).map(|id| (id, "open")).collect::<Vec<_>>());
    }

    #[test]
    fn tenants_with_terms_have_the_numbers_of_their_requests() {
        let (mut writer, mut out) = (writer(), Vec::new());
        let terms = TenantTerms { weight_permille: 2_000, rate_per_minute: 600, burst: 50 };
        let all = [(TenantId(3), TenantTerms::default()), (TenantId(7), terms), (TenantId(0), terms)];
        let granted = writer.tenants(&all);
        let tenant = |tenant| Tenant { tenant, weight_permille: 2_000, rate_per_minute: 600, burst: 50 };
        assert_eq!(granted, [tenant(0), tenant(1)]);
        assert_eq!(settings::terms(&granted), [(TenantId(0), terms), (TenantId(1), terms)]);
        writer.happened(taken(1), &mut out);
        let line: Line = serde_json::from_slice(&out).unwrap();
        assert!(matches!(line, Line::Request(Request { tenant: 1, .. })), "tenant 0 of the host: {line:?}");
    }

    #[test]
    fn what_a_client_expects_is_recorded() {
        let (mut writer, mut out) = (writer(), Vec::new());
        let mut happening = taken(1);
        if let Happening::Taken { request, .. } = &mut happening {
            request.expected_output = Some(3);
        }
        writer.happened(happening, &mut out);
        let line: Line = serde_json::from_slice(&out).unwrap();
        assert!(matches!(line, Line::Request(Request { expected: Some(3), .. })), "{line:?}");
    }

    #[test]
    fn all_requests_are_kept_while_nothing_is_lost() {
        let (mut writer, mut out) = (writer(), Vec::new());
        // Preempted requests occupy no slot of the queue.
        (1..=9).for_each(|id| writer.happened(taken(id), &mut out));
        assert_eq!(writer.live.len(), 9);
    }
}
