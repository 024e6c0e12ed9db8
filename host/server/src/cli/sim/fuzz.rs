//! `infer sim fuzz`: the fault machine's command line. Standard output depends only on the arguments and the seed;
//! progress goes to standard error.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use infer_core::policy::PolicyKind;
use infer_sim::fuzz::{Case, Checks, Hunt, OPS, Outsider, Summary, Violation, generate, minimize, play};
use infer_wasm::PolicyLoader;

use super::policies::{Choice, choice, loader};
use super::{Failure, check_out, emit};

pub const AFTER_HELP: &str = "\
A seed determines a host, its policies, its traffic and all faults; the invariants are checked after each step. A step
is one operation, or one engine turn while the case is drained at the end. Exit code 1 if a violation is found.
  infer sim fuzz --steps 10000000                       # a long run
  infer sim fuzz --seed 17 --seeds 1 --minimize         # the smallest case that fails like seed 17
  infer sim fuzz --replay fuzz-17.json                  # replay that case
  infer sim fuzz --scheduler fair --prefix-cache my.wasm --steps 200000";

/// Arguments of `infer sim fuzz`.
#[derive(Args)]
pub struct FuzzArgs {
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds [default: no limit]
    #[arg(long)]
    seeds: Option<u64>,
    /// Number of steps [default: 1000000; no limit with --seeds]
    #[arg(long)]
    steps: Option<u64>,
    /// Seeds to run in parallel [default: the machine's cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Minimize the failing case and write it to fuzz-SEED.json
    #[arg(long)]
    minimize: bool,
    /// Folder for that file
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Replay a file written by --minimize instead of running seeds; repeatable
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "steps", "minimize"])]
    replay: Vec<PathBuf>,
    /// Scheduler to include besides the built-in ones, repeatable: NAME or FILE.wasm[={..}]
    #[arg(long)]
    scheduler: Vec<String>,
    /// Admission policy to include
    #[arg(long)]
    admission: Vec<String>,
    /// Prefix cache to include
    #[arg(long)]
    prefix_cache: Vec<String>,
}

impl FuzzArgs {
    /// The given policies with their kinds.
    fn policies(&self) -> impl Iterator<Item = (PolicyKind, &str)> {
        let given = [
            (PolicyKind::Scheduler, &self.scheduler),
            (PolicyKind::Admission, &self.admission),
            (PolicyKind::PrefixCache, &self.prefix_cache),
        ];
        given.into_iter().flat_map(|(kind, specs)| specs.iter().map(move |spec| (kind, spec.as_str())))
    }
}

/// Runs seeds, or replays files.
pub fn run(args: &FuzzArgs) -> Result<(), Failure> {
    if args.replay.is_empty() { hunt(args) } else { args.replay.iter().try_for_each(|file| replay(file)) }
}

fn hunt(args: &FuzzArgs) -> Result<(), Failure> {
    if args.threads == Some(0) {
        return Err(Failure::Usage("--threads must be at least 1".to_owned()));
    }
    let file = |seed: u64| args.out.join(format!("fuzz-{seed}.json"));
    if args.minimize {
        check_out(Some(&file(args.seed)))?;
    }
    let all: Vec<String> = args.policies().map(|(kind, spec)| format!("{kind} {spec}")).collect();
    let guests = Guests::load(&all).map_err(Failure::Usage)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let hunt = Hunt {
        seed: args.seed,
        seeds: args.seeds.unwrap_or(u64::MAX),
        steps: args.steps.unwrap_or(if args.seeds.is_some() { u64::MAX } else { 1_000_000 }),
        ops: OPS,
        threads: args.threads.unwrap_or(cores),
        outsiders: guests.outsiders(),
        checks: Checks::default(),
    };
    let clock = Mutex::new((Instant::now(), Instant::now()));
    let summary = hunt.run(|summary| show_progress(&clock, summary));
    let mut text = format!(
        "seeds from {}: {} without a violation, {} steps, {} batches, fingerprint {:016x}\n{}",
        args.seed, summary.seeds, summary.steps, summary.batches, summary.fingerprint, summary.reached
    );
    let Some((seed, violation)) = &summary.violation else {
        emit(None, &text)?;
        return Ok(());
    };
    text += &describe(&format!("seed {seed}"), violation);
    emit(None, &text)?;
    if args.minimize {
        let case = generate(*seed, OPS, &guests.names());
        shrink(&case, &guests, &file(*seed))?;
    } else {
        emit(None, &format!("to minimize it: {}\n", to_minimize(args, *seed)))?;
    }
    Err(Failure::Failed(format!("seed {seed} violates an invariant")))
}

/// The command that minimizes a seed's case, which depends on the given policies.
fn to_minimize(args: &FuzzArgs, seed: u64) -> String {
    let mut command = format!("infer sim fuzz --seed {seed} --seeds 1 --minimize");
    for (kind, spec) in args.policies() {
        command += &format!(" --{kind} {}", quoted(spec));
    }
    command
}

