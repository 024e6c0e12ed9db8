//! `infer sim calibrate`: fits a device profile to the steps of recordings.

use std::path::PathBuf;

use clap::Args;
use infer_api::trace::Step;
use infer_sim::cost::{Fit, Fitted, Observation, Work, calibrate};
use infer_sim::report::fit;

use super::result::{Format, ResultArgs};
use super::trace;
use super::{Failure, check_inputs, check_out, emit};

pub const AFTER_HELP: &str = "\
Record varied traffic (short and long prompts, few and many concurrent sequences), then fit:
  infer sim record --out w2.jsonl & sleep 1
  infer bench serve --url http://127.0.0.1:8000 --workload w2 --requests 64
  kill -INT $!; wait $!
  infer sim calibrate w2.jsonl --out host.json
  infer sim run --device host.json --workload chat
  infer sim calibrate w2.jsonl --format html --out host.html
The profile that --device takes is JSON; the other formats show its costs and how well they fit. The same recordings \
always give the same profile.";

/// Why a recording can't be used to fit or judge a profile.
pub const DRAFT_TOKENS: &str =
    "the recorded host used draft tokens (--speculate), which profiles don't model; record without them";

/// Errors in percent that a profile should stay within, by `host/sim/FIDELITY.md`: of a step at the median, at the 95th
/// percentile, and of all steps together.
const AIM: [f64; 3] = [5.0, 10.0, 5.0];
/// Steps below this median consist mostly of what the host does besides computing, in microseconds.
const SHORT_US: f64 = 1_000.0;
/// Steps that varied traffic needs.
const FEW: u64 = 500;

/// Arguments of `infer sim calibrate`.
#[derive(Args)]
#[command(mut_arg("format", |format| format.default_value("json")))]
pub struct CalibrateArgs {
    /// Recordings of one host
    #[arg(value_name = "FILE", required = true)]
    recordings: Vec<PathBuf>,
    #[command(flatten)]
    result: ResultArgs,
    /// Name of the profile [default: the model and the device of the recording]
    #[arg(long)]
    name: Option<String>,
    /// Leave out the variation of step times: each step takes the mean for its work
    #[arg(long)]
    steady: bool,
}

/// Fits and writes.
pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let out = args.result.out.as_deref();
    check_out(out)?;
    check_inputs("--out", out, "the recordings", args.recordings.iter())?;
    let mut observations = Vec::new();
    let (mut first, mut copying) = (None, 0);
    for path in &args.recordings {
        let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", path.display()));
        let mut recording = trace::recording(path)?;
        let head = recording.head().map_err(|error| wrong(&error))?;
        let known = first.get_or_insert_with(|| head.clone());
        if (&known.model, &known.device) != (&head.model, &head.device) {
            let message = format!(
                "recorded with {} on {}, but the first recording with {} on {}; fit a profile to one host only",
                head.model, head.device, known.model, known.device
            );
            return Err(wrong(&message));
        }
        if head.engine.speculate > 0 {
            return Err(wrong(&DRAFT_TOKENS));
        }
        let mut steps = Steps::default();
        while let Some((_, line)) = recording.next_line().map_err(|error| wrong(&error))? {
            observations.extend(steps.take(&line));
        }
        copying += steps.copying;
    }
    if copying > 0 {
        eprintln!(
            "left out {copying} steps that copied blocks to or from the second level of the prefix cache"
        );
    }
    let head = first.expect("clap requires a recording");
    let found = calibrate(&observations).map_err(|error| Failure::Failed(error.to_string()))?;
    let name = args.name.clone().unwrap_or_else(|| format!("{} on {}", head.model, head.device));
    let spread = if args.steady { Vec::new() } else { found.spread };
    let pool = (head.engine.block_size, head.engine.total_blocks);
    let fitted = Fitted::new(name, pool, found.cost, spread, found.fit);
    eprintln!(
        "{} steps; error of a step's predicted time {:.1} % (median), {:.1} % (95th percentile); of the total \
         {:+.1} %",
        found.fit.steps, found.fit.error_p50_percent, found.fit.error_p95_percent, found.fit.total_percent
    );
    if let Some(doubt) = doubt(&found.fit, median_us(&observations)) {
        eprintln!("warning: {doubt}");
    }
    let text = match args.result.format {
        Format::Text => fit::text(&fitted),
        Format::Json => fitted.to_json(),
        Format::Csv => fit::csv(&fitted),
        Format::Html => fit::html(&fitted),
    };
    emit(out, &text)
}

