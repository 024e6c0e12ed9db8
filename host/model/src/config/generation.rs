//! generation_config.json: a checkpoint's default sampling parameters, for requests that don't set them. As with vLLM's
//! `--generation-config auto`, `do_sample` is ignored: a temperature of 0 requests greedy sampling.
//!
//! Its end tokens are part of `ModelConfig`. GGUF has no equivalent.

use super::keys::Keys;
use crate::error::ModelError;
use crate::source::Source;

const FILE: &str = "generation_config.json";

/// A checkpoint's defaults; `None` if it sets none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Number of likeliest tokens to choose from; 0 is no limit.
    pub top_k: Option<u32>,
    /// Minimum probability, relative to the likeliest token.
    pub min_p: Option<f32>,
    /// Above 1, makes tokens that occurred less likely.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads a checkpoint's defaults.
    ///
    /// # Errors
    /// Names the key whose value is invalid.
    pub fn load(source: &Source<'_>) -> Result<Self, ModelError> {
        source.read(FILE)?.map_or_else(|| Ok(Self::default()), |bytes| Self::parse(&bytes))
    }

    /// Parses the bytes of `generation_config.json`.
    ///
    /// # Errors
    /// Names the key whose value is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        let keys = Keys::parse(FILE, bytes)?;
        let number = |key, expected, fits: fn(f64) -> bool| match keys.number(key)? {
            Some(number) if !fits(number) => Err(keys.wrong(key, expected)),
            number => Ok(number.map(|number| number as f32)),
        };
        let top_k = match keys.number("top_k")? {
            Some(-1.0) => Some(0),
            Some(k) if k.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&k) => Some(k as u32),
            Some(_) => return Err(keys.wrong("top_k", "a whole number from -1 on")),
            None => None,
        };
        Ok(Self {
            temperature: number("temperature", "from 0 to 100", |t| (0.0..=100.0).contains(&t))?,
            top_p: number("top_p", "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?,
            top_k,
            min_p: number("min_p", "from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
            repetition_penalty: number("repetition_penalty", "from 0.01 to 100", |r| {
                (0.01..=100.0).contains(&r)
            })?,
        })
    }
}
