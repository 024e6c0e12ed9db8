//! Why a request waits, in a few words. Derived from the host's numbers: what the request needs, what is
//! available, how many requests are ahead of it. It makes no assumption about a policy's decisions.

use infer_api::admin::{RequestRow, State};

use crate::text::count;

/// A reason, and how many requests are ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    text: String,
    short: String,
    ahead: usize,
}

impl Why {
    /// Returns the whole text.
    #[must_use]
    pub fn full(&self) -> String {
        match self.ahead {
            0 => format!("{}; next in line", self.text),
            ahead => format!("{}; {} ahead", self.text, count(ahead as u64)),
        }
    }

    /// Returns the longest form that fits `width` characters: words are dropped first, then the position in
    /// the queue; the numbers stay.
    #[must_use]
    pub fn within(&self, width: usize) -> String {
        let place = match self.ahead {
            0 => "next".to_owned(),
            ahead => format!("{} ahead", count(ahead as u64)),
        };
        let (text, short) = (&self.text, &self.short);
        let forms = [self.full(), format!("{text}; {place}"), format!("{short}; {place}"), text.clone()];
        let fits = |form: &String| form.chars().count() <= width;
        forms.into_iter().find(fits).unwrap_or_else(|| short.clone())
    }
}

/// Returns the reason; `None` for a running request. `ahead` is how many requests wait before it.
#[must_use]
pub fn waits(row: &RequestRow, state: &State, ahead: usize) -> Option<Why> {
    let memory = &state.memory;
    let why = |text: String, short: String| Some(Why { text, short, ahead });
    let number = |value: u32| count(value.into());
    let size = memory.block_size.max(1);
    let there = memory.free + memory.cached;
    let need = blocks_needed(row, size);
    match row.state.as_str() {
        "held" => {
            let pressure = &state.pressure;
            // Admission considers the length that the request may grow to, not what it starts with.
            let whole = (row.prompt_tokens + row.max_tokens).saturating_sub(1).div_ceil(size);
            let left = pressure.available_blocks;
            if whole > left {
                let (whole, left) = (number(whole), number(left));
                let text = format!("admission: may need {whole} blocks, {left} unreserved");
                why(text, format!("may need {whole} of {left}"))
            } else if pressure.max_sequence_tokens == 0 {
                // There is memory for this one, yet even the shortest would have to wait.
                let queue = &state.queue;
                let short = format!("{} in flight", number(queue.running + queue.waiting + queue.preempted));
                why(format!("admission takes nothing now, {short}"), short)
            } else if pressure.backpressure {
                let short = format!("backpressure at {:.2}", pressure.level);
                why(format!("admission: {short}"), short)
            } else {
                why("deferred by admission".to_owned(), "deferred".to_owned())
            }
        }
        "waiting" | "preempted" => {
            let free = state.pressure.max_sequences.saturating_sub(state.queue.running);
            if need > there {
                let (need, there) = (number(need), number(there));
                why(format!("needs {need} blocks, {there} available"), format!("needs {need} of {there}"))
            } else if ahead as u64 >= u64::from(free) {
                let (running, slots) = (number(state.queue.running), number(state.pressure.max_sequences));
                let text = format!("{running} of {slots} batch slots taken");
                why(text, format!("{running} of {slots} taken"))
            } else {
                why("not scheduled yet".to_owned(), "not scheduled".to_owned())
            }
        }
        _ => None,
    }
}

/// Returns the blocks that the request needs to start, less those it would find in the cache.
fn blocks_needed(row: &RequestRow, block_size: u32) -> u32 {
    let tokens = row.prompt_tokens + row.generated_tokens;
    tokens.div_ceil(block_size).saturating_sub(row.cached_tokens / block_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_api::admin::{Memory, Pressure, Queue};

    fn host(free: u32, running: u32) -> State {
        State {
            memory: Memory { block_size: 16, total: 100, free, ..Memory::default() },
            queue: Queue { running, ..Queue::default() },
            pressure: Pressure { max_sequences: 4, available_blocks: free, ..Pressure::default() },
            ..State::default()
        }
    }

    fn row(state: &str) -> RequestRow {
        RequestRow { state: state.into(), prompt_tokens: 160, max_tokens: 32, ..RequestRow::default() }
    }

    #[test]
    fn the_reason_names_what_is_short() {
        let why =
            |state, free, running, ahead| waits(&row(state), &host(free, running), ahead).unwrap().full();
        assert_eq!(why("waiting", 3, 1, 0), "needs 10 blocks, 3 available; next in line");
        assert_eq!(why("waiting", 50, 4, 2), "4 of 4 batch slots taken; 2 ahead");
        assert_eq!(why("waiting", 50, 3, 1), "3 of 4 batch slots taken; 1 ahead");
        assert_eq!(why("waiting", 50, 1, 0), "not scheduled yet; next in line");
        assert_eq!(why("held", 3, 1, 0), "admission: may need 12 blocks, 3 unreserved; next in line");
        assert_eq!(why("preempted", 3, 1, 0), "needs 10 blocks, 3 available; next in line");
        assert_eq!(waits(&row("decode"), &host(3, 1), 0), None);
    }

    #[test]
    fn too_many_requests_in_flight_are_told_from_a_full_memory() {
        let why = |max_sequence_tokens, level| {
            let mut state = host(50, 3);
            state.queue = Queue { waiting: 2, preempted: 1, held: 9, ..state.queue };
            state.pressure = Pressure { backpressure: true, level, max_sequence_tokens, ..state.pressure };
            waits(&row("held"), &state, 0).unwrap()
        };
        let (crowded, full) = (why(0, 0.35), why(800, 0.85));
        assert_eq!(crowded.full(), "admission takes nothing now, 6 in flight; next in line");
        assert_eq!(crowded.within(20), "6 in flight; next");
        assert_eq!(full.full(), "admission: backpressure at 0.85; next in line");
    }

    #[test]
    fn cached_tokens_need_no_new_block() {
        let cached = RequestRow { cached_tokens: 144, ..row("waiting") };
        assert!(waits(&cached, &host(1, 1), 0).unwrap().full().starts_with("not scheduled yet"));
    }
    #[test]
    fn narrow_forms_drop_words_and_keep_numbers() {
        let held = waits(&row("held"), &host(3, 1), 12).unwrap();
        let forms = [
            (80, "admission: may need 12 blocks, 3 unreserved; 12 ahead"),
            (34, "may need 12 of 3; 12 ahead"),
            (20, "may need 12 of 3"),
        ];
        for (width, form) in forms {
            assert_eq!(held.within(width), form);
        }
        let taken = waits(&row("waiting"), &host(50, 4), 0).unwrap();
        assert_eq!(taken.within(36), "4 of 4 batch slots taken; next");
        assert_eq!(taken.within(26), "4 of 4 taken; next");
    }
}
