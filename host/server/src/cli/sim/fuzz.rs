//! `infer sim fuzz`: the fault machine's command line. Standard output depends only on the arguments and the seed;
//! progress goes to standard error.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use infer_core::policy::PolicyKind;
use infer_sim::fuzz::{
    Case, Checks, Hunt, OPS, Outcome, Outsider, Reached, Summary, Violation, generate, minimize, play,
};
use infer_wasm::PolicyLoader;
use serde::Serialize;

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
    /// Folder for that file, or another name for it, which ends in .json
    #[arg(long, value_name = "DIR|FILE.json", default_value = ".", requires = "minimize")]
    out: PathBuf,
    /// Format of the result; JSON is one object, or with --replay a list with one for each file
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl FuzzArgs {
    /// The file for a seed's minimized case.
    fn file(&self, seed: u64) -> PathBuf {
        let is_json = self.out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        match is_json && !self.out.is_dir() {
            true => self.out.clone(),
            false => self.out.join(format!("fuzz-{seed}.json")),
        }
    }

    /// Prints a part of the result as text, if that is its format.
    fn say(&self, text: &str) -> Result<(), Failure> {
        match self.format {
            Format::Text => emit(None, text),
            Format::Json => Ok(()),
        }
    }

    /// Prints the whole result as JSON, if that is its format.
    fn end(&self, result: &impl Serialize) -> Result<(), Failure> {
        match self.format {
            Format::Text => Ok(()),
            Format::Json => {
                emit(None, &(serde_json::to_string_pretty(result).map_err(Failure::failed)? + "\n"))
            }
        }
    }

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

/// What happened in cases without a violation.
#[derive(Serialize)]
struct Counts {
    steps: u64,
    batches: u64,
    /// In hexadecimal.
    fingerprint: String,
    reached: BTreeMap<String, u64>,
}

/// A violation.
#[derive(Serialize)]
struct Found {
    /// The seed of its case, unless the case is from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    step: u64,
    place: String,
    message: String,
}

/// The smallest case found with a seed's violation.
#[derive(Serialize)]
struct Minimized {
    file: String,
    operations: usize,
    #[serde(flatten)]
    violation: Found,
}

/// Result of running seeds.
#[derive(Serialize)]
struct Hunted {
    /// The first.
    seed: u64,
    /// Those without a violation.
    seeds: u64,
    #[serde(flatten)]
    counts: Counts,
    violation: Option<Found>,
    minimized: Option<Minimized>,
}

/// Result of replaying a file: counts, or a violation.
#[derive(Serialize)]
struct Replayed {
    file: String,
    #[serde(flatten)]
    counts: Option<Counts>,
    violation: Option<Found>,
}

impl Counts {
    fn new(steps: u64, batches: u64, fingerprint: u64, reached: &Reached) -> Self {
        let reached = reached.rows().into_iter().collect();
        Self { steps, batches, fingerprint: format!("{fingerprint:016x}"), reached }
    }
}

impl Found {
    fn new(seed: Option<u64>, violation: &Violation) -> Self {
        let Violation { step, message, place } = violation.clone();
        Self { seed, step, place, message }
    }

    fn text(&self, what: &str) -> String {
        format!("{what}: after step {}: {} ({})\n", self.step, self.message, self.place)
    }
}

impl Minimized {
    fn text(&self) -> String {
        let what = format!("minimized to {} operations", self.operations);
        self.violation.text(&what)
            + &format!("to replay it: infer sim fuzz --replay {}\n", quoted(&self.file))
    }
}

impl Hunted {
    fn new(seed: u64, summary: &Summary) -> Self {
        let Summary { seeds, steps, batches, fingerprint, reached, violation, .. } = summary;
        Self {
            seed,
            seeds: *seeds,
            counts: Counts::new(*steps, *batches, *fingerprint, reached),
            violation: violation.as_ref().map(|(seed, violation)| Found::new(Some(*seed), violation)),
            minimized: None,
        }
    }
}

/// Runs seeds, or replays files.
pub fn run(args: &FuzzArgs) -> Result<(), Failure> {
    if args.replay.is_empty() { hunt(args) } else { replay_all(args) }
}

fn hunt(args: &FuzzArgs) -> Result<(), Failure> {
    if args.threads == Some(0) {
        return Err(Failure::Usage("--threads must be at least 1".to_owned()));
    }
    if args.minimize {
        check_out(Some(&args.file(args.seed)))?;
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
    let mut hunted = Hunted::new(args.seed, &summary);
    args.say(&told(&hunted, &summary.reached))?;
    let mut outcome = Ok(());
    if let Some((seed, _)) = summary.violation {
        outcome = Err(Failure::Failed(format!("seed {seed} violates an invariant")));
        if args.minimize {
            match shrink(&generate(seed, OPS, &guests.names()), &guests, &args.file(seed)) {
                Ok(minimized) => {
                    args.say(&minimized.text())?;
                    hunted.minimized = Some(minimized);
                }
                Err(failure) => outcome = Err(failure),
            }
        } else {
            args.say(&format!("to minimize it: {}\n", to_minimize(args, seed)))?;
        }
    }
    args.end(&hunted)?;
    outcome
}

fn told(hunted: &Hunted, reached: &Reached) -> String {
    let Hunted { seed, seeds, counts, violation, .. } = hunted;
    let Counts { steps, batches, fingerprint, .. } = counts;
    let mut text = format!(
        "seeds from {seed}: {seeds} without a violation, {steps} steps, {batches} batches, \
         fingerprint {fingerprint}\n{reached}"
    );
    if let Some(found) = violation {
        text += &found.text(&format!("seed {}", found.seed.unwrap_or_default()));
    }
    text
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

/// Minimizes a case and writes it to a file.
fn shrink(case: &Case, guests: &Guests, file: &Path) -> Result<Minimized, Failure> {
    let outsiders = guests.outsiders();
    let small = minimize(case, &outsiders, Checks::default(), |left| {
        let _ = writeln!(std::io::stderr(), "{left} operations are left");
    });
    let Some((case, violation)) = small else {
        return Err(Failure::Failed("the seed passes when it is replayed".to_owned()));
    };
    std::fs::write(file, case.to_text(&violation.message))
        .map_err(|error| Failure::Failed(format!("can't write {}: {error}", file.display())))?;
    Ok(Minimized {
        file: file.display().to_string(),
        operations: case.ops.len(),
        violation: Found::new(None, &violation),
    })
}

/// Replays the files up to the first with a violation.
fn replay_all(args: &FuzzArgs) -> Result<(), Failure> {
    let mut all = Vec::new();
    let mut outcome = Ok(());
    for file in &args.replay {
        let (replayed, text) = match replay(file) {
            Ok(done) => done,
            Err(failure) => {
                outcome = Err(failure);
                break;
            }
        };
        args.say(&text)?;
        let violates = replayed.violation.is_some();
        all.push(replayed);
        if violates {
            outcome = Err(Failure::Failed(format!("{} violates an invariant", file.display())));
            break;
        }
    }
    args.end(&all)?;
    outcome
}

/// The result, and as text.
fn replay(file: &Path) -> Result<(Replayed, String), Failure> {
    let usage = |error: String| Failure::Usage(format!("--replay {}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let case = Case::from_text(&text).map_err(|error| usage(error.to_string()))?;
    let guests = Guests::load(&case.setup.outsiders).map_err(usage)?;
    let file = file.display().to_string();
    Ok(match play(&case, &guests.outsiders(), Checks::default()) {
        Ok(Outcome { steps, batches, fingerprint, reached }) => {
            let counts = Counts::new(steps, batches, fingerprint, &reached);
            let print = &counts.fingerprint;
            let text = format!("{file}: no violation in {steps} steps, fingerprint {print}\n");
            (Replayed { file, counts: Some(counts), violation: None }, text)
        }
        Err(violation) => {
            let found = Found::new(None, &violation);
            let text = found.text(&file);
            (Replayed { file, counts: None, violation: Some(found) }, text)
        }
    })
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
    use serde_json::json;

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

    #[test]
    fn json_has_what_was_reached_and_the_violation() {
        let violation =
            Violation { step: 9, message: "a block is lost".to_owned(), place: "pool.rs:7".to_owned() };
        let passed = Summary {
            seeds: 2,
            steps: 300,
            batches: 40,
            fingerprint: 0xab,
            reached: Reached { tokens: 5, ..Reached::default() },
            ..Summary::default()
        };
        let failed = Summary { violation: Some((19, violation.clone())), ..passed.clone() };
        let value = |hunted: &Hunted| serde_json::to_value(hunted).unwrap();
        let [passed, mut failed] = [passed, failed].map(|summary| Hunted::new(17, &summary));
        let shown = value(&passed);
        assert_eq!((&shown["seed"], &shown["seeds"], &shown["steps"]), (&json!(17), &json!(2), &json!(300)));
        assert_eq!((&shown["batches"], &shown["fingerprint"]), (&json!(40), &json!("00000000000000ab")));
        assert_eq!((&shown["reached"]["tokens"], &shown["violation"]), (&json!(5), &json!(null)));
        let what = json!({"seed": 19, "step": 9, "place": "pool.rs:7", "message": "a block is lost"});
        assert_eq!((&value(&failed)["violation"], &value(&failed)["minimized"]), (&what, &json!(null)));

        let small = Minimized {
            file: "my case.json".to_owned(),
            operations: 3,
            violation: Found::new(None, &violation),
        };
        let text = "minimized to 3 operations: after step 9: a block is lost (pool.rs:7)\n\
                    to replay it: infer sim fuzz --replay 'my case.json'\n";
        assert_eq!(small.text(), text);
        failed.minimized = Some(small);
        let small = &value(&failed)["minimized"];
        assert_eq!((&small["file"], &small["operations"]), (&json!("my case.json"), &json!(3)));
        assert_eq!((&small["place"], &small["message"]), (&json!("pool.rs:7"), &json!("a block is lost")));
        assert!(
            told(&failed, &Reached::default())
                .ends_with("seed 19: after step 9: a block is lost (pool.rs:7)\n")
        );
    }

    #[test]
    fn out_is_a_folder_unless_it_ends_like_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cases.json");
        std::fs::create_dir(&folder).unwrap();
        let of = |out: &str| Line::parse_from(["fuzz", "--minimize", "--out", out]).args.file(17);
        assert_eq!(of("cases"), Path::new("cases/fuzz-17.json"));
        assert_eq!(of("cases/mine.json"), Path::new("cases/mine.json"));
        assert_eq!(of(folder.to_str().unwrap()), folder.join("fuzz-17.json"), "it is there, and a folder");
        assert_eq!(Line::parse_from(["fuzz"]).args.file(17), Path::new("./fuzz-17.json"));
    }
}
