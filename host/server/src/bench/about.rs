//! What is said of requests before they are sent, and in reports.

use super::{Arrival, Shape};

/// Requests to send, as reports and progress describe them.
#[derive(Clone, Debug)]
pub struct About {
    /// Short name.
    pub name: String,
    /// How many.
    pub requests: usize,
    /// Requests per conversation.
    pub turns: usize,
    /// When they are sent.
    pub arrival: Arrival,
    /// Their lengths.
    pub shape: Shape,
}

impl About {
    /// Requests and lengths in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { name: _, requests, turns, arrival, shape } = self;
        let range = |(low, high): (u32, u32)| {
            if low == high { low.to_string() } else { format!("{low} to {high}") }
        };
        let what = match *turns {
            1 => "requests".to_owned(),
            turns => format!("requests in conversations of {turns} turns"),
        };
        let when = match *arrival {
            Arrival::Closed(1) => "one at a time".to_owned(),
            Arrival::Closed(many) => format!("{many} at a time"),
            Arrival::Poisson(rate) => format!("{rate} per second (Poisson)"),
            Arrival::Gamma { per_second, burstiness } => {
                format!("{per_second} per second (burstiness {burstiness})")
            }
            Arrival::Recorded(speed) => format!("at {speed} times the recorded speed"),
            Arrival::Scaled { per_second, speed } => {
                format!("{per_second} per second, at {speed:.2} times the recorded speed")
            }
        };
        let shared = match shape.shared_prefix {
            0 => String::new(),
            tokens => format!(", the first {tokens} shared"),
        };
        let (inwards, out) = (range(shape.prompt_tokens), range(shape.output_tokens));
        format!("{requests} {what}, {when}, {inwards} tokens in{shared}, {out} out")
    }
}
