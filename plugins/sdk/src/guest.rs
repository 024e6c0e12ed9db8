//! The only module that knows the bindings: converts what the host sends into the SDK's types and back.
//!
//! Columns are moved, never copied. Compiled only for components.
#![allow(missing_docs, reason = "reached through `export_policy!` alone")]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::thread::LocalKey;

use crate::types::{BlockId, Memory, Micros, SequenceId, SessionId, TenantId};
use crate::{Admission, Level, Policy, PrefixCache, Scheduler};

pub use infer_policy_bindings_admission as admission;
pub use infer_policy_bindings_prefix_cache as prefix_cache;
pub use infer_policy_bindings_scheduler as scheduler;

/// Where `export_policy!` keeps a component's only instance.
pub trait Slot: Policy {
    fn slot() -> &'static LocalKey<RefCell<Option<Self>>>;
}

fn with<P: Slot, R>(decide: impl FnOnce(&mut P) -> R) -> R {
    P::slot()
        .with_borrow_mut(|policy| decide(policy.as_mut().expect("`configure` comes before any decision")))
}

fn configure<P: Slot>(config: &str) -> Result<(), String> {
    // A trap carries no text, so a panic first logs its message.
    std::panic::set_hook(Box::new(|panic| log(Level::Error, &panic.to_string())));
    let policy = P::new(crate::parse_config(config)?)?;
    P::slot().set(Some(policy));
    Ok(())
}

pub fn log(level: Level, message: &str) {
    use scheduler::infer::policy::host;
    let level = match level {
        Level::Debug => host::Level::Debug,
        Level::Info => host::Level::Info,
        Level::Warn => host::Level::Warn,
        Level::Error => host::Level::Error,
    };
    host::log(level, message);
}

pub fn gauge(name: &str, value: f64) {
    scheduler::infer::policy::host::gauge(name, value);
}

macro_rules! guest {
    ($guest:ident, $world:ident) => {
        pub struct $guest<P>(PhantomData<P>);

        impl<P: Slot> $world::exports::infer::policy::lifecycle::Guest for $guest<P> {
            fn describe() -> $world::exports::infer::policy::lifecycle::Info {
                $world::exports::infer::policy::lifecycle::Info {
                    name: P::NAME.to_owned(),
                    version: P::VERSION.to_owned(),
                    description: P::DESCRIPTION.to_owned(),
                    config_schema: P::CONFIG_SCHEMA.to_owned(),
                }
            }

            fn configure(config: String) -> Result<(), String> {
                configure::<P>(&config)
            }

            fn export_state() -> Vec<u8> {
                with(P::export_state)
            }

            fn import_state(state: Vec<u8>) -> Result<(), String> {
                with(|policy: &mut P| policy.import_state(&state))
            }
        }

        impl From<$world::infer::policy::types::Memory> for Memory {
            fn from(memory: $world::infer::policy::types::Memory) -> Self {
                Self {
                    block_size: memory.block_size,
                    total_blocks: memory.total_blocks,
                    free_blocks: memory.free_blocks,
                    cached_blocks: memory.cached_blocks,
                }
            }
        }
    };
}

guest!(SchedulerGuest, scheduler);
guest!(AdmissionGuest, admission);
guest!(PrefixCacheGuest, prefix_cache);

mod schedule {
    use super::scheduler::exports::infer::policy::scheduler as wit;
    use super::*;
    use crate::{Limits, Sequences, Step, Tenants};

    impl<P: Slot + Scheduler> wit::Guest for SchedulerGuest<P> {
        fn schedule(step: wit::Step) -> wit::Plan {
            let plan = with(|policy: &mut P| policy.schedule(&step.into()));
            wit::Plan {
                run: plan.run.into_iter().map(|id| id.0).collect(),
                tokens: plan.tokens,
                preempt: plan.preempt.into_iter().map(|id| id.0).collect(),
                wake: plan.wake.0,
            }
        }
    }

    impl From<wit::Step> for Step {
        fn from(step: wit::Step) -> Self {
            Self {
                now: Micros(step.now),
                number: step.number,
                last_step: Micros(step.last_step),
                last_prefill_tokens: step.last_prefill_tokens,
                last_decodes: step.last_decodes,
                idle_since: Micros(step.idle_since),
                starvation_bound: Micros(step.starvation_bound),
                limits: Limits {
                    max_batch_tokens: step.limits.max_batch_tokens,
                    max_running: step.limits.max_running,
                    prefill_chunk: step.limits.prefill_chunk,
                    max_prefill_sequences: step.limits.max_prefill_sequences,
                    max_prefill_tokens: step.limits.max_prefill_tokens,
                },
                memory: step.memory.into(),
                running: step.running.into(),
                waiting: step.waiting.into(),
                tenants: Tenants {
                    id: step.tenants.id,
                    weight_permille: step.tenants.weight_permille,
                    running: step.tenants.running,
                    waiting: step.tenants.waiting,
                    prompt_tokens_served: step.tenants.prompt_tokens_served,
                    output_tokens_served: step.tenants.output_tokens_served,
                },
            }
        }
    }

    impl From<wit::Sequences> for Sequences {
        fn from(columns: wit::Sequences) -> Self {
            Self {
                id: columns.id,
                tenant: columns.tenant,
                session: columns.session,
                priority: columns.priority,
                arrived: columns.arrived,
                deadline: columns.deadline,
                prompt_tokens: columns.prompt_tokens,
                computed_tokens: columns.computed_tokens,
                pending_tokens: columns.pending_tokens,
                idle_blocks: columns.idle_blocks,
                generated_tokens: columns.generated_tokens,
                max_new_tokens: columns.max_new_tokens,
                expected_tokens: columns.expected_tokens,
                blocks: columns.blocks,
                freeable_blocks: columns.freeable_blocks,
                preemptions: columns.preemptions,
            }
        }
    }
}

