//! Workloads from files: JSON in the form of the built-in ones. Numbers are bounded so that a run neither overflows nor
//! goes on for ever.

use super::{Arrivals, Lengths, Limit, Stream, System, Text, Workload};
use crate::range::{named, within};
use crate::trace::MAX_TOKENS;

const MAX_REQUESTS: u64 = 1_000_000_000;
const MAX_STREAMS: usize = 100;
const MAX_TEXTS: u32 = 1_000_000;
const MAX_ZIPF: f64 = 5.0;
const DAY_MS: u64 = 86_400_000;
const DAY_S: f64 = 86_400.0;

/// Why a file is no workload.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(String);

impl Workload {
    /// Reads a workload from JSON.
    ///
    /// # Errors
    /// If it is not a workload, or a number is out of range. The message names the field, and the range or the line.
    pub fn from_json(text: &str) -> Result<Self, WorkloadError> {
        if text.trim_start().starts_with('[') {
            return Err(WorkloadError("expected one workload, an object, not a list".to_owned()));
        }
        let workload: Self = serde_json::from_str(text).map_err(|error| WorkloadError(error.to_string()))?;
        workload.check().map_err(WorkloadError)?;
        Ok(workload)
    }

    fn check(&self) -> Result<(), String> {
        named(&self.name)?;
        within("requests", self.requests, 1..=MAX_REQUESTS)?;
        within("the number of `streams`", self.streams.len(), 1..=MAX_STREAMS)?;
        self.streams.iter().enumerate().try_for_each(|(at, one)| stream(&format!("streams[{at}]"), one))
    }
}

fn stream(path: &str, stream: &Stream) -> Result<(), String> {
    let field = |name: &str| format!("{path}.{name}");
    if let Some(ms) = stream.ttft_ms {
        within(&field("ttft_ms"), ms, 1..=DAY_MS)?;
    }
    within(&field("share"), stream.share, 0.001..=1_000.0)?;
    match stream.arrivals {
        Arrivals::Poisson => {}
        Arrivals::Gamma { burstiness } => {
            within(&field("arrivals.gamma.burstiness"), burstiness, Arrivals::BURSTINESS)?;
        }
        Arrivals::Bursty { size } => within(&field("arrivals.bursty.size"), size, 1..=100_000)?,
        Arrivals::Diurnal { swings, depth } => {
            within(&field("arrivals.diurnal.swings"), swings, 1..=1_000)?;
            within(&field("arrivals.diurnal.depth"), depth, 0.0..=1.0)?;
        }
    }
    lengths(&field("prompt"), stream.prompt)?;
    lengths(&field("output"), stream.output)?;
    if let Limit::Fixed(limit) = stream.limit {
        tokens(&field("limit.fixed"), limit)?;
    }
    match stream.text {
        Text::Unique => Ok(()),
        Text::Shared { prefixes, tokens: length, zipf } => {
            within(&field("text.shared.prefixes"), prefixes, 1..=MAX_TEXTS)?;
            tokens(&field("text.shared.tokens"), length)?;
            within(&field("text.shared.zipf"), zipf, 0.0..=MAX_ZIPF)
        }
        Text::Repeated { prompts, zipf } => {
            within(&field("text.repeated.prompts"), prompts, 1..=MAX_TEXTS)?;
            within(&field("text.repeated.zipf"), zipf, 0.0..=MAX_ZIPF)
        }
        Text::Conversation { turns, think_s, window, system } => {
            within(&field("text.conversation.turns"), turns, 1..=10_000)?;
            within(&field("text.conversation.think_s"), think_s, 0.0..=DAY_S)?;
            tokens(&field("text.conversation.window"), window)?;
            let Some(System { prompts, tokens: length, zipf }) = system else { return Ok(()) };
            within(&field("text.conversation.system.prompts"), prompts, 1..=MAX_TEXTS)?;
            within(&field("text.conversation.system.tokens"), length, 1..=window)?;
            within(&field("text.conversation.system.zipf"), zipf, 0.0..=MAX_ZIPF)
        }
    }
}

