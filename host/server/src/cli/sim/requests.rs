//! `infer sim run --requests-out`: a CSV file with a row per request, in the order in which they end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use infer_sim::RequestOutcome;

use super::Failure;

/// The file, while the run writes it.
pub struct RequestsFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    rows: csv::Writer<File>,
    /// The first row that couldn't be written is the last one tried.
    written: Result<(), csv::Error>,
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
        let state = State { rows: csv::Writer::from_writer(file), written: Ok(()) };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Adds a row.
    pub fn add(&self, request: &RequestOutcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written.is_ok() {
            state.written = state.rows.serialize(request);
        }
    }

    /// Completes the file.
    pub fn end(self) -> Result<(), Failure> {
        let State { mut rows, written } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        written
            .and_then(|()| rows.flush().map_err(csv::Error::from))
            .map_err(|error| Failure::Failed(format!("can't write {}: {error}", self.path.display())))
    }
}
