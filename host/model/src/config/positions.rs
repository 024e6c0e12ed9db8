//! Position embeddings and, per layer, which one it uses and its window, from the keys of a config.json as transformers 4
//! and 5 write it.

use serde_json::{Map, Value};

use super::family::{Family, Windows};
use super::keys::{Keys, MAX_SIZE};
use super::{LayerConfig, LongRope, RopeConfig, RopeScaling, Yarn};
use crate::error::ModelError;

/// Maximum accepted number of layers.
const MAX_LAYERS: usize = 1_024;

/// Position embeddings and, per layer, which one it uses and its window.
pub(super) fn positions(
    keys: &Keys,
    family: Family,
) -> Result<(Vec<RopeConfig>, Vec<LayerConfig>), ModelError> {
    let count = keys.bounded("num_hidden_layers", MAX_LAYERS)?;
    let rotated = rotated_layers(keys, family, count)?;
    let sliding = sliding_layers(keys, family, &rotated)?;
    let window = if sliding.contains(&true) {
        Some(window_of(keys, family)?.ok_or_else(|| keys.missing("sliding_window"))?)
    } else {
        None
    };
    let mut ropes = ropes(keys, family)?;
    let (local, absent) = (ropes.len() - 1, ropes.len());
    if rotated.contains(&false) {
        ropes.push(RopeConfig { scaling: RopeScaling::Absent, ..ropes[0].clone() });
    }
    let layers = sliding
        .into_iter()
        .zip(rotated)
        .map(|(sliding, rotated)| LayerConfig {
            window: if sliding { window } else { None },
            rope: match (rotated, sliding) {
                (false, _) => absent,
                (true, true) => local,
                (true, false) => 0,
            },
            experts: None,
        })
        .collect();
    Ok((ropes, layers))
}

/// Which layers have a position embedding: a list says so, or every n-th has none.
fn rotated_layers(keys: &Keys, family: Family, count: usize) -> Result<Vec<bool>, ModelError> {
    if !family.unrotated {
        return Ok(vec![true; count]);
    }
    if keys.get("no_rope_layers").is_null() {
        let every = keys.optional_size("no_rope_layer_interval")?.unwrap_or(4);
        return Ok((0..count).map(|layer| !(layer + 1).is_multiple_of(every)).collect());
    }
    // In spite of the key's name, 0 is a layer without.
    let listed = keys.counts("no_rope_layers")?;
    if listed.len() < count || listed.iter().any(|rotated| *rotated > 1) {
        return Err(keys.wrong("no_rope_layers", "a 0 or 1 for each layer"));
    }
    Ok(listed[..count].iter().map(|rotated| *rotated == 1).collect())
}

/// The window's width. transformers has a default if the key is absent, but not if it is null.
fn window_of(keys: &Keys, family: Family) -> Result<Option<u32>, ModelError> {
    const DEFAULT: u32 = 4_096;
    if keys.get("sliding_window").is_null() {
        let defaults = family.windows.have_default() && !keys.has("sliding_window");
        return Ok(defaults.then_some(DEFAULT));
    }
    let window = keys.bounded("sliding_window", MAX_SIZE * 16)?;
    u32::try_from(window).map(Some).map_err(|_| keys.wrong("sliding_window", "smaller"))
}

fn sliding_layers(keys: &Keys, family: Family, rotated: &[bool]) -> Result<Vec<bool>, ModelError> {
    let count = rotated.len();
    if let Some(types) = keys.list("layer_types")? {
        if types.len() != count {
            return Err(keys.wrong("layer_types", "as long as num_hidden_layers"));
        }
        return types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(false),
                Some("sliding_attention") if family.windows != Windows::Never => Ok(true),
                _ => {
                    Err(keys
                        .unsupported("layer_types", "may contain only full_attention and sliding_attention"))
                }
            })
            .collect();
    }
    let windowed = window_of(keys, family)?.is_some();
    Ok(match family.windows {
        Windows::Never => vec![false; count],
        Windows::All | Windows::Given => vec![windowed; count],
        Windows::Opted => {
            let opted = windowed && keys.flag("use_sliding_window")?.unwrap_or(false);
            let first = keys.count("max_window_layers")?.unwrap_or(28);
            (0..count).map(|layer| opted && layer >= first).collect()
        }
        Windows::AllOpted => vec![windowed && keys.flag("use_sliding_window")?.unwrap_or(false); count],
        Windows::Unrotated => {
            let opted = windowed && keys.flag("use_sliding_window")?.unwrap_or(false);
            rotated.iter().map(|rotated| opted && !rotated).collect()
        }
        Windows::Fourth => (0..count).map(|layer| !(layer + 1).is_multiple_of(4)).collect(),
        Windows::Pattern => {
            let every = match keys.optional_size("sliding_window_pattern")? {
                Some(every) => every,
                None => keys.optional_size("_sliding_window_pattern")?.unwrap_or(6),
            };
            (0..count).map(|layer| windowed && !(layer + 1).is_multiple_of(every.max(1))).collect()
        }
    })
}

