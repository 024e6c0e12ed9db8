//! What a check found, for a person and as JSON.

use std::fmt;

use serde::Serialize;

use crate::Options;
use crate::candidate::Candidate;
use crate::sheet::Sheet;

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether nothing failed.
    pub passed: bool,
    /// The policy's kind; absent if it doesn't load.
    pub kind: Option<&'static str>,
    /// Its name; absent if it doesn't load.
    pub name: Option<String>,
    /// Its version; absent if it doesn't load.
    pub version: Option<String>,
    /// SHA-256 of the component in hex; absent if it doesn't load.
    pub sha256: Option<String>,
    /// Size of the component.
    pub bytes: usize,
    /// The configuration that it was given.
    pub config: String,
    /// What views and loads followed from.
    pub seed: u64,
    /// One per check.
    pub checks: Vec<Line>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Which.
    pub check: &'static str,
    /// Its outcome.
    pub outcome: Outcome,
    /// Numbers, or examples of what is wrong, a line each.
    pub detail: String,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Well.
    Ok,
    /// Nothing is wrong, but there is something to know.
    Note,
    /// A host would have to step in.
    Failed,
}

impl Outcome {
    fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Failed => "FAILED",
        }
    }
}

impl Report {
    pub(crate) fn new(
        candidate: Option<&Candidate>,
        component: &[u8],
        options: &Options,
        sheet: Sheet,
    ) -> Self {
        let checks = sheet.lines();
        let info = candidate.map(|candidate| &candidate.info);
        Self {
            passed: checks.iter().all(|line| line.outcome != Outcome::Failed),
            kind: candidate.map(|candidate| candidate.kind.name()),
            name: info.map(|info| info.name.clone()),
            version: info.map(|info| info.version.clone()),
            sha256: info.map(|info| info.digest.clone()),
            bytes: component.len(),
            config: options.config.clone(),
            seed: options.seed,
            checks,
        }
    }

    /// The line of a check, if it was carried out.
    pub fn line(&self, check: &str) -> Option<&Line> {
        self.checks.iter().find(|line| line.check == check)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.version, &self.kind) {
            (Some(name), Some(version), Some(kind)) => {
                writeln!(
                    f,
                    "{name} {version}, {kind}, {} bytes, configured with {}",
                    self.bytes, self.config
                )?;
            }
            _ => writeln!(f, "a file of {} bytes", self.bytes)?,
        }
        for line in &self.checks {
            let mut rows = line.detail.lines();
            writeln!(
                f,
                "  {:<6}  {:<13}  {}",
                line.outcome.mark(),
                line.check,
                rows.next().unwrap_or_default()
            )?;
            for row in rows {
                writeln!(f, "  {:23}  {row}", "")?;
            }
        }
        let failed = self.checks.iter().filter(|line| line.outcome == Outcome::Failed).count();
        match failed {
            0 => write!(f, "passed (seed {})", self.seed),
            1 => write!(f, "1 check FAILED (seed {})", self.seed),
            _ => write!(f, "{failed} checks FAILED (seed {})", self.seed),
        }
    }
}
