//! Greedy generation with the embedded model, one sequence at a time. It uses handwritten batches instead of an
//! engine, so that a failure is the model's.

mod batch;

use batch::{BLOCK, LONGEST, single_row};
use infer_chat::{ChatTemplate, Sandbox};
use infer_core::{Executor as _, StepOutput};
use infer_model::{ExecutorOptions, KvCacheKind, Model, ModelExecutor, Source, Tokenizer};

/// The embedded model, ready to run.
pub struct Demo {
    executor: ModelExecutor,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stops: Vec<u32>,
}

/// A generated answer.
#[derive(Debug)]
pub struct Answer {
    /// The text, without special tokens.
    pub text: String,
    /// Tokens generated, including the end token.
    pub tokens: usize,
    /// Whether it ended with the end token.
    pub ended: bool,
}

impl Demo {
    /// Loads the embedded files.
    pub fn load() -> Self {
        let source = Source::Embedded(infer_demo::FILES);
        let model = Model::load(&source, None).expect("the demo model loads");
        let sandbox = Sandbox::new(None).expect("the renderer compiles");
        let template = ChatTemplate::load(&sandbox, &source);
        let options = ExecutorOptions {
            kv_cache: KvCacheKind::Paged,
            block_size: BLOCK,
            total_blocks: LONGEST / BLOCK,
            max_running: 1,
            max_seq_len: LONGEST,
            prompt_cache_entries: 0,
            threads: 1,
        };
        Self {
            executor: model.executor(options).expect("an executor"),
            tokenizer: Tokenizer::load(&source).expect("a tokenizer"),
            template: template.expect("it loads").expect("a chat template"),
            stops: model.stop_tokens().to_vec(),
        }
    }

    /// Continues a bare prompt, as `/v1/completions` does.
    pub fn complete(&mut self, prompt: &str, limit: usize) -> Answer {
        let tokens = self.tokenizer.encode(prompt, true).expect("encodes");
        self.generate(tokens, limit)
    }

    /// Answers a conversation.
    pub fn chat(&mut self, messages: &serde_json::Value) -> Answer {
        let prompt = self.template.render(messages, true).expect("renders");
        let tokens = self.tokenizer.encode(&prompt, false).expect("encodes");
        self.generate(tokens, 128)
    }

    fn generate(&mut self, prompt: Vec<u32>, limit: usize) -> Answer {
        let mut input = prompt;
        let mut computed = 0;
        let mut drawn = Vec::new();
        let mut output = StepOutput::default();
        while drawn.len() < limit {
            let batch = single_row(&input, computed, None);
            self.executor.execute(&batch, &mut output).expect("the model computes");
            let token = output.sampled[0].expect("a token was asked for");
            computed += u32::try_from(input.len()).expect("short");
            drawn.push(token);
            if self.stops.contains(&token) {
                break;
            }
            input = vec![token];
        }
        let ended = drawn.last().is_some_and(|token| self.stops.contains(token));
        let text = self.tokenizer.decode(&drawn, true).expect("decodes");
        Answer { text: text.trim_start().to_owned(), tokens: drawn.len(), ended }
    }
}
