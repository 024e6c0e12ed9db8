//! What clients get and ask for, in slices of half a second: the measurements by which a canary is judged
//! (`judge`).
//!
//! Always on, so that there is a baseline; so a token costs two comparisons, a step a few dozen additions,
//! and memory is bounded. Slices in which nothing ran are not kept. Times between tokens are kept apart by
//! load: by the number of running sequences, to half an octave, and by whether prefill shared the step.

mod histogram;
mod judge;

use std::collections::VecDeque;

use histogram::Histogram;
pub(crate) use judge::{FEWEST_BEFORE, Outlook, judge, summarize};

use crate::ids::Micros;

/// How long a slice lasts.
pub(crate) const SLICE: Micros = Micros(500_000);
/// Slices kept: the last minute with work or refusals in it.
const KEPT: usize = 120;

/// Half a second, or a step that took longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slice {
    pub start: Micros,
    /// From the end of the preceding slice to its own: more than its length if the host was idle.
    pub wall_us: u64,
    /// Of that, the time in which there was work.
    pub busy_us: u64,
    /// Of that, the time in which some of it waited.
    pub waiting_us: u64,
    pub computed: u64,
    pub generated: u64,
    /// Requests, the refused ones among them, and what they ask for.
    pub arrivals: u32,
    pub refused: u32,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Sequences that wait at its end.
    pub waiting: u32,
    pub first_tokens: u32,
    pub ttft_p50: u64,
    pub classes: Vec<Class>,
}

/// Times between tokens under one kind of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub load: LoadClass,
    pub ran: Ran,
    pub tokens: u32,
    pub p50: u64,
    pub p95: u64,
}

/// How many sequences run, to half an octave, and whether prefill shares the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoadClass(u8);

/// The fewest and the most sequences that ran in steps of one class of load, which may be fewer than it spans: a
/// batch has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub fewest: u32,
    pub most: u32,
}

/// What a step did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLoad {
    pub running: u32,
    pub waiting: u32,
    /// Prompt tokens computed, and tokens sampled.
    pub prefill: u64,
    pub drawn: u64,
    pub computed: u64,
}

/// Fills slices.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    open: Slice,
    steps: u32,
    ttft: Histogram,
    classes: Vec<OpenClass>,
    kept: VecDeque<Slice>,
    closed: u64,
    /// Up to here time is accounted for.
    noted: Micros,
    /// When the last step ended, also as sequences note it.
    last_step: u32,
    last_step_at: Micros,
    /// First tokens of the step that ends.
    firsts: u32,
    /// Times since the last token of those that missed a step.
    late: Vec<u32>,
    /// Whether there is work, and how many sequences wait.
    busy: bool,
    waiting: u32,
}

/// A class of load in the open slice.
#[derive(Debug)]
struct OpenClass {
    load: LoadClass,
    ran: Ran,
    times: Histogram,
}

impl Slice {
    /// How much of a trial's window it counts for.
    pub fn counts_as(&self) -> Micros {
        SLICE.max(Micros(self.busy_us))
    }
}

impl LoadClass {
    fn of(running: u32, shared: bool) -> Self {
        let running = running.max(1);
        let octave = running.ilog2();
        let half = if octave == 0 { 0 } else { running >> (octave - 1) & 1 };
        Self(((2 * octave + half) * 2 + u32::from(shared)) as u8)
    }

    /// For a person: with what ran in its steps.
    pub fn words(self, Ran { fewest, most }: Ran) -> String {
        let shared = if self.0 & 1 == 1 { ", prompts in the same steps" } else { "" };
        match (fewest, most) {
            (1, 1) => format!("1 sequence running{shared}"),
            _ if fewest == most => format!("{most} sequences running{shared}"),
            _ => format!("{fewest} to {most} sequences running{shared}"),
        }
    }
}

impl Ran {
    fn just(running: u32) -> Self {
        Self { fewest: running, most: running }
    }

    /// What ran in the steps of both.
    pub fn and(self, other: Self) -> Self {
        Self { fewest: self.fewest.min(other.fewest), most: self.most.max(other.most) }
    }
}

/// An instant as a sequence notes it: wraps after 71 minutes, longer than any wait for a token.
pub(crate) fn short(at: Micros) -> u32 {
    at.0 as u32
}

