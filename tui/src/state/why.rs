//! Why a request waits, in a few words. Worked out from the numbers that the host sends: what it needs,
//! what there is, who is before it. Nothing is guessed about what a policy thinks.

use infer_api::admin::{RequestRow, State};

/// The reason; `None` for one that runs. `ahead` is how many wait before it.
#[must_use]
pub fn waits(row: &RequestRow, state: &State, ahead: usize) -> Option<String> {
    let memory = &state.memory;
    let place = |text: String| match ahead {
        0 => format!("{text}; next in line"),
        ahead => format!("{text}; {ahead} ahead"),
    };
    let size = memory.block_size.max(1);
    let there = memory.free + memory.cached;
    let need = blocks_needed(row, size);
    match row.state.as_str() {
        "held" => {
            let pressure = &state.pressure;
            // Admission looks at the whole length: what it may grow to, not what it starts with.
            let whole = (row.prompt_tokens + row.max_tokens).saturating_sub(1).div_ceil(size);
            Some(place(if whole > pressure.available_blocks {
                format!("admission: may need {whole} blocks, {} unpromised", pressure.available_blocks)
            } else if pressure.backpressure {
                format!("admission: backpressure at {:.2}", pressure.level)
            } else {
                "admission lets it wait".to_owned()
            }))
        }
        "waiting" | "preempted" => {
            let text = if need > there {
                format!("needs {need} blocks, {there} to be had")
            } else if ahead as u64
                >= u64::from(state.pressure.max_sequences.saturating_sub(state.queue.running))
            {
                let (running, places) = (state.queue.running, state.pressure.max_sequences);
                format!("{running} of {places} batch places taken")
            } else {
                "not yet scheduled".to_owned()
            };
            let text = if row.state == "preempted" { format!("preempted; {text}") } else { text };
            Some(place(text))
        }
        _ => None,
    }
}

/// Blocks that it takes to compute its tokens, less those it would find.
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
    fn it_names_what_is_short() {
        let why = |state, free, running, ahead| waits(&row(state), &host(free, running), ahead).unwrap();
        assert_eq!(why("waiting", 3, 1, 0), "needs 10 blocks, 3 to be had; next in line");
        assert_eq!(why("waiting", 50, 4, 2), "4 of 4 batch places taken; 2 ahead");
        assert_eq!(why("waiting", 50, 3, 1), "3 of 4 batch places taken; 1 ahead");
        assert_eq!(why("waiting", 50, 1, 0), "not yet scheduled; next in line");
        assert_eq!(why("held", 3, 1, 0), "admission: may need 12 blocks, 3 unpromised; next in line");
        assert!(why("preempted", 3, 1, 0).starts_with("preempted; needs 10"));
        assert_eq!(waits(&row("decode"), &host(3, 1), 0), None);
    }

    #[test]
    fn what_is_cached_needs_no_new_block() {
        let cached = RequestRow { cached_tokens: 144, ..row("waiting") };
        assert!(waits(&cached, &host(1, 1), 0).unwrap().starts_with("not yet scheduled"));
    }
}
