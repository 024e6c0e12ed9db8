//! Admission policies in a chain: which member decides, which one is at fault, and what each keeps.

mod faults;
mod members;
mod states;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CallStats, Chain, FaultKind, Gauge, Load, Policy, PolicyFault,
    PolicyInfo, Pressure, Verdict,
};
use infer_core::{Durations, Micros, SequenceId, SessionId, TenantId};

type Log = Arc<Mutex<Vec<String>>>;

/// Answers from a list, and admits when that is used up. Its state counts the answers it gave.
struct Member {
    name: String,
    config_digest: &'static str,
    log: Log,
    answers: VecDeque<Result<Verdict, PolicyFault>>,
    pressure: Pressure,
    given: u8,
    /// Its calls' total, and what each takes in microseconds, by the number of calls before it.
    spent: Micros,
    takes_us: fn(u8) -> u64,
}

impl Member {
    fn new(name: &str, log: &Log) -> Self {
        Self {
            name: name.into(),
            config_digest: "",
            log: log.clone(),
            answers: VecDeque::new(),
            pressure: Pressure::default(),
            given: 0,
            spent: Micros::ZERO,
            takes_us: |_| 0,
        }
    }

    fn answers(self, answers: impl IntoIterator<Item = Result<Verdict, PolicyFault>>) -> Self {
        Self { answers: answers.into_iter().collect(), ..self }
    }

    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{} {what}", self.name));
    }
}

impl Policy for Member {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo {
            name: self.name.clone(),
            digest: format!("digest of {}", self.name),
            config_digest: self.config_digest.to_owned(),
            ..PolicyInfo::default()
        })
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(if self.given == 0 { Vec::new() } else { vec![self.given] })
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.note(&format!("import {state:?}"));
        match *state {
            [given] if given < 100 => self.given = given,
            _ => return Err(PolicyFault::new(FaultKind::Setup, "that is too much")),
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.note("restart");
        self.given = 0;
        Ok(())
    }

    fn spent(&self) -> Micros {
        self.spent
    }

    fn stats(&self) -> CallStats {
        let mut durations = Durations::default();
        (0..self.given).for_each(|_| durations.add(1_500));
        CallStats { calls: u64::from(self.given), p50_us: 1.5, p99_us: 10.0, durations }
    }

    fn gauges(&self) -> Vec<Gauge> {
        vec![Gauge { policy: self.name.clone(), name: "given".to_owned(), value: f64::from(self.given) }]
    }
}

impl AdmissionPolicy for Member {
    fn admit(&mut self, _request: &AdmissionRequest, _load: &Load) -> Result<Verdict, PolicyFault> {
        self.note("admit");
        self.spent = self.spent.plus(Micros((self.takes_us)(self.given)));
        self.given += 1;
        self.answers.pop_front().unwrap_or(Ok(Verdict::Admit))
    }

    fn measure(&mut self, _load: &Load) -> Result<Pressure, PolicyFault> {
        Ok(self.pressure)
    }
}

fn chain<const N: usize>(members: [Member; N]) -> Chain {
    Chain::new(members.into_iter().map(|member| Box::new(member) as _).collect()).expect("a valid chain")
}

/// Of members that admit.
fn chain_of<const N: usize>(names: [&str; N], log: &Log) -> Chain {
    chain(names.map(|name| Member::new(name, log)))
}

fn ask(chain: &mut Chain) -> Result<Verdict, PolicyFault> {
    let request = AdmissionRequest {
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(0),
        deadline: Micros::NEVER,
        prompt_tokens: 1,
        cached_tokens: 0,
        idle_blocks: 0,
        max_new_tokens: 1,
        expected_tokens: 1,
    };
    chain.admit(&request, &Load::default())
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}
