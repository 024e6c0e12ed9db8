//! An adapter's `adapter_config.json`, as PEFT writes it: how much its matrices count. Settings with which they would be
//! computed otherwise are refused by name; those that matter only for training are ignored.

use serde_json::Value;

use super::keys::Keys;
use crate::error::{ModelError, ModelErrorKind};

/// Maximum accepted rank.
const MAX_RANK: usize = 512;

/// Settings that must not be set, and why.
const UNSUPPORTED: [(&str, &str); 14] = [
    ("use_dora", "is not supported: DoRA also scales the model's own matrices"),
    ("use_qalora", "is not supported"),
    ("use_bdlora", "is not supported"),
    ("kasa_config", "is not supported"),
    ("monteclora_config", "is not supported"),
    ("fan_in_fan_out", "is not supported: no matrix of the supported families is transposed"),
    ("lora_bias", "is not supported: adapters have no biases"),
    ("modules_to_save", "is not supported: an adapter can't replace matrices of the model"),
    ("trainable_token_indices", "is not supported: an adapter can't replace rows of the embedding"),
    ("target_parameters", "is not supported: adapters of experts are not"),
    ("layer_replication", "is not supported: an adapter can't repeat layers"),
    ("alora_invocation_tokens", "is not supported: an adapter counts for whole requests"),
    ("arrow_config", "is not supported: requests choose adapters"),
    ("megatron_config", "is not supported"),
];

/// Ways of beginning that change the model's own matrices, unless they were converted when the adapter was saved.
const CHANGES_THE_MODEL: [&str; 5] = ["pissa", "olora", "loftq", "corda", "lora_ga"];

/// How much an adapter's matrices count.
#[derive(Debug)]
pub(crate) struct LoraConfig {
    rank: usize,
    alpha: f64,
    /// The scale falls with the root of the rank instead of the rank (rsLoRA, Kalajdzievski 2023).
    by_root: bool,
    ranks: Patterns<usize>,
    alphas: Patterns<f64>,
}

impl LoraConfig {
    /// Name of the file.
    pub(crate) const FILE: &str = "adapter_config.json";

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        Self::read(bytes).map_err(|error| match error.kind {
            ModelErrorKind::Config => ModelError::adapter(error.message),
            _ => error,
        })
    }

    fn read(bytes: &[u8]) -> Result<Self, ModelError> {
        let keys = Keys::parse(Self::FILE, bytes)?;
        match keys.text("peft_type")? {
            Some("LORA") => {}
            Some(other) => {
                let why = format!("{other:?} is not supported; adapters must be of type \"LORA\"");
                return Err(keys.unsupported("peft_type", &why));
            }
            None => return Err(keys.missing("peft_type")),
        }
        if let Some((key, why)) = UNSUPPORTED.iter().find(|(key, _)| is_set(keys.get(key))) {
            return Err(keys.unsupported(key, why));
        }
        if let Some(bias) = keys.text("bias")?.filter(|bias| *bias != "none") {
            let why = format!("{bias:?} is not supported: adapters have no biases");
            return Err(keys.unsupported("bias", &why));
        }
        if let Some(init) = keys.get("init_lora_weights").as_str()
            && CHANGES_THE_MODEL.iter().any(|name| init.to_ascii_lowercase().starts_with(name))
        {
            let why =
                format!("{init:?} is not supported: it changes the model's own matrices; convert it to LoRA");
            return Err(keys.unsupported("init_lora_weights", &why));
        }
        let rank = |value: &Value| {
            let rank = usize::try_from(value.as_u64()?).ok()?;
            (1..=MAX_RANK).contains(&rank).then_some(rank)
        };
        Ok(Self {
            rank: keys.bounded("r", MAX_RANK)?,
            alpha: keys.number("lora_alpha")?.ok_or_else(|| keys.missing("lora_alpha"))?,
            by_root: keys.flag("use_rslora")?.unwrap_or(false),
            ranks: Patterns::read(
                &keys,
                "rank_pattern",
                &format!("a whole number from 1 to {MAX_RANK}"),
                rank,
            )?,
            alphas: Patterns::read(&keys, "alpha_pattern", "a number", Value::as_f64)?,
        })
    }

    /// The rank of a module's matrices, and the factor of what they add.
    pub(crate) fn of(&self, module: &str) -> Result<(usize, f32), ModelError> {
        let rank = self.ranks.of(module)?.unwrap_or(self.rank);
        let alpha = self.alphas.of(module)?.unwrap_or(self.alpha);
        let divisor = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        let scale = (alpha / divisor) as f32;
        if scale.is_finite() {
            return Ok((rank, scale));
        }
        let why = format!("{}: the alpha of {module} is {alpha:e}, which is too large", Self::FILE);
        Err(ModelError::adapter(why))
    }
}

/// Values for some modules.
#[derive(Debug)]
struct Patterns<T> {
    key: &'static str,
    values: Vec<(String, T)>,
}

impl<T: Copy + PartialEq> Patterns<T> {
    /// Regular expressions are refused, except for one that is the beginning of a name (`^`).
    fn read(
        keys: &Keys,
        key: &'static str,
        what: &str,
        value: impl Fn(&Value) -> Option<T>,
    ) -> Result<Self, ModelError> {
        let map = match keys.get(key) {
            Value::Null => return Ok(Self { key, values: Vec::new() }),
            Value::Object(map) => map,
            _ => return Err(keys.wrong(key, "an object")),
        };
        let entry = |(name, found): (&String, &Value)| {
            let plain = name.strip_prefix('^').unwrap_or(name);
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if plain.is_empty() || !plain.chars().all(is_name) {
                let why = format!("has the regular expression {name:?}; only names of modules are supported");
                return Err(keys.unsupported(key, &why));
            }
            let read = value(found);
            read.map(|read| (name.clone(), read)).ok_or_else(|| keys.wrong_value(key, what, found))
        };
        Ok(Self { key, values: map.iter().map(entry).collect::<Result<_, _>>()? })
    }