/// A word for a shell, in quotes if it needs them.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn shrink(case: &Case, guests: &Guests, file: &Path) -> Result<(), Failure> {
    let outsiders = guests.outsiders();
    let small = minimize(case, &outsiders, Checks::default(), |left| {
        let _ = writeln!(std::io::stderr(), "{left} operations are left");
    });
    let Some((case, violation)) = small else {
        return Err(Failure::Failed("the seed passes when it is replayed".to_owned()));
    };
    std::fs::write(file, case.to_text(&violation.message))
        .map_err(|error| Failure::Failed(format!("can't write {}: {error}", file.display())))?;
    emit(None, &describe(&format!("minimized to {} operations", case.ops.len()), &violation))?;
    emit(None, &format!("to replay it: infer sim fuzz --replay {}\n", quoted(&file.display().to_string())))?;
    Ok(())
}

fn replay(file: &Path) -> Result<(), Failure> {
    let usage = |error: String| Failure::Usage(format!("--replay {}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let case = Case::from_text(&text).map_err(|error| usage(error.to_string()))?;
    let guests = Guests::load(&case.setup.outsiders).map_err(usage)?;
    match play(&case, &guests.outsiders(), Checks::default()) {
        Ok(outcome) => {
            let (steps, print) = (outcome.steps, outcome.fingerprint);
            emit(
                None,
                &format!("{}: no violation in {steps} steps, fingerprint {print:016x}\n", file.display()),
            )?;
            Ok(())
        }
        Err(violation) => {
            emit(None, &describe(&file.display().to_string(), &violation))?;
            Err(Failure::Failed(format!("{} violates an invariant", file.display())))
        }
    }
}

/// Policies given on the command line or named in a replayed file.
struct Guests {
    loader: PolicyLoader,
    choices: Vec<(String, Choice)>,
}

impl Guests {
    /// Loads policies given as `KIND SPEC`, the form in which replay files name them.
    fn load(names: &[String]) -> Result<Self, String> {
        let message = |failure| match failure {
            Failure::Usage(message) | Failure::Failed(message) => message,
        };
        let loader = loader().map_err(message)?;
        let mut choices = Vec::new();
        for name in names {
            let (kind, spec) = name.split_once(' ').unwrap_or((name, ""));
            let kind = PolicyKind::ALL.into_iter().find(|known| known.name() == kind);
            let kind = kind.ok_or_else(|| format!("`{name}` doesn't start with a kind of policy"))?;
            let choice = choice(kind, spec).map_err(message)?;
            // Report a policy that can't be loaded before the run, not in the middle of it.
            choice.load(&loader).map_err(|error| format!("{name}: {error}"))?;
            choices.push((name.clone(), choice));
        }
        Ok(Self { loader, choices })
    }

    fn names(&self) -> Vec<String> {
        self.choices.iter().map(|(name, _)| name.clone()).collect()
    }

    fn outsiders(&self) -> Vec<Outsider<'_>> {
        let loader = &self.loader;
        let each = self.choices.iter().map(|(name, choice)| Outsider {
            name: name.clone(),
            make: Box::new(move || choice.load(loader).expect("`load` has tried it")),
        });
        each.collect()
    }
}

fn describe(what: &str, violation: &Violation) -> String {
    format!("{what}: after step {}: {} ({})\n", violation.step, violation.message, violation.place)
}

/// Prints progress every five seconds.
fn show_progress(clock: &Mutex<(Instant, Instant)>, summary: &Summary) {
    let Ok(mut clock) = clock.try_lock() else { return };
    let (begun, shown) = *clock;
    if shown.elapsed() >= Duration::from_secs(5) {
        clock.1 = Instant::now();
        let (seeds, steps) = (summary.seeds, summary.steps);
        let pace = u128::from(steps) * 1_000 / begun.elapsed().as_millis().max(1);
        let _ = writeln!(std::io::stderr(), "{seeds} seeds, {steps} steps, {pace} steps/s");
        if let Some(seed) = summary.late {
            let _ = writeln!(
                std::io::stderr(),
                "seed {seed} has been running for half a minute, and may never end"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: FuzzArgs,
    }

    #[test]
    fn command_to_minimize_names_the_given_policies() {
        let given = [
            "fuzz",
            "--scheduler",
            r#"srpt={"x": 5}"#,
            "--scheduler",
            "./a.wasm",
            "--prefix-cache",
            "b's.wasm",
        ];
        let Line { args } = Line::parse_from(given);
        let policies = r#" --scheduler 'srpt={"x": 5}' --scheduler ./a.wasm --prefix-cache 'b'\''s.wasm'"#;
        let command = to_minimize(&args, 17);
        assert_eq!(command.strip_prefix("infer sim fuzz --seed 17 --seeds 1 --minimize"), Some(policies));
    }
}
