//! Third-party clients: installed from PyPI and npm, then run against a host by `tests/clients.rs`.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, run, target_dir};

const PYTHON: &[&str] = &[
    "anthropic>=2,<3",
    "openai>=2,<3",
    "openai-agents>=0.20,<0.21",
    "langchain-openai>=1,<2",
    "litellm>=1.80,<2",
    "mcp",
    "schemathesis>=4,<5",
];
const NODE: &[&str] =
    &["openai@7", "openai4@npm:openai@4.104.0", "ai@7", "@ai-sdk/openai-compatible@3", "zod@4"];

/// Installs the clients, reports those that can't be installed, and runs the rest.
pub fn clients(args: &[String]) -> Result<(), String> {
    let folder = target_dir()?.join("clients");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let installed = [("Python", python(&folder)), ("JavaScript", node(&folder))];
    for (name, installed) in &installed {
        if let Err(why) = installed {
            eprintln!("skipping {name} clients that are not installed yet: {why}");
        }
    }
    let mut tests = cargo(&["test", "--workspace", "--all-features", "--test", "clients", "--"]);
    tests.args(["--nocapture", "--test-threads", "1"]).args(args);
    run(tests.env("INFER_CLIENTS", &folder).env("INFER_CLIENTS_ALL", "1"))?;
    match installed.iter().any(|(_, installed)| installed.is_ok()) {
        true => Ok(()),
        false => Err("neither Python nor JavaScript clients can be installed".to_owned()),
    }
}

fn python(folder: &Path) -> Result<(), String> {
    let venv = folder.join("venv");
    let bin = venv.join("bin");
    // A venv whose creation failed halfway has Python but no pip.
    if !bin.join("pip").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    // uv resolves these in seconds, pip in minutes.
    run(Command::new(bin.join("python")).args(["-m", "pip", "install", "--quiet", "uv"]))?;
    let mut install = Command::new(bin.join("uv"));
    run(install.args(["pip", "install", "--quiet", "--python"]).arg(bin.join("python")).args(PYTHON))
}

fn node(folder: &Path) -> Result<(), String> {
    let folder = folder.join("node");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let manifest = folder.join("package.json");
    if !manifest.exists() {
        std::fs::write(&manifest, "{\"private\": true}\n")
            .map_err(|e| format!("{}: {e}", manifest.display()))?;
    }
    let mut install = Command::new("npm");
    run(install.current_dir(&folder).args(["install", "--silent", "--no-audit", "--no-fund"]).args(NODE))
}
