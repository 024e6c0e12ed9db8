//! Golden checkpoints, and the renderer compiled natively.
#![allow(dead_code, reason = "every test takes a part")]

pub mod native;

use std::path::PathBuf;
use std::sync::OnceLock;

use infer_chat::{ChatTemplate, Sandbox};
use infer_model::{ModelError, Source};
use serde_json::{Map, Value as Json};

/// A folder of golden data.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// A golden checkpoint.
pub fn source(name: &str) -> Source<'static> {
    Source::Directory(golden(name))
}

/// The variables in an object.
pub fn variables(object: &Json) -> Map<String, Json> {
    object.as_object().expect("an object").clone()
}

/// A sandbox for all tests of a program: compiling the renderer takes a second.
pub fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| Sandbox::new(None).expect("the renderer compiles"))
}

/// A checkpoint that is nothing but this template.
pub fn template(text: &str) -> Result<ChatTemplate, ModelError> {
    let files = [("chat_template.jinja", text.as_bytes())];
    ChatTemplate::load(sandbox(), &Source::Embedded(&files)).map(|template| template.expect("there is one"))
}