    /// The value for a module, by its whole name or the last parts of it.
    fn of(&self, module: &str) -> Result<Option<T>, ModelError> {
        let matches = |name: &str| match name.strip_prefix('^') {
            Some(whole) => whole == module,
            None => {
                module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
        };
        let mut found = self.values.iter().filter(|(name, _)| matches(name));
        let Some((first, value)) = found.next() else { return Ok(None) };
        if let Some((other, _)) = found.find(|(_, other)| other != value) {
            return Err(ModelError::unsupported(format!(
                "{}: {} has different values for {module}: {first:?} and {other:?}",
                LoraConfig::FILE,
                self.key
            )));
        }
        Ok(Some(*value))
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(keys: &Value) -> Result<LoraConfig, ModelError> {
        let mut all = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": false,
            "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {}, "init_lora_weights": true});
        let (all_keys, keys) = (all.as_object_mut().unwrap(), keys.as_object().unwrap());
        all_keys.extend(keys.clone());
        LoraConfig::parse(all.to_string().as_bytes())
    }

    #[test]
    fn scale_follows_from_alpha_rank_and_patterns() {
        let module = "model.layers.1.self_attn.q_proj";
        for (keys, rank, scale) in [
            (json!({}), 8, 2.0),
            (json!({"lora_alpha": 4.0}), 8, 0.5),
            (json!({"use_rslora": true, "r": 16}), 16, 4.0),
            (json!({"rank_pattern": {"q_proj": 4}}), 4, 4.0),
            (json!({"rank_pattern": {"k_proj": 4, "oj": 2, "layers.11.self_attn.q_proj": 2}}), 8, 2.0),
            (json!({"alpha_pattern": {"layers.1.self_attn.q_proj": 1}}), 8, 0.125),
            (json!({"alpha_pattern": {"^model.layers.1.self_attn.q_proj": 8}}), 8, 1.0),
            (json!({"alpha_pattern": {"^layers.1.self_attn.q_proj": 8}}), 8, 2.0),
            (json!({"rank_pattern": {"q_proj": 2}, "use_rslora": true}), 2, 16.0 / 2.0_f32.sqrt()),
            (json!({"loftq_config": {}, "init_lora_weights": "gaussian", "lora_dropout": 0.1}), 8, 2.0),
        ] {
            assert_eq!(parse(&keys).unwrap().of(module).unwrap(), (rank, scale), "{keys}");
        }
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_name() {
        for (keys, said) in [
            (json!({"peft_type": "IA3"}), "peft_type \"IA3\" is not supported"),
            (json!({"peft_type": null}), "has no peft_type"),
            (json!({"use_dora": true}), "use_dora is not supported"),
            (json!({"modules_to_save": ["lm_head"]}), "modules_to_save is not supported"),
            (json!({"fan_in_fan_out": true}), "fan_in_fan_out is not supported"),
            (json!({"bias": "lora_only"}), "bias \"lora_only\" is not supported"),
            (json!({"lora_bias": true}), "lora_bias is not supported"),
            (json!({"trainable_token_indices": [1]}), "trainable_token_indices is not supported"),
            (json!({"target_parameters": ["mlp.experts.down_proj"]}), "target_parameters is not supported"),
            (json!({"layer_replication": [[0, 2]]}), "layer_replication is not supported"),
            (json!({"alora_invocation_tokens": [5]}), "alora_invocation_tokens is not supported"),
            (json!({"init_lora_weights": "pissa_niter_4"}), "init_lora_weights \"pissa_niter_4\" is not"),
            (json!({"init_lora_weights": "OLoRA"}), "init_lora_weights \"OLoRA\" is not"),
            (json!({"r": 0}), "r must be a whole number from 1 to 512, is 0"),
            (json!({"r": 513}), "r must be a whole number from 1 to 512, is 513"),
            (json!({"lora_alpha": null}), "has no lora_alpha"),
            (
                json!({"rank_pattern": {"q_proj": 0}}),
                "rank_pattern must be a whole number from 1 to 512, is 0",
            ),
            (json!({"alpha_pattern": {"q_proj": "x"}}), "alpha_pattern must be a number, is \"x\""),
            (json!({"rank_pattern": {"layers.[01].q_proj": 1}}), "the regular expression"),
            (json!({"rank_pattern": 3}), "rank_pattern must be an object, is 3"),
        ] {
            let error = parse(&keys).expect_err("it is refused").to_string();
            assert!(error.contains(said) && error.contains("adapter_config.json"), "{keys}: {error}");
            let begins = ["adapter configuration: ", "unsupported: "].map(|kind| error.starts_with(kind));
            assert!(begins.contains(&true), "{keys}: {error}");
        }
        let config = parse(&json!({"alpha_pattern": {"q_proj": 1, "self_attn.q_proj": 2}})).unwrap();
        let error = config.of("model.layers.0.self_attn.q_proj").expect_err("two values").to_string();
        assert!(error.contains("alpha_pattern has different values"), "{error}");
        let config = parse(&json!({"alpha_pattern": {"q_proj": 1e300}})).unwrap();
        let error = config.of("model.layers.0.self_attn.q_proj").expect_err("beyond f32").to_string();
        assert!(error.contains("adapter_config.json") && error.contains("too large"), "{error}");
        for torn in [&b"[]"[..], b"{"] {
            assert_eq!(LoraConfig::parse(torn).expect_err("no object").kind, ModelErrorKind::Adapter);
        }
    }
}