mod admit {
    use super::admission::exports::infer::policy::admission as wit;
    use super::*;
    use crate::{Load, Reason, Request, Verdict};

    impl<P: Slot + Admission> wit::Guest for AdmissionGuest<P> {
        fn admit(request: wit::Request, load: wit::Load) -> wit::Verdict {
            match with(|policy: &mut P| policy.admit(&request.into(), &load.into())) {
                Verdict::Admit => wit::Verdict::Admit,
                Verdict::Wait => wit::Verdict::Wait,
                Verdict::WaitTenant => wit::Verdict::WaitTenant,
                Verdict::Refuse(refusal) => wit::Verdict::Refuse(wit::Refusal {
                    reason: match refusal.reason {
                        Reason::QueueFull => wit::Reason::QueueFull,
                        Reason::Memory => wit::Reason::Memory,
                        Reason::Rate => wit::Reason::Rate,
                        Reason::TooLong => wit::Reason::TooLong,
                        Reason::Backpressure => wit::Reason::Backpressure,
                        Reason::Other => wit::Reason::Other,
                    },
                    message: refusal.message,
                    retry_after_ms: refusal.retry_after_ms,
                }),
            }
        }

        fn measure(load: wit::Load) -> wit::Pressure {
            let pressure = with(|policy: &mut P| policy.measure(&load.into()));
            wit::Pressure {
                level_permille: pressure.level_permille,
                backpressure: pressure.backpressure,
                reserved_blocks: pressure.reserved_blocks,
                available_blocks: pressure.available_blocks,
                max_sequence_tokens: pressure.max_sequence_tokens,
            }
        }
    }

    impl From<wit::Request> for Request {
        fn from(request: wit::Request) -> Self {
            Self {
                id: SequenceId(request.id),
                tenant: TenantId(request.tenant),
                session: SessionId(request.session),
                priority: request.priority,
                arrived: Micros(request.arrived),
                deadline: Micros(request.deadline),
                prompt_tokens: request.prompt_tokens,
                cached_tokens: request.cached_tokens,
                idle_blocks: request.idle_blocks,
                max_new_tokens: request.max_new_tokens,
                expected_tokens: request.expected_tokens,
            }
        }
    }

    impl From<wit::Load> for Load {
        fn from(load: wit::Load) -> Self {
            Self {
                now: Micros(load.now),
                memory: load.memory.into(),
                max_running: load.max_running,
                running: load.running,
                admitted: load.admitted,
                preempted: load.preempted,
                max_waiting: load.max_waiting,
                waiting: load.waiting,
                waiting_tokens: load.waiting_tokens,
                waiting_prompt_tokens: load.waiting_prompt_tokens,
                started_prompt_tokens: load.started_prompt_tokens,
                expected_output_tokens: load.expected_output_tokens,
                prefill_tokens_per_second: load.prefill_tokens_per_second,
                output_tokens_per_second: load.output_tokens_per_second,
                promised_blocks: load.promised_blocks,
                expected_blocks: load.expected_blocks,
                tenant_running: load.tenant_running,
                tenant_waiting: load.tenant_waiting,
                tenant_in_flight: load.tenant_in_flight,
                tenant_weight_permille: load.tenant_weight_permille,
                tenant_rate_per_minute: load.tenant_rate_per_minute,
                tenant_burst: load.tenant_burst,
                tenant_prompt_tokens_served: load.tenant_prompt_tokens_served,
                tenant_output_tokens_served: load.tenant_output_tokens_served,
            }
        }
    }
}

mod cache {
    use super::prefix_cache::exports::infer::policy::prefix_cache as wit;
    use super::*;
    use crate::{Ended, Events, Hit};

    impl<P: Slot + PrefixCache> wit::Guest for PrefixCacheGuest<P> {
        fn reuse(hit: wit::Hit) -> u32 {
            let hit = Hit {
                now: Micros(hit.now),
                id: SequenceId(hit.id),
                tenant: TenantId(hit.tenant),
                session: SessionId(hit.session),
                prompt_tokens: hit.prompt_tokens,
                cached_tokens: hit.cached_tokens,
                same_session: hit.same_session,
            };
            with(|policy: &mut P| policy.reuse(&hit))
        }

        fn retain(ended: wit::Ended) -> wit::Retention {
            let ended = Ended {
                now: Micros(ended.now),
                id: SequenceId(ended.id),
                tenant: TenantId(ended.tenant),
                session: SessionId(ended.session),
                prompt_tokens: ended.prompt_tokens,
                generated_tokens: ended.generated_tokens,
                reused_tokens: ended.reused_tokens,
                memory: ended.memory.into(),
            };
            let retention = with(|policy: &mut P| policy.retain(&ended));
            wit::Retention { keep_tokens: retention.keep_tokens, ttl: retention.ttl.0 }
        }

        fn observe(events: wit::Events) -> Vec<u32> {
            let events = Events {
                memory: events.memory.into(),
                at: events.at,
                kind: events.kind,
                block: events.block,
                parent: events.parent,
                depth: events.depth,
                tenant: events.tenant,
                session: events.session,
            };
            names(with(|policy: &mut P| policy.observe(&events)))
        }

        fn evict(now: u64, need: u32) -> Vec<u32> {
            names(with(|policy: &mut P| policy.evict(Micros(now), need)))
        }
    }

    fn names(blocks: Vec<BlockId>) -> Vec<u32> {
        blocks.into_iter().map(|block| block.0).collect()
    }
}