impl Recorder {
    /// One that begins then.
    pub fn begin_at(now: Micros) -> Self {
        Self { open: Slice { start: now, ..Slice::default() }, noted: now, ..Self::default() }
    }

    /// A request arrived, asking for this much.
    pub fn arrived(&mut self, now: Micros, prompt: u32, output: u32) {
        self.pass(now);
        self.open.arrivals += 1;
        self.open.prompt_tokens += u64::from(prompt);
        self.open.output_tokens += u64::from(output);
    }

    /// The admission policy refused one.
    pub fn refused(&mut self) {
        self.open.refused += 1;
    }

    /// A sequence drew its first token.
    pub fn first_token(&mut self, ttft: Micros) {
        self.ttft.add(ttft.0, 1);
        self.firsts += 1;
    }

    /// A sequence sampled another token; its last one was at `drawn_at`. Nearly all sampled it in the last
    /// step, and are counted when this one ends.
    #[inline]
    pub fn token(&mut self, drawn_at: u32, now: Micros) {
        if drawn_at != self.last_step {
            self.late_token(short(now).wrapping_sub(drawn_at));
        }
    }

    #[cold]
    fn late_token(&mut self, us: u32) {
        self.late.push(us);
    }

    /// A step ended.
    pub fn step(&mut self, now: Micros, load: StepLoad) {
        self.busy = true;
        self.pass(now);
        self.steps += 1;
        self.open.computed += load.computed;
        self.open.generated += load.drawn;
        let others = self.late.len() as u64 + u64::from(std::mem::take(&mut self.firsts));
        let in_time = load.drawn.saturating_sub(others) as u32;
        if in_time > 0 || !self.late.is_empty() {
            let of = LoadClass::of(load.running, load.prefill > 0);
            let ran = Ran::just(load.running.max(1));
            let class = match self.classes.iter().position(|class| class.load == of) {
                Some(at) => &mut self.classes[at],
                None => {
                    self.classes.push(OpenClass { load: of, ran, times: Histogram::default() });
                    self.classes.last_mut().expect("just pushed")
                }
            };
            // A class without times is a closed slice's.
            class.ran = if class.times.total() == 0 { ran } else { class.ran.and(ran) };
            class.times.add(now.since(self.last_step_at).0, in_time);
            for us in self.late.drain(..) {
                class.times.add(u64::from(us), 1);
            }
        }
        self.last_step = short(now);
        self.last_step_at = now;
        self.waiting = load.waiting;
    }

    /// The load between steps.
    pub fn stands(&mut self, now: Micros, busy: bool, waiting: u32) {
        self.pass(now);
        self.busy = busy;
        self.waiting = waiting;
    }

    /// Closes the open slice, because something changes.
    pub fn cut(&mut self, now: Micros) {
        self.pass(now);
        self.close(now);
    }

    /// Slices closed since start.
    pub fn closed(&self) -> u64 {
        self.closed
    }

