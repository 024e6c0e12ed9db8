//! BurstGPT's traces: seconds, model, request and response tokens. Each model becomes a tenant. Rows without response
//! tokens, which are failures according to the authors, are skipped.

use std::io::BufRead;

use super::lines::{Cells, Lines, short};
use super::{Recorded, TraceError};

const NAMES: [&str; 4] = ["Timestamp", "Model", "Request tokens", "Response tokens"];
/// Maximum number of models. A file with more probably has its columns mixed up.
const MAX_MODELS: usize = 1_000;

pub(super) fn is_head(line: &str) -> bool {
    let cells = Cells::of(1, line);
    NAMES.iter().all(|name| cells.find(name).is_ok())
}

pub(super) struct BurstGpt<R> {
    lines: Lines<R>,
    columns: Option<[usize; 4]>,
    models: Vec<String>,
    id: u64,
}

impl<R: BufRead> BurstGpt<R> {
    pub fn new(file: R) -> Self {
        Self { lines: Lines::new(file), columns: None, models: Vec::new(), id: 0 }
    }

    fn read(&mut self) -> Result<Option<Recorded>, TraceError> {
        if self.columns.is_none() {
            let Some((line, text)) = self.lines.next()? else { return Ok(None) };
            let head = Cells::of(line, text);
            let mut columns = [0; 4];
            for (column, name) in columns.iter_mut().zip(NAMES) {
                *column = head.find(name)?;
            }
            self.columns = Some(columns);
        }
        let [at, model, request, response] = self.columns.expect("the head was read");
        loop {
            let Some((line, text)) = self.lines.next()? else { return Ok(None) };
            let row = Cells::of(line, text);
            let (column, time) = row.get(at, NAMES[0])?;
            let seconds = time.parse::<f64>().ok().filter(|seconds| (0.0..1e10).contains(seconds));
            let seconds = seconds.ok_or_else(|| {
                row.wrong(column, format!("`{}` is not a number of seconds from 0 to 10^10", short(time)))
            })?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
            let time_us = (seconds * 1e6) as u64;
            let (model_column, name) = row.get(model, NAMES[1])?;
            let (prompt_tokens, output_tokens) =
                (row.tokens(request, NAMES[2])?, row.tokens(response, NAMES[3])?);
            if prompt_tokens == 0 || output_tokens == 0 {
                continue;
            }
            let known = self.models.iter().position(|known| known == name);
            if known.is_none() && self.models.len() == MAX_MODELS {
                let message = format!("`{}` is one model too many; the limit is {MAX_MODELS}", short(name));
                return Err(row.wrong(model_column, message));
            }
            let tenant = known.unwrap_or_else(|| {
                self.models.push(name.to_owned());
                self.models.len() - 1
            });
            self.id += 1;
            return Ok(Some(Recorded {
                id: self.id,
                at_us: time_us,
                tenant: u32::try_from(tenant).expect("models are bounded"),
                prompt_tokens,
                output_tokens,
                max_tokens: output_tokens,
                ..Recorded::default()
            }));
        }
    }
}

impl<R: BufRead> Iterator for BurstGpt<R> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
