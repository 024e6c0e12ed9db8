//! Served checkpoints of every model family produce what Hugging Face transformers computes for them
//! (tests/golden/README.md), in their own data type and in float32.

use std::path::Path;

use crate::common::{Host, config, events, text_of, token_ids};
use infer_model::DType;
use infer_server::config::Config;
use serde_json::{Value, json};

const CASES: [(&str, DType); 8] = [
    ("llama-f32", DType::F32),
    ("llama-bf16", DType::Bf16),
    ("llama-bf16", DType::F32),
    ("qwen3-bf16", DType::Bf16),
    ("qwen3-bf16", DType::F32),
    ("gemma3-f32", DType::F32),
    ("gemma3-bf16", DType::Bf16),
    ("gemma3-bf16", DType::F32),
];

/// A served checkpoint and its expected outputs.
struct Family {
    host: Host,
    model: String,
    golden: Value,
    /// Below this margin rounding may select another token.
    safe_margin: f64,
}

impl Family {
    async fn serve(name: &str, dtype: DType) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let computing = if dtype == DType::F32 { "float32_compute" } else { "bfloat16_compute" };
        let safe_margin = golden["safe_margin"][computing].as_f64().unwrap();
        let model = folder.to_str().unwrap().to_owned();
        // The checkpoint's own type is the default, so it isn't configured.
        let own = name.ends_with(if dtype == DType::F32 { "-f32" } else { "-bf16" });
        let dtype = (!own).then_some(dtype);
        let host = Host::start(Config { model: model.clone(), dtype, ..config() }).await;
        Self { host, model, golden, safe_margin }
    }

    /// Compares completions of token prompts. Returns the number of comparisons.
    async fn completes(&self) -> usize {
        let mut compared = 0;
        for case in self.golden["eos"]["cases"].as_array().unwrap() {
            if case["min_margin"].as_f64().unwrap() <= self.safe_margin {
                continue;
            }
            let prompts = self.golden["prompts"].as_array().unwrap();
            let prompt = prompts.iter().find(|prompt| prompt["name"] == case["prompt"]).unwrap();
            let body = json!({"model": self.model, "prompt": prompt["ids"], "temperature": 0,
                              "max_tokens": case["max_new_tokens"]});
            let said = events(self.host.post("/v1/completions", &body).await).await;
            let done = &said.last().unwrap().1;
            let at = format!("{} {}: {done}", self.model, case["prompt"]);
            let stops = case["finish_reason"] == "stop";
            assert_eq!(done["finish_reason"], if stops { "eos" } else { "length" }, "{at}");
            assert_eq!(json!(token_ids(&said)), case["generated_ids"], "{at}");
            assert_eq!(case["text"], text_of(&said), "{at}");
            compared += 1;
        }
        compared
    }

    /// Compares replies to conversations, rendered by the checkpoint's own template. Returns the number of
    /// comparisons.
    async fn answers(&self) -> usize {
        let mut compared = 0;
        for case in self.golden["chat_greedy"].as_array().unwrap() {
            let margins = case["margins"].as_array().unwrap();
            let safe = margins.iter().all(|margin| margin.as_f64().unwrap() > self.safe_margin);
            if !safe {
                continue;
            }
            let chats = self.golden["chat"].as_array().unwrap();
            let chat = chats.iter().find(|chat| chat["name"] == case["chat"]).unwrap();
            let body = json!({"model": self.model, "messages": chat["messages"], "temperature": 0,
                              "chat_template_kwargs": chat["kwargs"], "max_tokens": case["max_new_tokens"]});
            let answer = self.host.post("/v1/chat/completions", &body).await;
            assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
            let answer: Value = answer.json().await.unwrap();
            let at = format!("{} {}: {answer}", self.model, case["chat"]);
            assert_eq!(answer["usage"]["prompt_tokens"], case["prompt_tokens"], "{at}");
            assert_eq!(answer["choices"][0]["finish_reason"], case["finish_reason"], "{at}");
            assert_eq!(answer["usage"]["completion_tokens"], case["generated_ids"].as_array().unwrap().len());
            assert_eq!(answer["choices"][0]["message"]["content"], case["text"], "{at}");
            compared += 1;
        }
        compared
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_family_matches_the_reference_in_completions_and_chats() {
    for (name, dtype) in CASES {
        let family = Family::serve(name, dtype).await;
        let (completed, answered) = (family.completes().await, family.answers().await);
        assert!(completed > 0, "{name} {dtype:?}: no case is safe");
        assert!(dtype != DType::F32 || answered > 0, "{name} {dtype:?}: no conversation is safe");
        family.host.server.shutdown().await;
    }
}
