//! generation_config.json: how a checkpoint wants its tokens drawn where a request doesn't say. Like vLLM's
//! `--generation-config auto`, `do_sample` doesn't count: a temperature of 0 is what asks for the likeliest token.
//!
//! Its end tokens are part of `ModelConfig`. A GGUF file has no such file.

use super::keys::Keys;
use crate::error::ModelError;
use crate::source::Source;

const FILE: &str = "generation_config.json";

/// What a checkpoint wishes; `None` where it wishes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// So many of the likeliest; 0 is no limit.
    pub top_k: Option<u32>,
    /// At least this fraction as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Makes what occurred less likely where it is above 1.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Those of a checkpoint.
    ///
    /// # Errors
    /// Names the key whose value can't be.
    pub fn load(source: &Source<'_>) -> Result<Self, ModelError> {
        source.read(FILE)?.map_or_else(|| Ok(Self::default()), |bytes| Self::parse(&bytes))
    }

    /// Reads the bytes of `generation_config.json`.
    ///
    /// # Errors
    /// Names the key whose value can't be.
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
