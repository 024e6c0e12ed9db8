//! `infer generate`: generates one completion in this process and reports its timing on stderr.

use clap::Args;
use infer_core::SamplingParams;

use super::Failure;
use super::flags::Flags;
use crate::generate::{Generated, Generation, Sequential};

/// Arguments of `infer generate`.
#[derive(Args)]
pub struct GenerateArgs {
    /// The text to continue, as one argument or several words
    #[arg(value_name = "PROMPT", required_unless_present = "prompt", conflicts_with = "prompt")]
    words: Vec<String>,
    /// The same as a flag
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Sampling temperature; 0 always takes the likeliest token [default: the checkpoint's, else 1]
    #[arg(long, value_name = "T", value_parser = temperature)]
    temperature: Option<f32>,
    /// Sample from the smallest set of tokens whose probabilities add up to P [default: the checkpoint's,
    /// else 1]
    #[arg(long, value_name = "P", value_parser = top_p)]
    top_p: Option<f32>,
    /// Sample from the K likeliest tokens; 0 is no limit [default: the checkpoint's, else 0]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Make tokens that occurred before less likely; 1 disables this [default: the checkpoint's, else 1]
    #[arg(long, value_name = "X", value_parser = penalty)]
    repetition_penalty: Option<f32>,
    /// Seed for sampling [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the output before this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue past the model's end tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object with text, tokens and timing
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags<false>,
}

/// Generates.
pub fn run(args: GenerateArgs) -> Result<(), Failure> {
    let prompt = args.prompt.unwrap_or_else(|| args.words.join(" "));
    if prompt.is_empty() {
        return Err(Failure::Usage("PROMPT or --prompt: must not be empty".to_owned()));
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(Failure::Usage("--stop: must not be empty".to_owned()));
    }
    crate::log::start("warn,infer_server::startup=info")?;
    let config = args.flags.config()?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(Failure::failed)?,
    };
    let mut model = Sequential::load(&config)?;
    let prompt = model.tokenizer().encode(&prompt, true).map_err(Failure::failed)?;
    let total = prompt.len() as u64 + u64::from(args.max_tokens);
    if total > u64::from(model.max_seq_len()) {
        return Err(Failure::Usage(format!(
            "--max-tokens: {} prompt tokens and {} to generate are {total}; this model takes {} in total",
            prompt.len(),
            args.max_tokens,
            model.max_seq_len()
        )));
    }
    let default = model.sampling();
    let what = Generation {
        prompt,
        max_tokens: args.max_tokens,
        sampling: SamplingParams {
            temperature: args.temperature.or(default.temperature).unwrap_or(1.0),
            top_p: args.top_p.or(default.top_p).unwrap_or(1.0),
            top_k: args.top_k.or(default.top_k).unwrap_or(0),
            min_p: default.min_p.unwrap_or(0.0),
            repetition_penalty: args.repetition_penalty.or(default.repetition_penalty).unwrap_or(1.0),
            seed,
            ..SamplingParams::default()
        },
        ignore_eos: args.ignore_eos,
        stop: args.stop,
    };
    let generated = model
        .generate(&what, |text| {
            if !args.json {
                print!("{text}");
            }
        })
        .map_err(Failure::failed)?;
    let report = report(&generated, what.prompt.len());
    if args.json {
        println!("{report}");
    } else {
        println!();
        let number = |key: &str| report[key].as_f64().unwrap_or(0.0);
        eprintln!(
            "{} prompt tokens, {} generated; first token after {:.1} ms, {:.1} ms in total, {:.1} tokens/s",
            what.prompt.len(),
            generated.tokens.len(),
            number("ttft_ms"),
            number("total_ms"),
            number("tokens_per_second")
        );
    }
    Ok(())
}

fn report(generated: &Generated, prompt_tokens: usize) -> serde_json::Value {
    let total_s = generated.total.as_secs_f64();
    let rate = if total_s > 0.0 { generated.tokens.len() as f64 / total_s } else { 0.0 };
    serde_json::json!({
        "text": generated.text,
        "tokens": generated.tokens,
        "finish_reason": format!("{:?}", generated.reason).to_lowercase(),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated.tokens.len(),
        "ttft_ms": generated.ttft.as_secs_f64() * 1e3,
        "total_ms": total_s * 1e3,
        "tokens_per_second": rate,
    })
}

fn temperature(text: &str) -> Result<f32, String> {
    within(text, "0 to 100", |x| (0.0..=100.0).contains(&x))
}

fn top_p(text: &str) -> Result<f32, String> {
    within(text, "above 0 to 1", |x| x > 0.0 && x <= 1.0)
}

fn penalty(text: &str) -> Result<f32, String> {
    within(text, "0.01 to 100", |x| (0.01..=100.0).contains(&x))
}

fn within(text: &str, range: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    text.parse::<f32>().ok().filter(|&x| fits(x)).ok_or_else(|| format!("expected a number from {range}"))
}
