//! `--requests-out`: a CSV file with a row per request, run by run as in the results, in each in the order in which its
//! requests end. Runs are simulated side by side, so rows wait until those of all runs before are complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use infer_sim::RequestOutcome;
use infer_sim::compare::{Requests, RunOf};
use tempfile::{SpooledTempFile, spooled_tempfile};

use super::Failure;

/// Bytes of a waiting run's rows beyond which they wait in a file.
const IN_MEMORY: usize = 1 << 20;

/// The file, while the runs write it.
pub struct RequestsFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: BufWriter<File>,
    has_head: bool,
    /// Place of the run whose rows go to the file.
    at: usize,
    /// Runs behind it, by their places.
    later: BTreeMap<usize, Waiting>,
    /// The first row that couldn't be written is the last one tried.
    written: Result<(), csv::Error>,
}

/// Rows of a run that isn't the next one.
struct Waiting {
    rows: BufWriter<SpooledTempFile>,
    is_over: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { rows: BufWriter::new(spooled_tempfile(IN_MEMORY)), is_over: false }
    }
}

impl RequestsFile {
    /// Creates the file, or empties it.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| {
            Failure::Usage(format!(
                "--requests-out: can't write {}: {error}; choose another file",
                path.display()
            ))
        })?;
        let file = BufWriter::new(file);
        let state = State { file, has_head: false, at: 0, later: BTreeMap::new(), written: Ok(()) };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Completes the file.
    pub fn end(self) -> Result<(), Failure> {
        let State { mut file, written, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        written
            .and_then(|()| file.flush().map_err(csv::Error::from))
            .map_err(|error| Failure::Failed(format!("can't write {}: {error}", self.path.display())))
    }

    fn change(&self, change: impl FnOnce(&mut State) -> Result<(), csv::Error>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written.is_ok() {
            let written = change(&mut state);
            state.written = written;
        }
    }
}

impl Requests for RequestsFile {
    fn request(&self, run: &RunOf<'_>, request: &RequestOutcome) {
        let row = encoded(run, request, false);
        self.change(|state| {
            let row = row?;
            if !state.has_head {
                let with_head = encoded(run, request, true)?;
                state.file.write_all(&with_head[..with_head.len() - row.len()])?;
                state.has_head = true;
            }
            if run.at == state.at {
                state.file.write_all(&row)?;
            } else {
                state.later.entry(run.at).or_default().rows.write_all(&row)?;
            }
            Ok(())
        });
    }

    fn over(&self, at: usize) {
        self.change(|state| {
            if at != state.at {
                state.later.entry(at).or_default().is_over = true;
                return Ok(());
            }
            state.at += 1;
            while let Some(Waiting { rows, is_over }) = state.later.remove(&state.at) {
                let mut rows = rows.into_inner().map_err(io::IntoInnerError::into_error)?;
                rows.rewind()?;
                io::copy(&mut rows, &mut state.file)?;
                if !is_over {
                    break;
                }
                state.at += 1;
            }
            Ok(())
        });
    }
}

/// A row, with the names of the columns before it if asked for. New columns come last.
fn encoded(run: &RunOf<'_>, request: &RequestOutcome, has_head: bool) -> Result<Vec<u8>, csv::Error> {
    let mut rows = csv::WriterBuilder::new().has_headers(has_head).from_writer(Vec::new());
    rows.serialize((request, run))?;
    rows.into_inner().map_err(|error| csv::Error::from(error.into_error()))
}

#[cfg(test)]
mod tests {
    use infer_sim::metrics::Ending;

    use super::*;

    fn run(at: usize) -> RunOf<'static> {
        RunOf { at, workload: "chat", load: 0.9, contender: "a, b", seed: at as u64 }
    }

    fn request(request: u64) -> RequestOutcome {
        RequestOutcome {
            request,
            tenant: 0,
            conversation: None,
            arrived_s: 1.5,
            prompt_tokens: 9,
            event: None,
            cached_tokens: 0,
            prefilled_tokens: 9,
            output_tokens: 4,
            queue_ms: None,
            ttft_ms: Some(2.0),
            latency_ms: 3.0,
            preemptions: 0,
            ending: Ending::Finished,
            new_tokens: 9,
            priority: -1,
            max_tokens: 64,
            deadline_ms: Some(500.0),
            in_time: Some(true),
            stream: Some(1),
            itl_p99_ms: None,
            itl_max_ms: None,
            tpot_ms: None,
        }
    }

    /// The seeds and numbers of the rows that are written if this happens: a request of a run, or its end.
    fn written(happens: &[(usize, Option<u64>)]) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("requests.csv");
        let Ok(file) = RequestsFile::create(&path) else { panic!("it can be created") };
        for &(at, number) in happens {
            match number {
                Some(number) => file.request(&run(at), &request(number)),
                None => file.over(at),
            }
        }
        assert!(file.end().is_ok());
        let mut rows = csv::Reader::from_path(&path).unwrap();
        let rows = rows.deserialize::<BTreeMap<String, String>>().map(|row| row.unwrap());
        rows.map(|row| {
            let rest = ["workload", "load", "contender", "priority", "max_tokens", "in_time", "itl_max_ms"];
            assert_eq!(rest.map(|name| &row[name][..]), ["chat", "0.9", "a, b", "-1", "64", "true", ""]);
            (row["seed"].clone(), row["request"].clone())
        })
        .collect()
    }

    #[test]
    fn rows_are_those_of_one_run_after_the_other_whatever_ends_first() {
        let expected = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1)];
        let expected = expected.map(|(seed, number): (u64, u64)| (seed.to_string(), number.to_string()));
        for happens in [
            &[
                (0, Some(1)),
                (0, Some(2)),
                (0, None),
                (1, Some(1)),
                (1, Some(2)),
                (1, None),
                (2, Some(1)),
                (2, None),
                (3, Some(1)),
                (3, None),
            ],
            &[
                (2, Some(1)),
                (1, Some(1)),
                (2, None),
                (0, Some(1)),
                (3, Some(1)),
                (0, Some(2)),
                (3, None),
                (0, None),
                (1, Some(2)),
                (1, None),
            ],
        ] {
            assert_eq!(written(happens), expected, "{happens:?}");
        }
        // The first run had no request.
        assert_eq!(written(&[(1, Some(5)), (1, None), (0, None)]), [("1".to_owned(), "5".to_owned())]);
        assert!(written(&[(0, None)]).is_empty());
    }

    #[test]
    fn rows_that_wait_in_a_file_are_complete() {
        let requests = 3 * IN_MEMORY as u64 / 100;
        let mut happens: Vec<(usize, Option<u64>)> = (0..requests).map(|number| (1, Some(number))).collect();
        happens.extend([(1, None), (0, Some(7)), (0, None)]);
        let rows = written(&happens);
        assert_eq!((rows.len() as u64, &rows[0].0[..], &rows[1].1[..]), (requests + 1, "0", "0"));
        assert_eq!(rows.last().map(|(_, number)| number.clone()), Some((requests - 1).to_string()));
    }
}