    /// Those after the first `seen`, as far as they are kept.
    pub fn closed_since(&self, seen: u64) -> std::collections::vec_deque::Iter<'_, Slice> {
        let new = usize::try_from(self.closed - seen).unwrap_or(usize::MAX).min(self.kept.len());
        self.kept.range(self.kept.len() - new..)
    }

    /// The last slices, no more than `window` of them and none from before `since`.
    pub fn before(&self, since: Micros, window: Micros) -> Vec<Slice> {
        let mut sum = Micros::ZERO;
        let recent = self.kept.iter().rev().take_while(|slice| {
            let fits = sum < window && slice.start >= since;
            sum = sum.plus(slice.counts_as());
            fits
        });
        recent.cloned().collect()
    }

    /// Accounts for the time up to now.
    fn pass(&mut self, now: Micros) {
        let passed = now.since(self.noted).0;
        self.noted = self.noted.max(now);
        self.open.wall_us += passed;
        if self.busy {
            self.open.busy_us += passed;
            self.open.waiting_us += if self.waiting > 0 { passed } else { 0 };
        }
        if now.since(self.open.start) >= SLICE {
            self.close(now);
        }
    }

    fn close(&mut self, now: Micros) {
        if std::mem::take(&mut self.steps) == 0 && self.open.refused == 0 {
            // Nothing was asked, or all of it waits: the time counts towards the next slice, and so do its
            // requests. If all were refused, nothing ever runs.
            self.open.start = now;
            return;
        }
        let mut slice = std::mem::replace(&mut self.open, Slice { start: now, ..Slice::default() });
        slice.waiting = self.waiting;
        slice.first_tokens = self.ttft.total();
        slice.ttft_p50 = self.ttft.percentile(50);
        self.ttft.clear();
        for OpenClass { load, ran, times } in &mut self.classes {
            if times.total() > 0 {
                let (p50, p95) = (times.percentile(50), times.percentile(95));
                slice.classes.push(Class { load: *load, ran: *ran, tokens: times.total(), p50, p95 });
                times.clear();
            }
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(slice);
        self.closed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(recorder: &mut Recorder, at: u64, drawn: u32) {
        let load = StepLoad { running: 2, waiting: 0, prefill: 0, drawn: u64::from(drawn), computed: 0 };
        recorder.step(Micros(at), load);
    }

    #[test]
    fn times_between_tokens_are_a_sequences_own() {
        let mut recorder = Recorder::default();
        let mut drawn_at = [0; 2];
        for turn in 1..=200u64 {
            let now = Micros(turn * 5_000);
            let odd = usize::from(turn % 2 == 1);
            // One samples in every step, the other in every second.
            let drawing = &[0, 1][..1 + odd];
            for &at in drawing {
                match turn {
                    1 => recorder.first_token(now),
                    _ => recorder.token(drawn_at[at], now),
                }
                drawn_at[at] = short(now);
            }
            step(&mut recorder, now.0, drawing.len() as u32);
        }
        let slices: Vec<_> = recorder.closed_since(0).collect();
        assert_eq!(slices.len(), 2);
        let class = slices[1].classes[0];
        assert_eq!(slices[1].classes.len(), 1);
        assert!((4_800..5_200).contains(&class.p50) && (9_600..10_400).contains(&class.p95), "{class:?}");
    }

    #[test]
    fn idle_time_counts_towards_no_slice_and_slices_are_bounded() {
        let mut recorder = Recorder::default();
        for turn in 0..2_000u64 {
            recorder.arrived(Micros(turn * 10_000_000), 7, 3);
            step(&mut recorder, turn * 10_000_000 + 100_000, 1);
            recorder.stands(Micros(turn * 10_000_000 + 100_000), false, 0);
        }
        let all: Vec<_> = recorder.closed_since(0).collect();
        assert_eq!(all.len(), KEPT);
        assert!(all.iter().all(|s| s.arrivals == 1 && s.busy_us <= 100_000 && s.wall_us >= 9_000_000));
        assert_eq!(recorder.before(Micros::ZERO, Micros(5_000_000)).len(), 10);
        let late = Micros(1_999 * 10_000_000 - 25_000_000);
        assert_eq!(recorder.before(late, Micros(5_000_000)).len(), 2);
    }

    #[test]
    fn a_class_of_load_spans_half_an_octave() {
        assert_ne!(LoadClass::of(3, false), LoadClass::of(2, false));
        assert_ne!(LoadClass::of(12, false), LoadClass::of(11, false));
        assert_ne!(LoadClass::of(12, false), LoadClass::of(12, true));
        assert_eq!(LoadClass::of(8, false), LoadClass::of(11, false));
    }

    #[test]
    fn a_class_of_load_is_named_by_what_ran_in_each_slice() {
        let mut recorder = Recorder::default();
        let mut now = 0;
        for (running, prefill) in [(8, 0), (9, 0), (8, 0), (12, 5), (1, 0)] {
            // A slice each of two steps, of which the first runs eight, if that counts as the same load.
            for first in [true, false] {
                now += 100_000;
                let running = if first && (8..12).contains(&running) { 8 } else { running };
                recorder.step(Micros(now), StepLoad { running, waiting: 0, prefill, drawn: 1, computed: 1 });
            }
            recorder.cut(Micros(now));
        }
        let words: Vec<String> = recorder
            .closed_since(0)
            .filter_map(|slice| slice.classes.first().map(|class| class.load.words(class.ran)))
            .collect();
        let expected = [
            "8 sequences running",
            "8 to 9 sequences running",
            "8 sequences running",
            "12 sequences running, prompts in the same steps",
            "1 sequence running",
        ];
        assert_eq!(words, expected);
    }
}
