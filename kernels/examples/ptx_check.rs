//! Every check of `infer gpu-check` for kernels, on PTX that nvcc made of them, interpreted. Prints a line per check, and the
//! kernels that none of them launched.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use infer_cuda_emulator::{Emulator, Module};
use infer_kernels::cuda::Device;
use infer_kernels::cuda::checks::{self, Check, Effort};

const USAGE: &str = "usage: ptx_check FILE.ptx... [--seeds N] [--only NAME]";

struct Options {
    files: Vec<String>,
    seeds: u64,
    /// Part of the names of the checks to run.
    only: String,
}

fn options() -> Result<Options, String> {
    let mut options = Options { files: Vec::new(), seeds: 1, only: String::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(USAGE);
        match word.as_str() {
            "--seeds" => options.seeds = value()?.parse().map_err(|_| USAGE)?,
            "--only" => options.only = value()?,
            _ if word.starts_with('-') => return Err(USAGE.to_owned()),
            _ => options.files.push(word),
        }
    }
    match options.files.is_empty() || options.seeds == 0 {
        true => Err(USAGE.to_owned()),
        false => Ok(options),
    }
}

/// A file's kernels, and how often each was launched.
struct File {
    name: String,
    module: Arc<Module>,
    launches: Mutex<BTreeMap<&'static str, u64>>,
}

fn read(name: &String) -> Result<File, String> {
    let text = std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
    let begun = Instant::now();
    let module = Module::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    let (kernels, took) = (module.kernels().len(), begun.elapsed().as_millis());
    println!("{name}: sm_{}, {kernels} kernels, read in {took} ms", module.target());
    Ok(File { name: name.clone(), module: Arc::new(module), launches: Mutex::default() })
}

/// Runs one check with one seed; returns whether it passed.
fn run(file: &File, check: &Check, seed: u64) -> bool {
    let begun = Instant::now();
    let emulator = Arc::new(Emulator::with_ptx(seed * 1_000_003, Arc::clone(&file.module)));
    let device: Arc<dyn Device> = emulator.clone();
    let result = check.run(&device, Effort::Quick, seed);
    let took = begun.elapsed().as_secs_f64();
    let mut launches = file.launches.lock().expect("no thread panics with it");
    for (kernel, count) in emulator.launches() {
        *launches.entry(kernel).or_default() += count;
    }
    let what = format!("sm_{} seed {seed} {:<38}", file.module.target(), check.name);
    match &result {
        Ok(covered) => println!("{what} {took:>6.1} s  {covered}"),
        Err(wrong) => println!("{what} {took:>6.1} s  FAILED: {wrong}"),
    }
    result.is_ok()
}

fn check() -> Result<bool, String> {
    let options = options()?;
    let files = options.files.iter().map(read).collect::<Result<Vec<File>, String>>()?;
    let mut jobs = Vec::new();
    // The last checks take longest, so they come first.
    for check in checks::all().iter().rev().filter(|check| check.name.contains(&options.only)) {
        jobs.extend((0..options.seeds).flat_map(|seed| files.iter().map(move |file| (file, check, seed))));
    }
    if jobs.is_empty() {
        return Err(format!("no check has a name with `{}`", options.only));
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((file, check, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            failed.fetch_add(usize::from(!run(file, check, *seed)), Ordering::Relaxed);
        }
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    // Of chosen checks it is known that they launch few.
    for File { name, module, launches } in files.iter().filter(|_| options.only.is_empty()) {
        let launches = launches.lock().expect("no thread panics with it");
        let kernels = module.kernels();
        let idle: Vec<&str> = kernels.iter().copied().filter(|name| !launches.contains_key(name)).collect();
        println!(
            "{name}: {} of {} kernels launched; not {idle:?}",
            kernels.len() - idle.len(),
            kernels.len()
        );
    }
    let failed = failed.into_inner();
    println!("{} of {} checks failed, {:.0} s", failed, jobs.len(), begun.elapsed().as_secs_f64());
    Ok(failed == 0)
}

fn main() -> ExitCode {
    match check() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
