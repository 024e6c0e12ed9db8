//! One run: drives the engine in virtual time until the traffic ends.

use std::collections::{BTreeMap, VecDeque};

use infer_core::TenantTerms;
use infer_core::batch::Batch;
use infer_core::config::EngineConfig;
use infer_core::engine::{Engine, Policies};
use infer_core::event::Event;
use infer_core::executor::StepOutput;
use infer_core::ids::{Micros, SequenceId, TenantId};
use infer_core::snapshot::Snapshot;

use crate::cost::Profile;
use crate::device::VirtualDevice;
use crate::metrics::{
    Ended, Ending, Known, Origin, Outcome, Recorder, RequestOutcome, Sample, Slo, Start, Watch, count,
    in_time,
};
use crate::predictions::Predictions;
use crate::trace::{Reader, Replay, TraceError};
use crate::workload::{Arrival, Capacity, Generator, Traffic, Workload};

/// Time to advance if the engine has work but names no wake-up.
const TICK: Micros = Micros(1_000);

/// Inputs of a run besides policies and traffic.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine's configuration.
    pub engine: EngineConfig,
    /// The device and the model.
    pub profile: Profile,
    /// Host time per step, for which the device waits unless the engine plans ahead.
    pub host: Micros,
    /// Offered load as a fraction of the device's capacity, or of another's; for a trace, the factor by which it is
    /// replayed faster than recorded.
    pub load: f64,
    /// Latency targets of goodput.
    pub slo: Slo,
    /// Seed of the traffic.
    pub seed: u64,
    /// What tenants are granted; the others have the default.
    pub tenants: Vec<(TenantId, TenantTerms)>,
    /// What requests say of the length of their outputs.
    pub predictions: Predictions,
}

/// Simulates `workload` to its end, at a load of the device's own capacity. Calls `progress` with the number of finished
/// requests.
///
/// # Panics
/// If a request of the workload may exceed the maximum sequence length (`Workload::longest`), or if the engine violates
/// an invariant.
pub fn simulate(
    settings: &Settings,
    policies: Policies,
    workload: &Workload,
    progress: impl FnMut(u64),
) -> Outcome {
    simulate_watched(settings, policies, workload, &Capacity::of(workload, settings), progress)
}

/// Simulates `workload` to its end, at a load of `capacity`. Otherwise like [`simulate`].
///
/// # Panics
/// As [`simulate`].
pub fn simulate_watched(
    settings: &Settings,
    policies: Policies,
    workload: &Workload,
    capacity: &Capacity,
    watch: impl Watch,
) -> Outcome {
    let traffic = Generator::new(workload, capacity, settings);
    Run::new(settings, policies, traffic, watch).complete().0
}

/// Replays at most `requests` requests of a trace.
///
/// # Errors
/// If the trace can't be read to its end.
///
/// # Panics
/// If the engine violates an invariant.
pub fn replay(
    settings: &Settings,
    policies: Policies,
    trace: Reader<'_>,
    requests: u64,
    progress: impl FnMut(u64),
) -> Result<Outcome, TraceError> {
    replay_watched(settings, policies, trace, requests, progress)
}

/// Replays like [`replay`].
///
/// # Errors
/// As [`replay`].
///
/// # Panics
/// As [`replay`].
pub fn replay_watched(
    settings: &Settings,
    policies: Policies,
    trace: Reader<'_>,
    requests: u64,
    watch: impl Watch,
) -> Result<Outcome, TraceError> {
    let traffic = Replay::new(trace, settings.load, requests, settings.engine.max_seq_len);
    let (mut outcome, mut traffic) = Run::new(settings, policies, traffic, watch).complete();
    for tenant in &mut outcome.tenants {
        tenant.name = traffic.name_of(tenant.tenant);
    }
    traffic.error().map_or(Ok(outcome), Err)
}

