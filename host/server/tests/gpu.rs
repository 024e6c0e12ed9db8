//! `infer` on a GPU, as a process: with the emulated driver and cuBLASLt in place of the vendor's libraries, everything
//! else is what runs on real hardware. The libraries refuse whatever their documentation forbids and say so, which none of
//! these tests may cause.
#![cfg(target_os = "linux")]

#[path = "common/process.rs"]
mod process;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Output;

use infer_emulated_driver::MARK;
use process::{COMPLETION, Home, Host, complaint};
use serde_json::Value;

/// An image that a driver recognizes: the emulated one has its own kernels.
const IMAGE: [u8; 24] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A home with an emulated GPU.
struct Machine {
    home: Home,
}

impl Machine {
    /// `None` if the build found no C++ compiler.
    fn new() -> Option<Self> {
        if !infer_emulated_driver::works() {
            eprintln!("skipped: no C++ compiler");
            return None;
        }
        let home = Home::new();
        let lib = home.path("lib");
        fs::create_dir(&lib).unwrap();
        infer_emulated_driver::install(&lib).expect("this library's build");
        infer_emulated_blas::install(&lib).expect("this library's build");
        // The first names that are tried, so that a real driver of this machine is not.
        symlink("libcuda.so.1", lib.join("libcuda.so")).unwrap();
        symlink("libcublasLt.so.13", lib.join("libcublasLt.so")).unwrap();
        fs::write(home.path("kernels.fatbin"), IMAGE).unwrap();
        Some(Self { home })
    }

    /// Makes a shell's commands use the emulated GPU.
    const VARIABLES: &str =
        "export LD_LIBRARY_PATH=$PWD/lib INFER_CUDA_LIB=$PWD/lib INFER_CUDA_IMAGE=$PWD/kernels.fatbin";

    /// What a shell runs first, with these variables more.
    fn before(variables: &str) -> String {
        format!("exec 2>log.txt; {} {variables}", Self::VARIABLES)
    }

    fn serve(&self, variables: &str, more: &[&str]) -> Host {
        Host::start(self.home.serve(&Self::before(variables), &[&["--device", "cuda"], more].concat()))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.home.command("", arguments).output().expect("sh starts")
    }

    /// What was logged, without a word from the libraries.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.home.path("log.txt")).unwrap();
        assert!(!log.contains(MARK), "{log}");
        log
    }
}

/// The text of a completion.
fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

/// A stream of `tokens` tokens that has begun.
fn begun(host: &Host, prompt: &str, tokens: u32) -> BufReader<TcpStream> {
    let body = format!(
        r#"{{"model": "demo", "prompt": "{prompt}", "temperature": 0, "max_tokens": {tokens}, "ignore_eos": true}}"#
    );
    let mut stream = BufReader::new(host.ask(&body));
    let mut line = String::new();
    while line != "event: token\n" {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it ended before its first token");
    }
    stream
}

/// The rest of a stream: its last event's name and data.
fn ended(stream: BufReader<TcpStream>) -> (String, Value) {
    let (mut event, mut data) = (String::new(), Value::Null);
    for line in stream.lines().map(Result::unwrap) {
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut event);
        } else if let Some(json) = line.strip_prefix("data: ") {
            data = serde_json::from_str(json).unwrap();
        }
    }
    (event, data)
}