fn lengths(path: &str, lengths: Lengths) -> Result<(), String> {
    match lengths {
        Lengths::Fixed(length) => tokens(&format!("{path}.fixed"), length),
        Lengths::Uniform(low, high) => {
            tokens(&format!("{path}.uniform[1]"), high)?;
            within(&format!("{path}.uniform[0]"), low, 1..=high)
        }
        Lengths::HeavyTailed { median, sigma, max } => {
            tokens(&format!("{path}.heavy-tailed.max"), max)?;
            within(&format!("{path}.heavy-tailed.median"), median, 1..=max)?;
            within(&format!("{path}.heavy-tailed.sigma"), sigma, 0.0..=5.0)
        }
    }
}

fn tokens(path: &str, tokens: u32) -> Result<(), String> {
    within(path, u64::from(tokens), 1..=MAX_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{
        "name": "own",
        "streams": [{
            "share": 1,
            "arrivals": {"diurnal": {"swings": 4, "depth": 0.8}},
            "prompt": {"uniform": [20, 120]},
            "output": {"heavy-tailed": {"median": 100, "sigma": 0.7, "max": 800}},
            "limit": {"fixed": 1024},
            "text": {"conversation": {"turns": 6, "think_s": 5, "window": 3000}}
        }]
    }"#;

    #[test]
    fn built_in_workloads_are_read_as_they_are_written() {
        for name in Workload::NAMES {
            let workload = Workload::named(name, 77).expect("a known workload");
            let text = serde_json::to_string_pretty(&workload).expect("JSON");
            assert_eq!(Workload::from_json(&text).expect("a valid workload"), workload, "{text}");
        }
    }

    #[test]
    fn what_a_file_leaves_out_has_a_default() {
        let own = Workload::from_json(OWN).expect("a valid workload");
        assert_eq!((own.requests, own.about.as_str()), (Workload::REQUESTS, ""));
        let stream = &own.streams[0];
        assert_eq!((stream.tenant, stream.priority, stream.ttft_ms), (0, 0, None));
    }

    #[test]
    fn arrivals_of_a_given_burstiness_are_read_and_checked() {
        let with = |arrivals: &str| {
            let own = r#"{"diurnal": {"swings": 4, "depth": 0.8}}"#;
            assert!(OWN.contains(own));
            Workload::from_json(&OWN.replacen(own, arrivals, 1))
        };
        let own = with(r#"{"gamma": {"burstiness": 0.25}}"#).expect("a valid workload");
        assert_eq!(own.streams[0].arrivals, Arrivals::Gamma { burstiness: 0.25 });
        let error = with(r#"{"gamma": {"burstiness": 0}}"#).expect_err("no shape").to_string();
        assert_eq!(error, "streams[0].arrivals.gamma.burstiness is 0, not from 0.01 to 10000");
    }

    /// `OWN` with another text.
    fn with(text: &str) -> Result<Workload, WorkloadError> {
        let own = r#"{"conversation": {"turns": 6, "think_s": 5, "window": 3000}}"#;
        assert!(OWN.contains(own));
        Workload::from_json(&OWN.replacen(own, text, 1))
    }

    #[test]
    fn shared_texts_are_equally_popular_unless_the_file_says_otherwise() {
        let chat = |system: &str| {
            format!(r#"{{"conversation": {{"turns": 6, "think_s": 5, "window": 3000{system}}}}}"#)
        };
        let plain = Text::Conversation { turns: 6, think_s: 5.0, window: 3_000, system: None };
        let system = |zipf| Text::Conversation {
            turns: 6,
            think_s: 5.0,
            window: 3_000,
            system: Some(System { prompts: 20, tokens: 600, zipf }),
        };
        for (text, read) in [
            (
                r#"{"shared": {"prefixes": 4, "tokens": 9}}"#,
                Text::Shared { prefixes: 4, tokens: 9, zipf: 0.0 },
            ),
            (r#"{"repeated": {"prompts": 4, "zipf": 1}}"#, Text::Repeated { prompts: 4, zipf: 1.0 }),
            (&chat(""), plain),
            (&chat(r#", "system": null"#), plain),
            (&chat(r#", "system": {"prompts": 20, "tokens": 600}"#), system(0.0)),
            (&chat(r#", "system": {"prompts": 20, "tokens": 600, "zipf": 1.2}"#), system(1.2)),
        ] {
            assert_eq!(with(text).expect("a valid workload").streams[0].text, read, "{text}");
        }
        let longest = with(&chat(r#", "system": {"prompts": 20, "tokens": 600}"#)).map(|own| own.longest());
        assert_eq!(longest.expect("a valid workload"), 600 + 120 + 800);
    }

    #[test]
    fn errors_name_the_field_of_a_text_and_its_range() {
        let system = |system: &str| {
            format!(
                r#"{{"conversation": {{"turns": 6, "think_s": 5, "window": 3000, "system": {{{system}}}}}}}"#
            )
        };
        for (text, says) in [
            (
                r#"{"shared": {"prefixes": 4, "tokens": 9, "zipf": -0.5}}"#,
                "streams[0].text.shared.zipf is -0.5, not from 0 to 5",
            ),
            (
                r#"{"repeated": {"prompts": 4, "zipf": 6}}"#,
                "streams[0].text.repeated.zipf is 6, not from 0 to 5",
            ),
            (
                r#"{"repeated": {"prompts": 4, "zipf": "steep"}}"#,
                "invalid type: string \"steep\", expected f64",
            ),
            (
                &system(r#""prompts": 0, "tokens": 600"#),
                "text.conversation.system.prompts is 0, not from 1 to 1000000",
            ),
            (
                &system(r#""prompts": 20, "tokens": 3001"#),
                "text.conversation.system.tokens is 3001, not from 1 to 3000",
            ),
            (
                &system(r#""prompts": 20, "tokens": 600, "zipf": 5.5"#),
                "text.conversation.system.zipf is 5.5, not from 0 to 5",
            ),
            (&system(r#""prompts": 20"#), "missing field `tokens`"),
            (&system(r#""prompts": 20, "tokens": 600, "share": 1"#), "unknown field `share`"),
        ] {
            let error = with(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn errors_name_the_field_and_its_range_or_line() {
        for (good, bad, says) in [
            (r#""name": "own""#, r#""name": " ""#, "`name` is empty"),
            (r#""share": 1"#, r#""share": 0"#, "streams[0].share is 0, not from 0.001 to 1000"),
            ("0.8", "1.5", "streams[0].arrivals.diurnal.depth is 1.5, not from 0 to 1"),
            ("[20, 120]", "[200, 120]", "streams[0].prompt.uniform[0] is 200, not from 1 to 120"),
            ("\"max\": 800", "\"max\": 0", "streams[0].output.heavy-tailed.max is 0, not from 1 to 16777216"),
            ("\"median\": 100", "\"median\": 900", "median is 900, not from 1 to 800"),
            ("\"turns\": 6", "\"turns\": 0", "streams[0].text.conversation.turns is 0, not from 1 to 10000"),
            ("\"share\": 1,", "\"share\": 1, \"tenants\": 2,", "unknown field `tenants`"),
            ("\"swings\": 4,", "\"swings\": 4, \"phase\": 1,", "unknown field `phase`"),
            ("\"limit\": {\"fixed\": 1024},", "", "missing field `limit` at line "),
            (
                "{\"fixed\": 1024}",
                "{\"loose\": 1024}",
                "unknown variant `loose`, expected `tight` or `fixed`",
            ),
            ("\"share\": 1", "\"share\": \"all\"", "invalid type: string \"all\", expected f64 at line 4"),
        ] {
            assert!(OWN.contains(good), "{good}");
            let error = Workload::from_json(&OWN.replacen(good, bad, 1)).expect_err(bad).to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
        let none = r#"{"name": "none", "streams": []}"#;
        let error = Workload::from_json(none).expect_err("no streams").to_string();
        assert_eq!(error, "the number of `streams` is 0, not from 1 to 100");
        let list = Workload::from_json(&format!("[{OWN}]")).expect_err("a list").to_string();
        assert!(list.contains("not a list"), "{list}");
    }
}