struct Run<T, W> {
    watch: W,
    engine: Engine,
    device: VirtualDevice,
    traffic: T,
    predictions: Predictions,
    seed: u64,
    recorder: Recorder,
    live: BTreeMap<SequenceId, Live>,
    /// How many of them are reported on.
    reported: usize,
    events: Vec<Event>,
    /// Batches on the device, oldest first.
    out: VecDeque<Out>,
    /// Output buffers to reuse.
    spare: Vec<StepOutput>,
    host: Micros,
    /// When the device has finished all its batches.
    device_free: Micros,
    now: Micros,
    /// When the first request of the report arrived, and what was counted before.
    begun: Option<Begun>,
    block_size: u32,
    fingerprint: u64,
    steps: u64,
}

/// Counts of the engine when the part of a run begins that reports are about.
#[derive(Clone, Copy)]
struct Begun {
    at: Micros,
    steps: u64,
    evicted_blocks: u64,
    onloaded_blocks: u64,
}

/// A batch on the device, its output, and when it is done.
struct Out {
    batch: Batch,
    output: StepOutput,
    done: Micros,
}

/// A request in flight.
struct Live {
    known: Known,
    origin: Origin,
    /// Under which the traffic must be notified of its end.
    key: Option<u64>,
    /// See `Arrival::follows`.
    follows: bool,
    reply: Vec<u32>,
    last_token: Option<Micros>,
    /// Microseconds between its tokens, if it is reported on.
    gaps: Vec<u32>,
    started: bool,
    /// See `Start::is_hit`; `None` before its start.
    is_hit: Option<bool>,
}

impl<T: Traffic, W: Watch> Run<T, W> {
    fn new(settings: &Settings, policies: Policies, traffic: T, watch: W) -> Self {
        let Settings { engine: config, profile, host, seed, slo, tenants, predictions, .. } = settings;
        let mut engine = Engine::new(config.clone(), policies);
        engine.set_tenants(tenants);
        Self {
            watch,
            traffic,
            predictions: *predictions,
            seed: *seed,
            engine,
            device: VirtualDevice::new(profile.clone(), config.block_size, *seed),
            recorder: Recorder::new(*slo, tenants),
            live: BTreeMap::new(),
            reported: 0,
            events: Vec::new(),
            out: VecDeque::new(),
            spare: Vec::new(),
            host: *host,
            device_free: Micros::ZERO,
            now: Micros(1),
            begun: None,
            block_size: config.block_size,
            fingerprint: 0xCBF2_9CE4_8422_2325,
            steps: 0,
        }
    }

    fn complete(mut self) -> (Outcome, T) {
        while !self.is_over() && self.turn() {
            let so_far = &self.recorder.outcome;
            self.watch.progress(so_far.finished + so_far.refused + so_far.failed);
        }
        self.finish()
    }

    /// Whether everything has ended that is reported on.
    fn is_over(&self) -> bool {
        self.traffic.is_over() && self.reported == 0
    }

    /// Submits requests that have arrived, fills the device with batches and waits for the first; or advances time to
    /// the next arrival or wake-up. False when everything is finished.
    fn turn(&mut self) -> bool {
        while let Some(arrival) = self.traffic.pop(self.now) {
            self.submit(arrival);
        }
        let most = 1 + usize::from(self.engine.plans_ahead());
        while self.out.len() < most && self.begin() {}
        match self.out.pop_front() {
            Some(Out { batch, output, done }) => {
                self.pass(done);
                self.engine.finish_step(batch, Ok(&output), self.now);
                self.spare.push(output);
                self.steps += 1;
            }
            None => {
                let arrival = self.traffic.next_at();
                let wake =
                    self.engine.has_work().then(|| self.engine.next_wake().unwrap_or(self.now.plus(TICK)));
                let Some(next) = [arrival, wake].into_iter().flatten().min() else {
                    self.collect();
                    return false;
                };
                self.pass(next.max(self.now.plus(Micros(1))));
            }
        }
        self.collect();
        true
    }