#[test]
fn checks_pass_through_the_driver() {
    let Some(machine) = Machine::new() else { return };
    // Copies to pinned memory, shared memory beyond the common, products with rope and by cuBLASLt, several threads.
    let chosen = ["block copies", "products row by row", "rope, head norms", "products with rope"];
    let chosen = chosen.map(|words| ["--only", words]);
    let arguments = [&["gpu-check", "--seeds", "2"][..], chosen.as_flattened()].concat();
    let output = machine.home.command(&Machine::before(""), &arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", machine.log());
    assert!(
        said.contains("Emulated GPU, compute capability 9.0") && said.contains("cuBLASLt 130000"),
        "{said}"
    );
    assert!(said.ends_with("4 checks passed.\n"), "{said}");
    machine.log();

    let none = [&["gpu-check"][..], &["--only", "nonsense"]].concat();
    let output = machine.home.command(&Machine::before(""), &none).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = machine.log();
    assert!(log.contains("no check has such a name"), "{log}");
}

/// Recorded decodes of one and of two sequences, prompts by cuBLASLt, a swap, a stream that its client leaves, tokens as on
/// a CPU, and an end that gives everything back.
#[test]
fn streams_outlast_swaps_and_cancels() {
    let prompt = "What is a prefix cache, and which requests profit from it while others wait in the queue?";
    let body = COMPLETION.replace("What is a block?", prompt);
    // The model knows its answer by heart, so no rounding turns it into another one.
    let on_cpu = {
        let home = Home::new();
        let host = Host::start(home.serve("", &["--device", "cpu"]));
        text(&host.completes(&body))
    };
    for flags in [&[][..], &["--plan-ahead", "on"], &["--plan-ahead", "on", "--deterministic", "on"]] {
        let Some(machine) = Machine::new() else { return };
        let host = machine.serve("", flags);
        let (kept, left) = (begun(&host, prompt, 8), begun(&host, "Blocks", 400));
        let swap = ["policy", "swap", "scheduler", "static-batch", "--admin", &host.admin];
        let swapped = machine.run(&swap);
        assert!(swapped.status.success(), "{}", complaint(&swapped));
        drop(left);
        let (event, done) = ended(kept);
        assert_eq!(
            (event.as_str(), &done["usage"]["completion_tokens"]),
            ("done", &Value::from(8)),
            "{done}"
        );
        assert_eq!(text(&host.completes(&body)), on_cpu, "{flags:?}");
        host.ends();
        assert!(machine.log().contains("computing on cuda:0 (Emulated GPU)"));
    }
}

/// The answer repeats the prompt, from which draft tokens are taken.
#[test]
fn draft_tokens_save_steps_and_change_no_answer() {
    let prompt = "It holds the keys and values of tokens by default. A block is the unit of KV memory. What is a block?";
    let body =
        COMPLETION.replace("What is a block?", prompt).replace("\"max_tokens\": 5", "\"max_tokens\": 24");
    let on_cpu = {
        let home = Home::new();
        let host = Host::start(home.serve("", &["--device", "cpu"]));
        text(&host.completes(&body))
    };
    for flags in [&["--speculate", "7"][..], &["--speculate", "7", "--deterministic", "on"]] {
        let Some(machine) = Machine::new() else { return };
        let host = machine.serve("", flags);
        assert_eq!(text(&host.completes(&body)), on_cpu, "{flags:?}");
        let mut metrics = String::new();
        host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
        let accepted = metrics.lines().find_map(|line| line.strip_prefix("infer_accepted_tokens_total "));
        assert!(accepted.is_some_and(|tokens| tokens.parse::<u32>().unwrap() > 4), "{flags:?}: {metrics}");
        host.ends();
        machine.log();
    }
}

#[test]
fn weights_may_be_integers() {
    for quantize in ["q8", "q4"] {
        let Some(machine) = Machine::new() else { return };
        let host = machine.serve("", &["--quantize", quantize]);
        host.serves();
        host.ends();
        let log = machine.log();
        assert!(log.contains("computing on cuda:0 (Emulated GPU)"), "{log}");
    }
}

/// Ampere launches nothing early.
#[test]
fn older_gpus_serve_without_early_launches() {
    let Some(machine) = Machine::new() else { return };
    let host = machine.serve("INFER_EMULATED_CAPABILITY=8.0", &[]);
    host.serves();
    host.ends();
    machine.log();
}

/// A graph that can't be recorded costs time and no token.
#[test]
fn refused_recordings_are_launched_one_by_one() {
    let refused = "cuStreamEndCapture:1:CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    let Some(machine) = Machine::new() else { return };
    let host =
        machine.serve(&format!("INFER_EMULATED_FAULTS={refused},{}", refused.replace(":1:", ":2:")), &[]);
    host.serves();
    host.serves();
    host.ends();
    let log = machine.log();
    assert!(log.contains("can't be recorded") && log.contains("previous error during capture"), "{log}");
}

/// The streams that it hit end with an error, and the host exits, so that a supervisor starts it again.
#[test]
fn lost_gpu_ends_the_host() {
    for fault in [
        "cuGraphLaunch:3:CUDA_ERROR_ILLEGAL_ADDRESS",
        "cuEventSynchronize:4:CUDA_ERROR_LAUNCH_FAILED",
        "cuMemcpyHtoDAsync_v2:40:CUDA_ERROR_ECC_UNCORRECTABLE",
    ] {
        let Some(machine) = Machine::new() else { return };
        let mut host = machine.serve(&format!("INFER_EMULATED_FAULTS={fault}"), &[]);
        let (event, error) =
            ended(BufReader::new(host.ask(
                &COMPLETION.replace("false", "true").replace("\"max_tokens\": 5", "\"max_tokens\": 200"),
            )));
        let log = || machine.log();
        assert_eq!(
            (event.as_str(), error["code"].as_str()),
            ("error", Some("device_fault")),
            "{fault}: {}",
            log()
        );
        assert!(error["error"].as_str().unwrap().contains("CUDA_ERROR"), "{error}");
        assert_eq!(host.child.wait().unwrap().code(), Some(1), "{fault}: {}", log());
        assert!(log().contains("the device is lost; the engine stops"), "{fault}: {}", log());
        assert!(machine.home.left("run").is_empty(), "the admin token is of no use any more");
    }
}

/// A step that fails ends the requests in it, and no others.
#[test]
fn failed_step_ends_its_own_requests() {
    for (fault, flags) in [
        ("cuLaunchKernelEx:60:CUDA_ERROR_INVALID_VALUE", &[][..]),
        ("cuEventSynchronize:2:CUDA_ERROR_INVALID_VALUE", &["--plan-ahead", "on"]),
        ("cuMemcpyHtoDAsync_v2:40:CUDA_ERROR_OUT_OF_MEMORY", &["--deterministic", "on"]),
    ] {
        let Some(machine) = Machine::new() else { return };
        let host = machine.serve(&format!("INFER_EMULATED_FAULTS={fault}"), flags);
        let streamed = COMPLETION.replace("\"stream\": false", "\"stream\": true");
        let (event, error) = ended(BufReader::new(host.ask(&streamed)));
        assert_eq!(
            (event.as_str(), error["code"].as_str()),
            ("error", Some("device_fault")),
            "{fault}: {error}"
        );
        host.serves();
        host.ends();
        let log = machine.log();
        assert_eq!(log.matches("device fault: ").count(), 1, "{fault}: {log}");
    }
}

#[test]
fn gpu_that_does_not_start_is_an_error_that_says_why() {
    let cases = [
        (
            "cuInit:1:CUDA_ERROR_NO_DEVICE",
            1,
            "--device: the NVIDIA driver reports no GPU: no CUDA-capable device",
        ),
        ("cuModuleLoadData:1:CUDA_ERROR_INVALID_IMAGE", 2, "can't load this image"),
        ("cuStreamCreate:1:CUDA_ERROR_OUT_OF_MEMORY", 1, "no stream: out of memory"),
        ("cuMemAlloc_v2:3:CUDA_ERROR_OUT_OF_MEMORY", 1, "the weights don't fit"),
        ("cuDevicePrimaryCtxRetain:1:CUDA_ERROR_OUT_OF_MEMORY", 1, "no context: out of memory"),
    ];
    for (fault, code, words) in cases {
        let Some(machine) = Machine::new() else { return };
        let variables = format!("{} INFER_EMULATED_FAULTS={fault}", Machine::VARIABLES);
        let said = machine.home.fails(code, &variables, &["--device", "cuda"], &[words]);
        assert!(!said.contains(MARK), "{said}");
    }
    // `auto` computes on the CPU.
    let Some(machine) = Machine::new() else { return };
    let before = Machine::before("INFER_EMULATED_FAULTS=cuInit:1:CUDA_ERROR_NO_DEVICE");
    let host = Host::start(machine.home.serve(&before, &["--device", "auto"]));
    host.serves();
    host.ends();
    assert!(machine.log().contains("computing on the CPU"));
}

/// What a command of `infer admin adapters` prints.
fn adapters(machine: &Machine, host: &Host, arguments: &[&str]) -> String {
    let arguments = [&["admin", "adapters"][..], arguments, &["--json", "--admin", &host.admin]].concat();
    let output = machine.run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
    String::from_utf8(output.stdout).expect("JSON")
}

/// Requests of a model and of its adapters at once, as on a CPU, also once these came anew; and in bf16 a recorded decode of
/// each.
#[test]
fn adapters_are_served_beside_their_model() {
    let golden = |name: &str| format!("{}/../../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let (model, all, some) = (
        golden("qwen3-bf16"),
        format!("all={}", golden("qwen3-lora/all")),
        format!("some={}", golden("qwen3-lora/some")),
    );
    let names = ["base", "all", "some"];
    let flags = |dtype| {
        ["--model", &model, "--served-model-name", "base", "--lora", &all, "--lora", &some, "--dtype", dtype]
    };
    let tokens = |host: &Host| {
        let ask = |name: &str| {
            let body = format!(
                r#"{{"model": "{name}", "prompt": [12, 13, 300, 7, 80, 91], "temperature": 0, "max_tokens": 6,
                "ignore_eos": true, "stream": false, "return_token_ids": true}}"#
            );
            host.completes(&body)["choices"][0]["token_ids"].clone()
        };
        std::thread::scope(|scope| {
            let asked = names.map(|name| scope.spawn(move || ask(name)));
            asked.map(|asked| asked.join().expect("an answer"))
        })
    };
    let on_cpu = {
        let home = Home::new();
        let host = Host::start(home.serve("", &[&["--device", "cpu"][..], &flags("f32")].concat()));
        tokens(&host)
    };
    assert!(on_cpu[0] != on_cpu[1] && on_cpu[1] != on_cpu[2] && on_cpu[2] != on_cpu[0], "{on_cpu:?}");
    for dtype in ["f32", "bf16"] {
        let Some(machine) = Machine::new() else { return };
        let host = machine.serve("", &flags(dtype));
        let on_gpu = tokens(&host);
        assert!(
            on_gpu.iter().all(|tokens| tokens.as_array().is_some_and(|tokens| tokens.len() == 6)),
            "{on_gpu:?}"
        );
        if dtype == "f32" {
            assert_eq!(on_gpu, on_cpu);
        }
        let list = || -> Value {
            let said = adapters(&machine, &host, &["list"]);
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
        };
        let sizes = |list: &Value| -> Vec<Value> {
            let rows = list["adapters"].as_array().expect("a list").iter();
            rows.map(|row| serde_json::json!([row["name"], row["rank"], row["bytes"]])).collect()
        };
        let at_start = list();
        for (name, place) in [("all", &all), ("some", &some)] {
            adapters(&machine, &host, &["unload", name]);
            let (_, path) = place.split_once('=').expect("a name and a path");
            adapters(&machine, &host, &["load", name, path]);
        }
        assert_eq!(sizes(&list()), sizes(&at_start), "they take what they took");
        assert_eq!(list()["bytes"], at_start["bytes"]);
        if dtype == "f32" {
            assert_eq!(tokens(&host), on_cpu);
        }
        host.ends();
        let log = machine.log();
        assert!(log.contains("computing on cuda:0 (Emulated GPU)") && log.contains("adapter_bytes"), "{log}");
    }
}
