//! The table of settings: `--help`, the names of the environment variables, the keys of `infer.toml` and the order of
//! `infer config print` come from it.
//!
//! The defaults here are help text; a test holds them to those of `Config`. Deliberately absent: reading values
//! (`settings`) and what they mean (`validate`).

/// A flag of `infer serve`, which is also the variable `INFER_<KEY>` and a key of `infer.toml`.
pub struct Setting {
    /// The long flag, without leading dashes.
    pub key: &'static str,
    /// Placeholder in the help text.
    pub value: &'static str,
    /// The default, as the help text shows it.
    pub default: &'static str,
    /// Help text, one line.
    pub help: &'static str,
    /// Whether `infer generate` has this flag, too.
    pub generate: bool,
    /// Whether the flag without a value means `on`.
    pub switch: bool,
    /// Whether the default is described in words, because it isn't a value.
    pub worded: bool,
    /// Whether it takes several values: the flag several times, a list in the file, or one text with commas.
    pub repeats: bool,
}

impl Setting {
    const fn worded(self) -> Self {
        Self { worded: true, ..self }
    }

    const fn repeated(self) -> Self {
        Self { repeats: true, ..self }
    }
}

const fn setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: false, switch: false, worded: false, repeats: false }
}

const fn model_setting(
    key: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, value, default, help, generate: true, switch: false, worded: false, repeats: false }
}

const fn switch(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting {
        key,
        value: "on|off",
        default,
        help,
        generate: false,
        switch: true,
        worded: false,
        repeats: false,
    }
}

