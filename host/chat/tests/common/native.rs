//! The renderer without its sandbox: the same program compiled for this machine, given values that no wire carried.

use infer_chat_guest::{Context, Renderer, wire};
use infer_model::Source;
use minijinja::Value;
use serde_json::{Map, Value as Json};

/// Renders natively.
pub struct Oracle(Renderer);

impl Oracle {
    /// The template of a checkpoint that has one.
    pub fn load(source: &Source<'_>) -> Self {
        let file = |name| source.read(name).expect("it can be read");
        let config = file("tokenizer_config.json").map(|bytes| serde_json::from_slice::<Json>(&bytes));
        let config = config.map_or(Json::Null, |config| config.expect("JSON"));
        let template = match file("chat_template.jinja") {
            Some(bytes) => String::from_utf8(bytes.into_owned()).expect("text"),
            None => config["chat_template"].as_str().expect("a template").to_owned(),
        };
        let special = config.as_object().into_iter().flatten().filter_map(|(name, token)| {
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            name.ends_with("_token").then(|| (name.clone(), Value::from(text)))
        });
        Self(Renderer::new(template, special.collect()).expect("its syntax is sound"))
    }

    /// The prompt, or why there is none.
    pub fn render(
        &self,
        messages: &Json,
        add_generation_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, String> {
        let mut context: Context =
            variables.iter().map(|(name, value)| (name.clone(), value_of(value))).collect();
        context.insert("messages".to_owned(), value_of(messages));
        context.insert("add_generation_prompt".to_owned(), Value::from(add_generation_prompt));
        self.0.render(context, 0)
    }
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(entries) => {
            wire::object(entries.iter().map(|(name, value)| (Value::from(name.as_str()), value_of(value))))
        }
    }
}
