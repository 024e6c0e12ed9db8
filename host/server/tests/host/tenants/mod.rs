//! Tenants over HTTP: keys, limits, separation and usage.

mod charges;
mod keys;
mod limits;
mod models;

use std::path::Path;

use infer_server::config::Config;
use infer_server::tenants::{KeyDigest, fresh};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{Host, events, request};

/// A tenant's key.
pub struct Key {
    pub text: String,
    table: String,
}

/// A key, and its tenant's table in a file of keys, with these lines.
pub fn key(tenant: &str, more: &str) -> Key {
    let text = fresh().unwrap();
    let table = format!("[tenants.{tenant}]\nkeys = [\"{}\"]\n{more}\n", KeyDigest::of(&text));
    Key { text, table }
}

impl Key {
    /// The same key of the same tenant, with these lines.
    fn granted(&self, more: &str) -> Self {
        let head: Vec<&str> = self.table.lines().take(2).collect();
        Self { text: self.text.clone(), table: format!("{}\n{more}\n", head.join("\n")) }
    }
}

/// Writes a file of keys.
pub fn write(path: &Path, keys: &[&Key]) {
    let text: String = keys.iter().map(|key| key.table.as_str()).collect();
    std::fs::write(path, text).unwrap();
}

/// A host that knows these keys, and the file that lists them.
async fn host_with(keys: &[&Key], config: Config) -> (Host, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), keys);
    (Host::start(Config { api_keys: Some(file.path().to_owned()), ..config }).await, file)
}

/// Starts a tenant's completion.
pub async fn complete(host: &Host, key: &Key, extra: Value) -> reqwest::Response {
    host.client
        .post(host.url("/v1/completions"))
        .bearer_auth(&key.text)
        .json(&request(extra))
        .send()
        .await
        .unwrap()
}

/// The last event of a tenant's completion.
pub async fn done(host: &Host, key: &Key, extra: Value) -> Value {
    let answer = complete(host, key, extra).await;
    assert_eq!(answer.status(), 200);
    let (name, done) = events(answer).await.pop().unwrap();
    assert_eq!(name, "done", "{done}");
    done
}

async fn metrics(host: &Host) -> String {
    host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap()
}

/// The response to a chat, sent with or without a key.
async fn chat(host: &Host, key: Option<&Key>, extra: Value) -> reqwest::Response {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let request = host.client.post(host.url("/v1/chat/completions")).json(&body);
    match key {
        Some(key) => request.bearer_auth(&key.text),
        None => request,
    }
    .send()
    .await
    .unwrap()
}