/// Every setting, in the order of the help text.
pub const SETTINGS: &[Setting] = &[
    model_setting(
        "model",
        "MODEL",
        "demo",
        "`demo`, a checkpoint directory, a .gguf file, or ORG/NAME on the Hugging Face hub (honours HF_HUB_CACHE, HF_TOKEN \
         and HF_HUB_OFFLINE)",
    ),
    setting(
        "served-model-name",
        "NAME",
        "the model's own",
        "Names of the model in requests, separated by commas; responses show the first",
    ).worded(),
    setting(
        "lora",
        "NAME=ADAPTER",
        "none",
        "LoRA adapter that is served beside the model, as a model of this name: a directory as PEFT saves it, or ORG/NAME on \
         the Hugging Face hub. Give it several times for several, or separate them by commas",
    ).worded().repeated(),
    setting(
        "max-adapters",
        "N",
        "those of --lora",
        "Most adapters at once, those of --lora included: others can be loaded and unloaded while the host runs (`infer admin \
         adapters`)",
    ).worded(),
    setting(
        "max-adapter-memory",
        "BYTES",
        "1GiB",
        "Most memory of all adapters together, if those of --lora don't take more; no other is loaded beyond it. With \
         --max-adapters a GPU keeps it free",
    ),
    setting("host", "HOST", "127.0.0.1", "Address the data plane listens on"),
    setting("port", "PORT", "8000", "Port of the data plane; 0 picks a free one"),
    setting(
        "admin",
        "HOST:PORT",
        "127.0.0.1:8001",
        "Address the admin plane listens on; port 0 picks a free one",
    ),
    model_setting("device", "DEVICE", "auto", "`auto` (a GPU if available), `cpu`, `cuda` or `cuda:N`"),
    model_setting(
        "dtype",
        "DTYPE",
        "auto",
        "Type of the weights and the KV cache: `auto` (as stored), `f32`, `bf16`, or `f16` (GPUs only)",
    ),
    model_setting(
        "quantize",
        "TYPE",
        "auto",
        "Weights as integers: `q8`, `q4` (embedding and head in 8 bits), `off`, or `auto` (4 bits where a quantized \
         checkpoint has 4, 8 bits for its other weights, MXFP4 as it is; only without --dtype). On a GPU experts are floats",
    ),
    model_setting(
        "generation-config",
        "auto|none",
        "auto",
        "Sampling defaults: `auto` takes them from the checkpoint's generation_config.json, `none` ignores that file",
    ),
    setting(
        "pooling",
        "auto|last",
        "auto",
        "Embeddings: `auto` makes them as the checkpoint says (modules.json, a GGUF file's pooling_type), `last` from the \
         last token's hidden state whatever it says",
    ),
    setting(
        "chat-template",
        "FILE",
        "the model's own",
        "Chat template (Jinja) in place of the checkpoint's own, for example for a checkpoint without one",
    ).worded(),
    model_setting(
        "max-seq-len",
        "TOKENS|auto",
        "the model's, at most 4096",
        "Maximum length of a sequence, prompt plus output; `auto` is the model's, or as much as the KV pool holds",
    ).worded(),
    model_setting(
        "speculate",
        "N",
        "0",
        "Draft tokens per sequence and step (prompt-lookup speculative decoding); 0 disables it. They don't change the \
         output",
    ),
    switch(
        "plan-ahead",
        "off",
        "Plan the next step while a GPU computes the current one. Output is unchanged",
    ),
    setting("max-batch-size", "N", "32", "Maximum number of sequences running at once"),
    setting(
        "max-batch-tokens",
        "TOKENS",
        "auto",
        "Maximum tokens computed per step; `auto` is 2048 on a GPU and 64 on a CPU, or twice --max-batch-size if that is \
         larger",
    ),
    setting("prefill-chunk", "TOKENS", "512", "Maximum prompt tokens of one sequence per step"),
    setting("max-prefill-requests", "N", "8", "Maximum number of sequences in prefill per step"),
    setting("max-prefill-memory", "BYTES", "4GiB", "Maximum working memory for the prompt tokens of a step"),
    setting("max-waiting-requests", "N", "1000", "Capacity of the queue; requests beyond it get a 503"),
    setting("kv-cache", "KIND", "paged", "`paged`, or `contiguous` (the reference backend: full-length rows, whatever --kv-memory says, and no shared prefixes)"),
    setting("block-size", "TOKENS", "16", "Tokens per KV block"),
    setting(
        "kv-memory",
        "BYTES",
        "auto",
        "Memory of the KV pool, for example `2GiB`; `auto` takes a share of the free memory",
    ),
    setting(
        "gpu-memory-utilization",
        "SHARE",
        "0.9",
        "Share of a GPU's memory for weights, working memory and an `auto` KV pool",
    ),
    setting(
        "prompt-cache-entries",
        "N",
        "100",
        "Whole prompts whose last logits are kept, so that repeating one computes nothing; 0 disables this",
    ),
    setting(
        "prompt-cache-ttl",
        "SECONDS",
        "300",
        "How long an entry of the prompt cache is kept after its last use",
    ),
    switch("prefix-caching", "on", "Share KV blocks between requests with the same prefix, and results of whole prompts (--prompt-cache-entries)"),
    setting(
        "kv-offloading-size",
        "BYTES",
        "none",
        "Memory of the machine that takes cached blocks which the KV pool has no room for, for example `8GiB`; they come \
         back when a request needs them. 0: none",
    )
    .worded(),
    setting(
        "kv-offloading-dir",
        "DIR",
        "none",
        "Directory of a temporary file that takes them instead of memory; an empty one: memory",
    )
    .worded(),
    setting(
        "cache-file",
        "FILE",
        "none",
        "File that keeps cached prefixes across restarts: restored at the start, saved at a shutdown",
    )
    .worded(),
    setting("cache-file-size", "BYTES", "8GiB", "Maximum size of --cache-file; what was used last is saved first"),
    setting(
        "scheduler",
        "POLICY",
        "continuous",
        "Policy that plans each step: the name of a bundled one, or a .wasm file",
    ),
    setting(
        "admission",
        "POLICY",
        "memory-aware",
        "Policy that admits requests: the name of a bundled one, or a .wasm file; or several, separated by commas",
    ),
    setting(
        "prefix-cache",
        "POLICY",
        "lru",
        "Policy that evicts cached prefixes: the name of a bundled one, or a .wasm file",
    ),
    setting(
        "policy-config",
        "FILE",
        "none",
        "JSON file with the policies' configurations: {\"scheduler\": {..}, \"admission\": {..}, \"prefix-cache\": {..}}",
    ).worded(),
    setting(
        "policy-state",
        "DIR",
        "none",
        "Directory that keeps swaps, their history, the quarantine and what policies know across restarts",
    )
    .worded(),
    setting(
        "policy-deadline",
        "TIME",
        "20ms",
        "Processor time of one policy call, up to 1s; the calls of a step together get five times as much",
    ),
    setting("policy-memory", "BYTES", "64MiB", "Memory of one policy instance, up to 1GiB"),
    setting("policy-strikes", "N", "3", "Faults within --policy-strike-window that remove a policy"),
    setting("policy-strike-window", "TIME", "10s", "Time within which faults add up; see --policy-strikes"),
    setting(
        "starvation-bound",
        "TIME",
        "5s",
        "How long a scheduler may ignore a sequence that could run before it is removed, or an admission canary hold all \
         requests on an idle host; an admission policy that is no canary, twelve times as long",
    ),
    setting(
        "fault-dir",
        "DIR",
        "infer/faults in the user's cache",
        "Directory for recorded policy faults, which `infer policy replay` reads; created with mode 0700, which one that \
         exists must have",
    ).worded(),
    switch("show-text", "off", "Show the text of cached prefixes on the admin plane"),
    model_setting("threads", "N", "all cores", "Compute threads").worded(),
    setting("seed", "N", "none", "Seed for requests without one, by their number: the same requests in the same order sample the same tokens").worded(),
    switch(
        "deterministic",
        "off",
        "Make results on a GPU independent of the batch, at a cost (on the CPU they always are)",
    ),
    setting(
        "api-keys",
        "FILE",
        "none",
        "TOML file of tenants and the digests of their API keys; see `infer keys`",
    ).worded(),
    setting(
        "operators",
        "FILE",
        "none",
        "TOML file of further operators of the admin plane: their roles, and the digests of their tokens (`infer keys hash`)",
    ).worded(),
    setting(
        "allowed-origins",
        "ORIGINS",
        "none",
        "Web pages that may use the data plane (CORS): origins separated by commas, such as https://example.org, or `*` \
         for any",
    ).worded().repeated(),
    setting(
        "metrics",
        "public|tenants|admin",
        "public",
        "Where /metrics is served: `public` (on both planes; the data plane asks for no key and, with --api-keys, shows \
         nothing of single tenants), `tenants` (the same, but with each tenant's metrics), or `admin` (only on the admin \
         plane)",
    ),
    setting("max-body-bytes", "BYTES", "8MiB", "Maximum size of a request body"),
    setting(
        "max-body-memory",
        "BYTES",
        "256MiB",
        "Maximum memory for all long request bodies together, of which each of several tenants has a share; requests beyond \
         it get a 503",
    ),
    setting(
        "max-connections",
        "N",
        "4096",
        "Maximum open connections of the data plane; further ones replace idle ones, or get a 503",
    ),
    setting(
        "header-timeout",
        "SECONDS",
        "30",
        "Time limit for the head of a request, from its first byte to its last, and for the first byte on a new connection",
    ),
    setting("body-timeout", "SECONDS", "30", "Time limit for the body of a request"),
    setting("idle-timeout", "SECONDS", "120", "How long a connection may stay open between two requests"),
    setting("write-timeout", "SECONDS", "60", "How long a client may read nothing of its response"),
    setting(
        "request-timeout",
        "SECONDS",
        "3600",
        "Time limit for a whole request; after it, the request fails (504, `request_timeout`)",
    ),
    setting(
        "step-timeout",
        "SECONDS",
        "300",
        "Time limit for a step, after which health checks report a hung device (503, `engine_hangs`)",
    ),
    setting("drain-timeout", "SECONDS", "600", "Time limit for running streams to finish at shutdown"),
    setting("tls-cert", "FILE", "none", "PEM certificate with its chain; needs --tls-key").worded(),
    setting("tls-key", "FILE", "none", "PEM private key; needs --tls-cert").worded(),
    setting(
        "kv-events",
        "ENDPOINT",
        "none",
        "Publish KV events for routers over ZMQ, for example at tcp://0.0.0.0:5557",
    ).worded(),
    setting(
        "kv-events-replay",
        "ENDPOINT",
        "none",
        "Resend missed KV events on request, for example at tcp://0.0.0.0:5558",
    ).worded(),
    setting("kv-events-topic", "TEXT", "kv@HOST:PORT@MODEL", "Topic of the KV events").worded(),
    setting(
        "otlp",
        "URL",
        "none",
        "OpenTelemetry collector, for example http://HOST:4318 (needs a build with the feature `otel`)",
    ).worded(),
    setting(
        "sse-dialect",
        "DIALECT",
        "auto",
        "Format of streams: `auto`, `named`, or `openai`, which also streams only if the request asks for it",
    ),
];

/// The keys of all settings.
pub(super) fn known_keys() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.key).collect()
}
