//! What to do about fields of other servers that this host lacks, and about OpenAI's older ones.

/// Fields, each with what to do instead of sending it.
const ADVICE: &[(&str, &str)] = &[
    ("cache_prompt", "prefixes are cached without it, so leave it out"),
    ("enable_thinking", "chats have it within `chat_template_kwargs`"),
    ("function_call", "chats have `tool_choice` instead"),
    ("functions", "chats have `tools` instead"),
    ("keep_alive", "the model stays loaded, so leave it out"),
    ("mirostat", "this host has no Mirostat sampling"),
    ("num_beams", "this host has no beam search"),
    ("num_ctx", "the host's --max-seq-len sets the length of the context"),
    ("repeat_penalty", "use `repetition_penalty`"),
    ("typical_p", "this host has no typical sampling"),
    ("use_beam_search", "this host has no beam search"),
];

/// The advice about a field, if there is any.
pub fn of(field: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(name, _)| *name == field).map(|&(_, advice)| advice)
}
