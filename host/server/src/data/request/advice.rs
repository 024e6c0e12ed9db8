//! What to do about fields of other servers that this host lacks, OpenAI's older ones, and those of one
//! endpoint in a request to another.

/// Fields, each with what to do instead of sending it.
const ADVICE: &[(&str, &str)] = &[
    ("anthropic_beta", "betas are named in the header `anthropic-beta`, and ignored"),
    ("betas", "betas are named in the header `anthropic-beta`, and ignored"),
    ("cache_prompt", "prefixes are cached without it, so leave it out"),
    ("enable_thinking", "chats have it within `chat_template_kwargs`"),
    ("function_call", "chats have `tool_choice` instead"),
    ("functions", "chats have `tools` instead"),
    ("guided_choice", "use `choice` in `structured_outputs`"),
    ("guided_grammar", "use `grammar` in `structured_outputs`"),
    ("guided_json", "use `json` in `structured_outputs`"),
    ("guided_json_object", "use `json_object` in `structured_outputs`"),
    ("guided_regex", "use `regex` in `structured_outputs`"),
    ("json_schema", "use `json` in `structured_outputs`"),
    ("keep_alive", "the model stays loaded, so leave it out"),
    ("max_completion_tokens", "use `max_tokens`"),
    ("mirostat", "this host has no Mirostat sampling"),
    ("num_beams", "this host has no beam search"),
    ("num_ctx", "the host's --max-seq-len sets the length of the context"),
    ("parallel_tool_calls", "`/v1/messages` has `disable_parallel_tool_use` in `tool_choice`"),
    ("reasoning_effort", "`/v1/messages` has `effort` in `output_config`"),
    ("regex", "use `regex` in `structured_outputs`"),
    ("repeat_penalty", "use `repetition_penalty`"),
    ("response_format", "`/v1/messages` has `format` in `output_config`"),
    ("stop", "`/v1/messages` has `stop_sequences`"),
    ("stop_sequences", "completions and chats have `stop`"),
    ("stream_options", "`/v1/messages` reports the usage always"),
    ("typical_p", "this host has no typical sampling"),
    ("use_beam_search", "this host has no beam search"),
];

/// The advice about a field, if there is any.
pub fn of(field: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(name, _)| *name == field).map(|&(_, advice)| advice)
}