    /// Lets time pass, during which the pool and the queue stay as they are.
    fn pass(&mut self, to: Micros) {
        if self.begun.is_some() {
            let (engine, now) = (&mut self.engine, self.now);
            self.recorder.occupancy.add(&engine.memory(), to.since(now));
            self.recorder.samples.between(now, to, || sample(&engine.snapshot(now)));
        }
        self.now = to;
    }

    /// Plans a batch and gives it to the device. False if there is none to run.
    fn begin(&mut self) -> bool {
        let Some(batch) = self.engine.begin_step(self.now) else { return false };
        for row in &batch.rows {
            self.note(row.sequence.0 ^ (u64::from(row.token_len) << 48));
        }
        let mut output = self.spare.pop().unwrap_or_default();
        let took = self.device.execute(&batch, &mut output);
        let done = self.now.plus(self.host).max(self.device_free).plus(Micros(took));
        self.device_free = done;
        self.out.push_back(Out { batch, output, done });
        true
    }

    fn submit(&mut self, arrival: Arrival) {
        let Arrival {
            at,
            conversation: key,
            background,
            begins,
            follows,
            identity,
            mut request,
            prompt_tokens,
            output_tokens,
            new_tokens,
            stream,
        } = arrival;
        let predicted = self.predictions.of(output_tokens, self.seed, identity);
        request.expected_output = predicted.or(request.expected_output);
        let (tenant, deadline) = (request.tenant.0, request.deadline);
        let origin = Origin { tenant, background };
        if !background {
            self.begin_reporting(at);
        }
        self.recorder.arrived(origin, (begins || follows).then_some(at));
        let session = request.session.0;
        let known = Known {
            request: self.recorder.outcome.requests,
            tenant,
            conversation: (session != 0).then_some(session),
            arrived: at,
            prompt_tokens,
            new_tokens,
            event: None,
            priority: request.priority,
            max_tokens: request.max_new_tokens,
            deadline,
            stream,
        };
        let live = Live {
            known,
            origin,
            key,
            follows,
            reply: Vec::new(),
            last_token: None,
            gaps: Vec::new(),
            started: false,
            is_hit: None,
        };
        match self.engine.submit(request, self.now) {
            Ok(id) => {
                self.device.expect(id, output_tokens);
                self.live.insert(id, live);
                self.reported += usize::from(!background);
            }
            Err(_) => self.refused(&live),
        }
    }

    /// A request that is reported on arrives; what was counted before the first one is no part of the outcome.
    fn begin_reporting(&mut self, at: Micros) {
        if self.begun.is_none() {
            let counters = self.engine.snapshot(self.now).counters;
            let (evicted_blocks, onloaded_blocks) = (counters.evicted_blocks, counters.onloaded_blocks);
            self.begun = Some(Begun { at, steps: self.steps, evicted_blocks, onloaded_blocks });
        }
    }

    fn refused(&mut self, live: &Live) {
        let Live { known, origin, .. } = live;
        self.recorder.refused(*origin, known.deadline != Micros::NEVER);
        self.tell(*origin, &known.outcome(Ending::Refused, None, &mut [], self.now));
        if live.follows {
            self.recorder.lasts(self.now);
        }
        if let Some(key) = live.key {
            self.traffic.ended(key, None, self.now);
        }
    }