/// The global position embedding, then that of sliding layers if it differs. Where the keys of transformers 4 and 5 are both
/// there, that of 4 counts, as in both: people add it to scale a checkpoint. Only the base is taken from the other if it has
/// none.
fn ropes(keys: &Keys, family: Family) -> Result<Vec<RopeConfig>, ModelError> {
    const LOCAL_THETA: f64 = 10_000.0;
    let default_theta = if family.gemma { 1_000_000.0 } else { family.theta.unwrap_or(10_000.0) };
    let theta = keys.number("rope_theta")?;
    let scaling = keys.object("rope_scaling")?.filter(|scaling| !scaling.is_empty());
    let parameters = keys.object("rope_parameters")?;
    let is_by_type = |settings: &&Map<String, Value>| settings.values().any(Value::is_object);
    let by_type = scaling.filter(is_by_type).or(parameters.filter(is_by_type));
    let added = scaling.filter(|scaling| !is_by_type(scaling));
    let has_local = family.gemma || family.plain_local;
    let local_theta = || match has_local {
        true if family.gemma => Ok(keys.number("rope_local_base_freq")?.unwrap_or(LOCAL_THETA)),
        true => local_base(keys, theta, default_theta),
        false => Ok(default_theta),
    };
    let local = || -> Result<RopeConfig, ModelError> {
        Ok(RopeConfig { theta: local_theta()?, scaling: RopeScaling::None, share: 1.0 })
    };
    let Some(by_type) = by_type else {
        if family.plain_local && parameters.is_some_and(|parameters| !parameters.is_empty()) {
            return Err(keys.wrong("rope_parameters", "complete: an entry per layer type"));
        }
        let empty = Map::new();
        let known = Settings { keys, family, entry: parameters.unwrap_or(&empty) }.number("rope_theta")?;
        let entry = added.or(parameters).unwrap_or(&empty);
        let global = Settings { keys, family, entry }.rope(theta.or(known).unwrap_or(default_theta))?;
        return Ok(if has_local { vec![global, local()?] } else { vec![global] });
    };
    let entry = |name: &str| match by_type.get(name) {
        Some(Value::Object(entry)) => Ok(Some(entry)),
        None | Some(Value::Null) => Ok(None),
        Some(_) => Err(keys.wrong("rope_parameters", "complete: an entry per layer type")),
    };
    let global = entry("full_attention")?;
    let global = global.ok_or_else(|| keys.wrong("rope_parameters", "complete: an entry per layer type"))?;
    let mut global = global.clone();
    global.extend(added.cloned().unwrap_or_default());
    let global = Settings { keys, family, entry: &global }.rope(theta.unwrap_or(default_theta))?;
    Ok(match entry("sliding_attention")? {
        Some(entry) => {
            let settings = Settings { keys, family, entry };
            let base = match settings.number("rope_theta")? {
                Some(own) => own,
                None => local_theta()?,
            };
            vec![global, settings.rope(base)?]
        }
        None if has_local => vec![global, local()?],
        None => vec![global],
    })
}

/// The base of sliding layers without settings of their own. Versions of transformers differ in whether it is that of the
/// other layers, so a base that makes a difference is refused.
fn local_base(keys: &Keys, theta: Option<f64>, default: f64) -> Result<f64, ModelError> {
    match keys.number("rope_local_base_freq")? {
        Some(local) if local > 1.0 => Ok(local),
        Some(_) => Err(keys.wrong("rope_local_base_freq", "above 1")),
        None if theta.is_none_or(|theta| theta == default) => Ok(default),
        None => {
            let must = format!("must be {default} unless rope_parameters has an entry for sliding layers");
            Err(keys.unsupported("rope_theta", &must))
        }
    }
}

/// The settings of one position embedding.
struct Settings<'a> {
    keys: &'a Keys,
    family: Family,
    entry: &'a Map<String, Value>,
}