/// What to say of a profile that doesn't predict its own recording as well as it should.
fn doubt(fit: &Fit, median_us: f64) -> Option<String> {
    let errors = [fit.error_p50_percent, fit.error_p95_percent, fit.total_percent.abs()];
    if errors.iter().zip(AIM).all(|(error, aim)| *error <= aim) {
        return None;
    }
    let [p50, p95, total] = AIM;
    let cause = if fit.total_percent < -total {
        "together they took longer than their work explains, so something else ran on the machine, such as the load \
         generator; record while it is otherwise idle"
    } else if median_us < SHORT_US {
        "half of them took less than a millisecond, of which waking threads and sending tokens is a large part; record a \
         larger model or longer contexts"
    } else if fit.steps < FEW {
        "there are few of them; record more, and more varied traffic"
    } else {
        "either the machine was not idle, or they did work that a profile doesn't know (adapters, constrained outputs)"
    };
    Some(format!(
        "this profile doesn't predict its own steps within {p50} % (median), {p95} % (95th percentile) and {total} % (total), \
         so what is simulated with it is off, too. Likely, {cause}. `infer sim judge` says how far off other recordings are."
    ))
}

fn median_us(observations: &[Observation]) -> f64 {
    let mut us: Vec<f64> = observations.iter().map(|observation| observation.us).collect();
    us.sort_by(f64::total_cmp);
    us.get(us.len() / 2).copied().unwrap_or(0.0)
}

/// Turns recorded steps into observations.
#[derive(Default)]
pub struct Steps {
    last: Option<(u64, u64)>,
    /// Steps that were left out because they copied blocks, which profiles don't model.
    pub copying: usize,
}

impl Steps {
    /// The observation in a line, if any. While the host is busy, a step lasts from the end of the previous one to its
    /// own end, which includes planning, sending tokens to clients and taking new requests.
    pub fn take(&mut self, line: &infer_api::trace::Line) -> Option<Observation> {
        use infer_api::trace::Line;
        match line {
            Line::Step(step) => {
                let follows = |(number, _): &(u64, u64)| !step.waited && number + 1 == step.step;
                let begun = self.last.filter(follows).map_or(step.at, |(_, end)| end);
                self.last = Some((step.step, step.end));
                if step.copied > 0 {
                    self.copying += 1;
                    return None;
                }
                #[expect(clippy::cast_precision_loss, reason = "microseconds of a step")]
                let us = step.end.saturating_sub(begun) as f64;
                Some(Observation { work: work(step), us })
            }
            Line::Lost { .. } => {
                self.last = None;
                None
            }
            _ => None,
        }
    }
}

fn work(step: &Step) -> Work {
    #[expect(clippy::cast_precision_loss, reason = "tokens of a step")]
    let mut work = Work { repeated: step.repeated as f64, ..Work::default() };
    for ((&tokens, &context), &drew) in step.tokens.iter().zip(&step.context).zip(&step.drew) {
        work.add(tokens, context, drew != 0);
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_name_the_likely_cause() {
        let fit = |steps, error_p50_percent, error_p95_percent, total_percent| Fit {
            steps,
            error_p50_percent,
            error_p95_percent,
            total_percent,
        };
        for (fit, median_us, says) in [
            (fit(4_000, 2.1, 7.8, -0.3), 9_000.0, None),
            (fit(4_000, 5.0, 10.0, 5.0), 200.0, None),
            (fit(4_000, 19.0, 60.0, -16.0), 9_000.0, Some("something else ran on the machine")),
            (fit(4_000, 2.0, 9.0, -6.0), 9_000.0, Some("something else ran on the machine")),
            (fit(4_000, 9.0, 30.0, 1.0), 300.0, Some("less than a millisecond")),
            (fit(90, 2.0, 12.0, 1.0), 9_000.0, Some("there are few of them")),
            (fit(4_000, 9.0, 30.0, 7.0), 9_000.0, Some("adapters, constrained outputs")),
        ] {
            let doubt = doubt(&fit, median_us);
            match says {
                None => assert_eq!(doubt, None, "{fit:?}"),
                Some(says) => assert!(doubt.as_ref().is_some_and(|doubt| doubt.contains(says)), "{doubt:?}"),
            }
        }
    }
}
