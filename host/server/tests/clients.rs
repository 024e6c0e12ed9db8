//! Third-party clients against a host: each completes, streams, cancels, receives errors, chats, calls
//! functions and requests structured output; those of OpenAI embed texts, too. Their scripts are in `clients/`.
//!
//! A client that isn't installed is skipped with a message. `cargo xtask clients` installs all of them into
//! `target/clients`, or the folder in INFER_CLIENTS, and runs this file.

mod common;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Host, config, model_with_tools};
use infer_server::config::{Config, DialectChoice, PoolingChoice};

/// Longest run of one client. One that hangs has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// A host whose model supports tools, and embeds.
async fn host() -> (Host, String, tempfile::TempDir) {
    host_that_speaks(DialectChoice::Auto).await
}

async fn host_that_speaks(sse_dialect: DialectChoice) -> (Host, String, tempfile::TempDir) {
    let folder = model_with_tools("hermes");
    let model = folder.path().display().to_string();
    let pooling = PoolingChoice::Last;
    let host = Host::start(Config { model, sse_dialect, pooling, ..config() }).await;
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    (host, name, folder)
}

fn clients() -> PathBuf {
    match std::env::var_os("INFER_CLIENTS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clients"),
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("clients").join(name)
}

/// The Python interpreter, if it has the package.
fn python(package: &str) -> Option<PathBuf> {
    let venv = clients().join("venv");
    let lib = std::fs::read_dir(venv.join("lib")).ok()?;
    let has = lib.flatten().any(|python| python.path().join("site-packages").join(package).exists());
    has.then(|| venv.join("bin").join("python"))
}

fn skip(client: &str) {
    eprintln!("skipped: {client} is not installed in {}; run `cargo xtask clients`", clients().display());
}

/// Runs a client to its end. None of its requests may be left afterwards.
async fn run(client: &str, host: &Host, command: &mut Command) {
    let said = tempfile::NamedTempFile::new().unwrap();
    let (out, err) = (said.reopen().unwrap(), said.reopen().unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("it can be started");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it runs");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(status.success(), "{client}: {status}\n{said}");
    host.until("its cancelled requests are gone", |s| {
        s["queue"]["running"] == 0 && s["queue"]["waiting"] == 0
    })
    .await;
}

async fn python_client(client: &str, package: &str) {
    let Some(python) = python(package) else { return skip(client) };
    let (host, model, _folder) = host().await;
    let url = format!("http://{}", host.server.data_addr);
    let mut command = Command::new(python);
    command
        .arg(script("clients.py"))
        .arg(client)
        .env("BASE_URL", url)
        .env("MODEL", model)
        .env("NO_PROXY", "*");
    run(client, &host, &mut command).await;
    host.server.shutdown().await;
}

async fn node_client(client: &str, package: &str, dialect: DialectChoice) {
    let modules = clients().join("node");
    if !modules.join("node_modules").join(package).exists() {
        return skip(client);
    }
    let (host, model, _folder) = host_that_speaks(dialect).await;
    let url = format!("http://{}", host.server.data_addr);
    let mut command = Command::new("node");
    command.arg(script("clients.mjs")).arg(client);
    command.env("BASE_URL", url).env("MODEL", model).env("MODULES", modules);
    run(client, &host, &mut command).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_python() {
    python_client("openai-python", "openai").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_python() {
    python_client("anthropic-python", "anthropic").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_agents() {
    python_client("openai-agents", "agents").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchain() {
    python_client("langchain", "langchain_openai").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm() {
    python_client("litellm", "litellm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_node() {
    node_client("openai-node", "openai", DialectChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_node_4() {
    node_client("openai-node-4", "openai4", DialectChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vercel_ai_sdk() {
    // Its completions neither set `stream` nor list JSON in `Accept`.
    node_client("ai-sdk", "@ai-sdk/openai-compatible", DialectChoice::OpenAi).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl");
    }
    let (host, model, _folder) = host().await;
    let curl = |path: &str, body: String| {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "-N", "--noproxy", "*", "-w", "\n%{http_code}", "-d"])
            .arg(body)
            .arg(host.url(path));
        command
    };
    let said = async |path: &str, body: String| {
        let mut command = curl(path, body);
        let output = tokio::task::spawn_blocking(move || command.output().expect("it can be started")).await;
        String::from_utf8(output.unwrap().stdout).expect("text")
    };
    let body = |rest: &str| format!("{{\"model\":\"{model}\",\"prompt\":\"Hello\",\"max_tokens\":4{rest}}}");
    let named = said("/v1/completions", body("")).await;
    assert!(named.starts_with("event: token\n") && named.contains("event: done\n"), "{named}");
    assert!(named.ends_with("\n200"), "{named}");
    let whole = said("/v1/completions", body(",\"stream\":false")).await;
    assert!(whole.contains("\"choices\"") && whole.ends_with("\n200"), "{whole}");
    let openai = said("/v1/completions", body(",\"stream_options\":{}")).await;
    assert!(openai.contains("data: [DONE]\n"), "{openai}");
    let refused = said("/v1/completions", body(",\"temprature\":1")).await;
    assert!(refused.contains("did you mean `temperature`?") && refused.ends_with("\n422"), "{refused}");
    let chat = format!(
        "{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}],\"max_tokens\":4}}"
    );
    let chat = said("/v1/chat/completions", chat).await;
    assert!(chat.contains("\"chat.completion\"") && chat.ends_with("\n200"), "{chat}");
    // A client that is killed during its stream.
    let endless = body(",\"ignore_eos\":true").replace(":4,", ":1500,");
    let mut child =
        curl("/v1/completions", endless).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut out = child.stdout.take().expect("piped");
    tokio::task::spawn_blocking(move || out.read_exact(&mut [0; 16]).expect("a stream begins"))
        .await
        .unwrap();
    child.kill().expect("it runs");
    child.wait().expect("it is ours");
    host.until("its request is gone", |s| s["queue"]["running"] == 0).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis() {
    if std::env::var_os("INFER_CLIENTS_ALL").is_none() {
        eprintln!("skipped: schemathesis takes a minute or more; run `cargo xtask clients`");
        return;
    }
    let Some(python) = python("schemathesis") else { return skip("schemathesis") };
    let (host, _, folder) = host().await;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    // It writes a cache to its working directory.
    command.current_dir(folder.path());
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                  response_headers_conformance,unsupported_method";
    command.args([
        "run",
        "--checks",
        checks,
        "--max-examples",
        "40",
        "--generation-deterministic",
        "--no-color",
    ]);
    command.arg("--request-timeout").arg("60").arg(host.url("/openapi.json"));
    run("schemathesis", &host, &mut command).await;
    host.server.shutdown().await;
}