impl Settings<'_> {
    /// The position embedding, with this base unless the settings have their own.
    fn rope(&self, theta: f64) -> Result<RopeConfig, ModelError> {
        let theta = self.number("rope_theta")?.unwrap_or(theta);
        if theta > 1.0 {
            Ok(RopeConfig { theta, scaling: self.scaling()?, share: self.share()? })
        } else {
            Err(self.keys.wrong("rope_theta", "above 1"))
        }
    }

    /// The share of a head that is rotated.
    fn share(&self) -> Result<f64, ModelError> {
        const KEY: &str = "partial_rotary_factor";
        let own = self.number(KEY)?;
        if !self.family.phi {
            return match own {
                None | Some(1.0) => Ok(1.0),
                Some(_) => Err(self.keys.unsupported(KEY, "must be 1")),
            };
        }
        let share = match own {
            None => self.keys.number(KEY)?.unwrap_or(1.0),
            Some(own) => own,
        };
        match share > 0.0 && share <= 1.0 {
            true => Ok(share),
            false => Err(self.keys.wrong_value(KEY, "above 0 and at most 1", &share.into())),
        }
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.entry.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|value| value.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.keys.wrong_value(name, "a number in the rope settings", value)),
            },
        }
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.number(name)? {
            Some(number) if number <= 0.0 => {
                Err(self.keys.wrong_value(name, "positive in the rope settings", &self.entry[name]))
            }
            number => Ok(number),
        }
    }

    fn required(&self, name: &str) -> Result<f64, ModelError> {
        let absent = || self.keys.wrong_value(name, "a positive number in the rope settings", &Value::Null);
        self.positive(name)?.ok_or_else(absent)
    }

    fn scaling(&self) -> Result<RopeScaling, ModelError> {
        let given = |name: &str| self.entry.get(name).filter(|kind| !kind.is_null());
        let kind = given("rope_type").or_else(|| given("type"));
        Ok(match kind.map(Value::as_str) {
            None | Some(Some("default")) => RopeScaling::None,
            // Older checkpoints have other names for the same.
            Some(Some("longrope" | "su" | "yarn")) if self.family.phi => RopeScaling::Long(self.long()?),
            Some(_) if self.family.phi => {
                let kind = kind.unwrap_or(&Value::Null);
                let known = format!("is {kind}; supported for this model_type are default and longrope");
                return Err(self.keys.unsupported("rope_type", &known));
            }
            // Longer texts get a larger base, but only beyond `max_position_embeddings`, which this host doesn't allow.
            Some(Some("dynamic")) => {
                self.required("factor")?;
                RopeScaling::None
            }
            Some(Some("linear")) => RopeScaling::Linear { factor: self.required("factor")? },
            Some(Some("llama3")) => RopeScaling::Llama3 {
                factor: self.required("factor")?,
                low: self.required("low_freq_factor")?,
                high: self.required("high_freq_factor")?,
                original: self.required("original_max_position_embeddings")?,
            },
            Some(Some("yarn")) => RopeScaling::Yarn(self.yarn()?),
            Some(_) => {
                let kind = kind.unwrap_or(&Value::Null);
                let known = format!("is {kind}; supported are default, linear, dynamic, llama3 and yarn");
                return Err(self.keys.unsupported("rope_type", &known));
            }
        })
    }

    /// As transformers' `_compute_longrope_parameters` for Phi-3, whose number of original positions is a key of the model.
    fn long(&self) -> Result<LongRope, ModelError> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        for key in ["short_mscale", "long_mscale"] {
            if self.entry.get(key).is_some_and(|scale| !scale.is_null()) {
                return Err(self.keys.unsupported(key, "is not supported"));
            }
        }
        let original = match self.keys.optional_size(ORIGINAL)? {
            None => 4_096,
            Some(1) => return Err(self.keys.wrong(ORIGINAL, "above 1")),
            Some(original) => original,
        };
        let trained = self.keys.number("max_position_embeddings")?.unwrap_or(0.0);
        let factor = self.positive("factor")?.unwrap_or(trained / original as f64);
        let attention = match self.positive("attention_factor")? {
            Some(attention) => attention,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let (short, long) = (self.factors("short_factor")?, self.factors("long_factor")?);
        Ok(LongRope { short, long, original, attention })
    }

    /// A list of positive numbers.
    fn factors(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let value = self.entry.get(name).unwrap_or(&Value::Null);
        let factor = |value: &Value| {
            let factor = value.as_f64()? as f32;
            (factor > 0.0 && factor.is_finite()).then_some(factor)
        };
        let factors = value.as_array().and_then(|list| list.iter().map(factor).collect());
        factors.ok_or_else(|| {
            self.keys.wrong_value(name, "a list of positive numbers in the rope settings", value)
        })
    }

    /// As transformers' `_compute_yarn_parameters`, including defaults.
    fn yarn(&self) -> Result<Yarn, ModelError> {
        let trained = self.keys.number("max_position_embeddings")?.unwrap_or(0.0);
        let original = self.positive("original_max_position_embeddings")?.unwrap_or(trained);
        let factor = match self.positive("factor")? {
            Some(factor) => factor,
            None if self.entry.contains_key("original_max_position_embeddings") => trained / original,
            None => self.required("factor")?,
        };
        let grown = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let scales = self.positive("mscale")?.zip(self.positive("mscale_all_dim")?);
        let attention = match self.positive("attention_factor")? {
            Some(attention) => attention,
            None => scales.map_or_else(|| grown(1.0), |(scale, all)| grown(scale) / grown(all)),
        };
        let truncate = match self.entry.get("truncate") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(other) => return Err(self.keys.wrong_value("truncate", "true or false", other)),
        };
        Ok(Yarn {
            factor,
            original,
            fast: self.positive("beta_fast")?.unwrap_or(32.0),
            slow: self.positive("beta_slow")?.unwrap_or(1.0),
            attention,
            truncate,
        })
    }
}
