//! `infer sim fuzz`: the fault machine's command line. Standard output depends only on the arguments and the seed;
//! progress goes to standard error.

mod guests;
mod report;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use guests::Guests;
use infer_core::policy::PolicyKind;
use infer_sim::fuzz::{Case, Checks, Hunt, OPS, Summary, generate, minimize, play};
use report::{Found, Hunted, Minimized, Replayed, Told};

use super::result::ResultArgs;
use super::{Failure, check_file, check_inputs, check_out, is_same_file};

pub const AFTER_HELP: &str = "\
A seed determines a host, its policies, its traffic and all faults; the invariants are checked after each step. A step \
is one operation, or one engine turn while the case is drained at the end. Exit code 1 if a violation is found.
  infer sim fuzz --steps 10000000                       # a long run
  infer sim fuzz --seed 17 --seeds 1 --minimize         # the smallest case that fails like seed 17
  infer sim fuzz --replay fuzz-17.json                  # replay that case
  infer sim fuzz --seeds 2000 --format html --out fuzz.html
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
    case_out: PathBuf,
    #[command(flatten)]
    result: ResultArgs,
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
    /// The file for a seed's minimized case.
    fn file(&self, seed: u64) -> PathBuf {
        let out = &self.case_out;
        let is_json = out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        match is_json && !out.is_dir() {
            true => out.clone(),
            false => out.join(format!("fuzz-{seed}.json")),
        }
    }

    /// Whether the minimized case of some seed has this file.
    fn is_case(&self, file: &Path) -> bool {
        let found = file.canonicalize();
        let name = found.as_deref().unwrap_or(file).file_name().and_then(OsStr::to_str).unwrap_or_default();
        let seed = name.strip_prefix("fuzz-").and_then(|rest| rest.strip_suffix(".json")?.parse().ok());
        is_same_file(file, &self.file(seed.unwrap_or(self.seed)))
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

/// Runs seeds, or replays files.
pub fn run(args: &FuzzArgs) -> Result<(), Failure> {
    let out = args.result.out.as_deref();
    check_out(out)?;
    check_inputs("--out", out, "--replay", args.replay.iter())?;
    if args.replay.is_empty() { hunt(args) } else { replay_all(args) }
}

fn hunt(args: &FuzzArgs) -> Result<(), Failure> {
    if args.threads == Some(0) {
        return Err(Failure::Usage("--threads must be at least 1".to_owned()));
    }
    if args.minimize {
        check_file("--case-out", &args.file(args.seed))?;
        if args.result.out.as_deref().is_some_and(|out| args.is_case(out)) {
            let why = "--case-out: the file is that of --out; choose another one";
            return Err(Failure::Usage(why.to_owned()));
        }
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
    conclude(args, &guests, &summary, &mut std::io::stderr())
}

/// Minimizes the case with the violation if asked to, and reports. `notes` get the violation's seed first, because
/// that takes long.
fn conclude(
    args: &FuzzArgs,
    guests: &Guests,
    summary: &Summary,
    notes: &mut dyn Write,
) -> Result<(), Failure> {
    let mut hunted = Hunted::new(args.seed, summary);
    let mut told = Told::new(&args.result);
    told.say(&hunted.text())?;
    let mut outcome = Ok(());
    if let Some((seed, _)) = summary.violation {
        outcome = Err(Failure::Failed(format!("seed {seed} violates an invariant")));
        if args.minimize {
            let _ = writeln!(notes, "seed {seed} violates an invariant; minimizing it");
            match shrink(&generate(seed, OPS, &guests.names()), guests, &args.file(seed), notes) {
                Ok(minimized) => {
                    told.say(&minimized.text())?;
                    hunted.minimized = Some(minimized);
                }
                Err(failure) => outcome = Err(failure),
            }
        } else {
            hunted.advice = format!("to minimize it: {}\n", to_minimize(args, seed));
            told.say(&hunted.advice)?;
        }
    }
    both(outcome, told.end(&hunted, &[hunted.row()]))
}

/// The outcome of a command that then wrote its result.
fn both(outcome: Result<(), Failure>, written: Result<(), Failure>) -> Result<(), Failure> {
    match (outcome, written) {
        (Err(Failure::Failed(why)), Err(Failure::Failed(other))) => {
            Err(Failure::Failed(format!("{why}; {other}")))
        }
        (outcome, written) => outcome.and(written),
    }
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
fn shrink(case: &Case, guests: &Guests, file: &Path, notes: &mut dyn Write) -> Result<Minimized, Failure> {
    let outsiders = guests.outsiders();
    let small = minimize(case, &outsiders, Checks::default(), |left| {
        let _ = writeln!(notes, "{left} operations are left");
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

/// Replays the files up to the first with a violation. If none could be replayed, nothing is written.
fn replay_all(args: &FuzzArgs) -> Result<(), Failure> {
    let mut told = Told::new(&args.result);
    let mut all = Vec::new();
    let mut outcome = Ok(());
    for file in &args.replay {
        let replayed = match replay(file) {
            Ok(done) => done,
            Err(failure) => {
                outcome = Err(failure);
                break;
            }
        };
        told.say(&replayed.text)?;
        let violates = replayed.violation.is_some();
        all.push(replayed);
        if violates {
            outcome = Err(Failure::Failed(format!("{} violates an invariant", file.display())));
            break;
        }
    }
    if all.is_empty() {
        return outcome;
    }
    both(outcome, told.end(&all, &all.iter().map(Replayed::row).collect::<Vec<_>>()))
}

fn replay(file: &Path) -> Result<Replayed, Failure> {
    let usage = |error: String| Failure::Usage(format!("--replay {}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let case = Case::from_text(&text).map_err(|error| usage(error.to_string()))?;
    let guests = Guests::load(&case.setup.outsiders).map_err(usage)?;
    let outcome = play(&case, &guests.outsiders(), Checks::default());
    Ok(Replayed::new(file.display().to_string(), outcome))
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
    use infer_sim::fuzz::Violation;

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
    fn case_out_is_a_folder_unless_it_ends_like_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cases.json");
        std::fs::create_dir(&folder).unwrap();
        let of = |out: &str| Line::parse_from(["fuzz", "--minimize", "--case-out", out]).args.file(17);
        assert_eq!(of("cases"), Path::new("cases/fuzz-17.json"));
        assert_eq!(of("cases/mine.json"), Path::new("cases/mine.json"));
        assert_eq!(of(folder.to_str().unwrap()), folder.join("fuzz-17.json"), "it is there, and a folder");
        assert_eq!(Line::parse_from(["fuzz"]).args.file(17), Path::new("./fuzz-17.json"));
    }

    #[test]
    fn report_must_not_have_the_file_of_any_seeds_case() {
        for (case_out, out, is_case) in [
            (".", "fuzz-1.json", true),
            (".", "fuzz-19.json", true),
            (".", "./fuzz-19.json", true),
            (".", "src/../fuzz-19.json", true),
            ("src/..", "fuzz-19.json", true),
            (".", "src/fuzz-19.json", false),
            (".", "fuzz-all.json", false),
            (".", "fuzz-19.html", false),
            ("mine.json", "./mine.json", true),
            ("src/../mine.json", "mine.json", true),
            ("mine.json", "fuzz-19.json", false),
        ] {
            let Line { args } = Line::parse_from(["fuzz", "--minimize", "--case-out", case_out]);
            assert_eq!(args.is_case(Path::new(out)), is_case, "{case_out} {out}");
        }
        let dir = tempfile::tempdir().unwrap();
        let [case, link] = ["fuzz-19.json", "report.json"].map(|name| dir.path().join(name));
        std::fs::write(&case, "").unwrap();
        std::os::unix::fs::symlink(&case, &link).unwrap();
        let given = ["fuzz", "--minimize", "--case-out", dir.path().to_str().unwrap()];
        assert!(Line::parse_from(given).args.is_case(&link));
    }

    /// Concludes a hunt that found a violation of seed 19, which has none. Returns why it failed, what was told at
    /// once, and the report.
    fn concluded(given: &[&str]) -> [String; 3] {
        let dir = tempfile::tempdir().unwrap();
        let [folder, out] = [dir.path().to_owned(), dir.path().join("report")];
        let files = ["--case-out", folder.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let files = if given.contains(&"--minimize") { &files[..] } else { &files[2..] };
        let Line { args } = Line::parse_from([&["fuzz"][..], given, files].concat());
        let (message, place) = ("a block is lost".to_owned(), "pool.rs:7".to_owned());
        let violation = Some((19, Violation { step: 9, message, place }));
        let mut notes = Vec::new();
        let outcome = conclude(
            &args,
            &Guests::load(&[]).unwrap(),
            &Summary { violation, ..Summary::default() },
            &mut notes,
        );
        let Err(Failure::Failed(why)) = outcome else { panic!("a violation is a failure") };
        [why, String::from_utf8(notes).unwrap(), std::fs::read_to_string(out).unwrap()]
    }

    #[test]
    fn violation_is_told_before_it_is_minimized_and_reported_with_the_command_otherwise() {
        let [why, told, report] = concluded(&["--minimize", "--format", "json"]);
        assert_eq!(told, "seed 19 violates an invariant; minimizing it\n");
        assert_eq!(why, "the seed passes when it is replayed");
        assert!(report.contains(r#""message": "a block is lost""#), "{report}");

        let command = "to minimize it: infer sim fuzz --seed 19 --seeds 1 --minimize";
        for (format, says) in [("text", format!("\n{command}\n")), ("html", format!("<p>{command}</p>"))] {
            let [why, told, report] = concluded(&["--format", format]);
            assert_eq!((&why[..], &told[..]), ("seed 19 violates an invariant", ""), "{format}");
            assert!(report.contains(&says), "{report}");
        }
    }

    #[test]
    fn failure_names_the_violation_and_the_report_that_is_missing() {
        let failed = |why: &str| Err(Failure::Failed(why.to_owned()));
        for (outcome, written, says) in [
            (failed("found"), failed("full"), "found; full"),
            (failed("found"), Ok(()), "found"),
            (Ok(()), failed("full"), "full"),
        ] {
            assert!(matches!(both(outcome, written), Err(Failure::Failed(why)) if why == says), "{says}");
        }
        assert!(both(Ok(()), Ok(())).is_ok());
    }
}
