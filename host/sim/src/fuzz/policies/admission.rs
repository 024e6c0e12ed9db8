//! Admission policies of every style. They record their loads, for the machine to check against its books.

use std::sync::{Arc, Mutex};

use infer_core::Refusal;
use infer_core::policy::{AdmissionPolicy, AdmissionRequest, Load, PolicyFault, Pressure, Verdict};
use infer_core::request::RefusalReason;

use super::Temper;
use crate::fuzz::case::Style;

/// The loads that admission was shown, in order.
pub type Shown = Arc<Mutex<Vec<Load>>>;

pub(super) struct Gate {
    pub temper: Temper,
    pub shown: Shown,
}

impl AdmissionPolicy for Gate {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        assert!(request.cached_tokens <= request.prompt_tokens, "{request:?}");
        let (idle, in_all) = (request.idle_blocks, load.memory.cached_blocks);
        let found = request.cached_tokens / load.memory.block_size;
        assert!(idle <= found && idle <= in_all, "{idle} of {found} blocks found are idle, {in_all} of all");
        self.look_at(load);
        if self.temper.sins() {
            return Err(self.temper.fault());
        }
        let dice = &mut self.temper.dice;
        Ok(match self.temper.style {
            Style::Plain | Style::Crumbs | Style::Thrash | Style::Outsider(_) => Verdict::Admit,
            Style::Timid => Verdict::Wait,
            Style::Stall => refuse(dice.next_u64()),
            Style::Starve if request.tenant.0 == 0 => refuse(dice.next_u64()),
            Style::Starve => Verdict::Admit,
            Style::Backwards if load.running > 0 => Verdict::Wait,
            Style::Backwards => Verdict::Admit,
            Style::Random => match dice.below(10) {
                0..7 => Verdict::Admit,
                7 => Verdict::Wait,
                8 => Verdict::WaitTenant,
                _ => refuse(dice.next_u64()),
            },
        })
    }

    fn measure(&mut self, load: &Load) -> Result<Pressure, PolicyFault> {
        self.look_at(load);
        if self.temper.sins() { Err(self.temper.fault()) } else { Ok(Pressure::default()) }
    }
}

impl Gate {
    fn look_at(&self, load: &Load) {
        let memory = load.memory;
        assert!(memory.free_blocks + memory.cached_blocks <= memory.total_blocks, "{memory:?}");
        assert!(load.running <= load.max_running && load.waiting <= load.max_waiting, "{load:?}");
        assert!(load.admitted <= load.waiting, "{load:?}");
        assert!(load.tenant_running <= load.running, "{load:?}");
        assert!(load.tenant_waiting <= load.waiting + load.preempted, "{load:?}");
        let in_flight = load.running + load.admitted + load.preempted;
        assert!((load.tenant_running..=in_flight).contains(&load.tenant_in_flight), "{load:?}");
        assert!(load.waiting_prompt_tokens <= load.waiting_tokens, "{load:?}");
        self.shown.lock().expect("no thread panics while it holds the lock").push(*load);
    }
}

fn refuse(dice: u64) -> Verdict {
    let reasons =
        [RefusalReason::Backpressure, RefusalReason::Rate, RefusalReason::Memory, RefusalReason::Other];
    Verdict::Refuse(Refusal {
        reason: reasons[(dice % 4) as usize],
        // Longer than a client is shown, and with multi-byte characters that must not be cut.
        message: "ü".repeat(1 + (dice % 300) as usize),
        retry_after_ms: (dice >> 32) as u32,
    })
}
