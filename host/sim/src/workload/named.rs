//! The built-in workloads.

use super::{Arrivals, Lengths, Limit, Stream, System, Text, Workload};

impl Workload {
    /// Names of the built-in workloads.
    pub const NAMES: [&'static str; 16] = [
        "chat",
        "instruct",
        "few-shot",
        "diverse",
        "window",
        "heavy-tail",
        "open-ended",
        "bursty",
        "diurnal",
        "tenants",
        "flood",
        "urgent",
        "neighbours",
        "repeat",
        "assistants",
        "templates",
    ];

    /// A built-in workload by name, with `requests` requests.
    pub fn named(name: &str, requests: u64) -> Option<Self> {
        let chat = Stream {
            prompt: Lengths::Uniform(20, 120),
            text: Text::Conversation { turns: 6, think_s: 5.0, window: 3_000, system: None },
            ..plain()
        };
        let (about, streams) = match name {
            "chat" => ("conversations that send their whole history", vec![chat]),
            "instruct" => (
                "a few long instructions, each before a short text",
                vec![Stream { text: Text::Shared { prefixes: 4, tokens: 800, zipf: 0.0 }, ..plain() }],
            ),
            "few-shot" => (
                "forty sets of examples, each before a short question",
                vec![Stream {
                    prompt: Lengths::Uniform(20, 100),
                    text: Text::Shared { prefixes: 40, tokens: 1_200, zipf: 0.0 },
                    ..plain()
                }],
            ),
            "diverse" => ("prompts with nothing in common", vec![plain()]),
            "window" => (
                "long conversations that outgrow the context window and lose their oldest turns",
                vec![Stream {
                    prompt: Lengths::Uniform(60, 200),
                    text: Text::Conversation { turns: 20, think_s: 3.0, window: 1_500, system: None },
                    ..plain()
                }],
            ),
            "heavy-tail" => (
                "many short outputs and a few very long ones, with max_tokens close to the output length",
                vec![Stream { limit: Limit::Tight, ..heavy_tailed() }],
            ),
            "open-ended" => (
                "the outputs of heavy-tail, but nobody knows how long they get: max_tokens is 2,000",
                vec![heavy_tailed()],
            ),
            "bursty" => (
                "requests in bursts of 32",
                vec![Stream { arrivals: Arrivals::Bursty { size: 32 }, ..plain() }],
            ),
            "diurnal" => (
                "a rate that oscillates by 80 %, four times per run",
                vec![Stream { arrivals: Arrivals::Diurnal { swings: 4, depth: 0.8 }, ..plain() }],
            ),
            "tenants" => (
                "one tenant floods the host, another offers a fifth of its capacity",
                vec![
                    Stream { tenant: 1, share: 1.3, ..plain() },
                    Stream { tenant: 2, share: 0.2, ..plain() },
                ],
            ),
            "flood" => (
                "conversations next to a flood of prompts that never repeat",
                vec![
                    Stream { share: 0.3, ..chat },
                    Stream {
                        share: 0.7,
                        prompt: Lengths::Uniform(500, 1_500),
                        output: Lengths::Uniform(10, 60),
                        ..plain()
                    },
                ],
            ),
            "urgent" => (
                "every eighth request is urgent (tenant 2)",
                vec![
                    Stream { tenant: 1, share: 0.9, ..plain() },
                    Stream { tenant: 2, share: 0.13, priority: 3, ..plain() },
                ],
            ),
            "neighbours" => (
                "a tenant with twenty long instructions (2) next to one whose prompts never repeat (1)",
                vec![
                    Stream {
                        tenant: 1,
                        share: 0.7,
                        prompt: Lengths::Uniform(500, 1_500),
                        output: Lengths::Uniform(10, 60),
                        ..plain()
                    },
                    Stream {
                        tenant: 2,
                        share: 0.2,
                        text: Text::Shared { prefixes: 20, tokens: 1_500, zipf: 0.0 },
                        ..plain()
                    },
                ],
            ),
            "repeat" => (
                "eighty prompts that are asked again and again",
                vec![Stream { text: Text::Repeated { prompts: 80, zipf: 0.0 }, ..plain() }],
            ),
            "assistants" => (
                "conversations that begin with one of a hundred system prompts, a few of them popular",
                vec![Stream {
                    text: Text::Conversation {
                        turns: 6,
                        think_s: 5.0,
                        window: 4_000,
                        system: Some(System { prompts: 100, tokens: 1_000, zipf: 1.0 }),
                    },
                    ..chat
                }],
            ),
            "templates" => (
                "four hundred instructions, a few of them popular, each before a short text",
                vec![Stream { text: Text::Shared { prefixes: 400, tokens: 800, zipf: 1.0 }, ..plain() }],
            ),
            _ => return None,
        };
        Some(Self { name: name.to_owned(), about: about.to_owned(), requests, streams })
    }
}

/// The stream that the others are variations of.
fn plain() -> Stream {
    Stream {
        tenant: 0,
        priority: 0,
        ttft_ms: Some(2_000),
        share: 1.0,
        arrivals: Arrivals::Poisson,
        prompt: Lengths::HeavyTailed { median: 120, sigma: 0.8, max: 1_500 },
        output: Lengths::HeavyTailed { median: 100, sigma: 0.7, max: 800 },
        limit: Limit::Fixed(1_024),
        text: Text::Unique,
    }
}

/// Many short outputs and a few very long ones, whose lengths no client knows.
fn heavy_tailed() -> Stream {
    Stream {
        output: Lengths::HeavyTailed { median: 60, sigma: 1.4, max: 2_000 },
        limit: Limit::Fixed(2_000),
        ..plain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known() {
        assert!(
            Workload::NAMES.iter().all(|name| Workload::named(name, 10).is_some_and(|w| w.name == *name))
        );
        assert!(Workload::named("silence", 10).is_none());
    }

    #[test]
    fn poisson_processes_take_a_burstiness_and_others_keep_theirs() {
        for (name, before) in
            [("chat", Some(1.0)), ("tenants", Some(1.0)), ("bursty", None), ("diurnal", None)]
        {
            let workload = Workload::named(name, 10).expect("a known workload");
            assert_eq!(workload.burstiness(), before, "{name}");
            let changed = workload.clone().bursting(0.25);
            assert_eq!(changed.burstiness(), before.map(|_| 0.25), "{name}");
            assert_eq!(changed == workload, before.is_none(), "{name}");
        }
        let mut mixed = Workload::named("tenants", 10).expect("a known workload");
        mixed.streams[1].arrivals = Arrivals::Gamma { burstiness: 4.0 };
        assert_eq!((mixed.burstiness(), mixed.bursting(0.5).burstiness()), (None, Some(0.5)));
    }
}