    fn collect(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.engine.drain_events(&mut events);
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
        self.engine.take_retired();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Token { id, token, .. } => {
                self.note(id.0 ^ (u64::from(token) << 32));
                let Some(live) = self.live.get_mut(&id) else { return };
                let gap = live.last_token.replace(self.now).map(|last| self.now.since(last));
                if live.key.is_some() {
                    live.reply.push(token);
                }
                if let Some(gap) = gap.filter(|_| !live.origin.background) {
                    live.gaps.push(u32::try_from(gap.0).unwrap_or(u32::MAX));
                }
                self.recorder.token(live.origin, gap);
            }
            Event::Started { id, prefix, cached_tokens, prefill_tokens, .. } => {
                let Some(live) = self.live.get_mut(&id) else { return };
                let start = Start {
                    origin: live.origin,
                    prefix,
                    cached: cached_tokens,
                    prefill: prefill_tokens,
                    has_block: live.known.prompt_tokens >= self.block_size,
                };
                live.known.event = Some(prefix);
                (live.started, live.is_hit) = (true, start.is_hit());
                self.recorder.started(start);
            }
            Event::Finished { id, usage, .. } => {
                if let Some(Live { known, origin, is_hit, mut gaps, .. }) = self.end(id, true) {
                    let (arrived, deadline) = (known.arrived, known.deadline);
                    self.recorder.finished(&Ended { origin, arrived, deadline, is_hit }, &usage);
                    self.tell(origin, &known.outcome(Ending::Finished, Some(&usage), &mut gaps, self.now));
                }
            }
            Event::Failed { id, usage, .. } => {
                if let Some(Live { known, origin, started, mut gaps, .. }) = self.end(id, false) {
                    self.recorder.failed(origin, started, in_time(&usage, known.deadline));
                    self.tell(origin, &known.outcome(Ending::Failed, Some(&usage), &mut gaps, self.now));
                }
            }
            Event::Refused { id, .. } => {
                if let Some(Live { known, origin, .. }) = self.end(id, false) {
                    self.recorder.refused(origin, known.deadline != Micros::NEVER);
                    self.tell(origin, &known.outcome(Ending::Refused, None, &mut [], self.now));
                }
            }
            Event::Preempted { id, .. } => {
                self.recorder.preempted(self.live.get(&id).map(|live| live.origin));
            }
            Event::PolicyFault(fault) => self.recorder.faults.add(&fault),
            _ => {}
        }
    }

    /// Tells the watch of a request that has ended.
    fn tell(&mut self, origin: Origin, outcome: &RequestOutcome) {
        if !origin.background {
            self.watch.request(outcome);
        }
    }

    /// Ends a request, which may schedule the next turn of its conversation.
    fn end(&mut self, id: SequenceId, well: bool) -> Option<Live> {
        self.device.forget(id);
        let live = self.live.remove(&id)?;
        self.reported -= usize::from(!live.origin.background);
        if live.follows {
            self.recorder.lasts(self.now);
        }
        if let Some(key) = live.key {
            self.traffic.ended(key, well.then_some(&live.reply), self.now);
        }
        Some(live)
    }

    fn finish(mut self) -> (Outcome, T) {
        assert!(self.is_over() || self.live.is_empty(), "every request ends");
        let snapshot = self.engine.snapshot(self.now);
        let nothing = Begun { at: self.now, steps: 0, evicted_blocks: 0, onloaded_blocks: 0 };
        let begun = self.begun.unwrap_or(nothing);
        let outcome = &mut self.recorder.outcome;
        outcome.evicted_blocks = snapshot.counters.evicted_blocks - begun.evicted_blocks;
        outcome.onloaded_blocks = snapshot.counters.onloaded_blocks - begun.onloaded_blocks;
        outcome.steps = self.steps - begun.steps;
        outcome.seconds = count(self.now.since(begun.at).0) / 1e6;
        outcome.builtin_share = self.recorder.faults.share(self.steps);
        outcome.fingerprint = format!("{:016x}", self.fingerprint);
        (self.recorder.finish(sample(&snapshot)), self.traffic)
    }

    /// Adds a word to the fingerprint (FNV-1a).
    fn note(&mut self, word: u64) {
        self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01B3);
    }
}

fn sample(snapshot: &Snapshot) -> Sample {
    let Snapshot { now, memory, queue, policies, .. } = snapshot;
    let gauges = policies.iter().flat_map(|slot| &slot.gauges);
    Sample {
        at_s: count(now.0) / 1e6,
        used: memory.used,
        cached: memory.cached,
        free: memory.free,
        running: queue.running,
        waiting: queue.waiting + queue.held + queue.preempted,
        gauges: gauges.map(|gauge| (format!("{}.{}", gauge.policy, gauge.name), gauge.value)).collect(),
    }
}
