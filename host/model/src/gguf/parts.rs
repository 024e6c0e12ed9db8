//! A model in several files, `NAME-00001-of-00003.gguf` and so on, as llama-gguf-split writes them: the first has all
//! metadata, and each has some tensors. Opening the first opens all; every part records its index.

use std::path::{Path, PathBuf};

use super::Gguf;
use super::header::Header;
use crate::bytes::Bytes;
use crate::error::{ModelError, ModelErrorKind};
use crate::source::refuse_pointer;

/// Maximum accepted number of parts.
const MAX_PARTS: u64 = 1_000;

impl Gguf {
    /// One file.
    pub(super) fn part(path: &Path) -> Result<Self, ModelError> {
        let bytes = Bytes::map(path)?;
        refuse_pointer(path.display(), &bytes)?;
        let named =
            |error: ModelError| ModelError::new(error.kind, format!("{}: {}", path.display(), error.message));
        let Header { values, tensors } = Header::parse(&bytes).map_err(named)?;
        Ok(Self { path: path.to_owned(), parts: vec![bytes], values, tensors, architecture: String::new() })
    }

    /// Opens the other parts, if the file declares any.
    pub(super) fn join_parts(&mut self) -> Result<(), ModelError> {
        let Some(count) = self.integer("split.count")?.filter(|count| *count > 1) else { return Ok(()) };
        if count > MAX_PARTS {
            return Err(self.wrong("split.count", &format!("at most {MAX_PARTS}")));
        }
        let number = self.integer("split.no")?.unwrap_or(0);
        let path_of = |number: u64| self.sibling(number, count);
        if number != 0 {
            let first = path_of(0).map_or_else(|| "the first".to_owned(), |path| path.display().to_string());
            let message = format!("this is part {} of {count}; give {first}", number.saturating_add(1));
            return Err(self.fault(ModelErrorKind::Weights, message));
        }
        let paths: Option<Vec<PathBuf>> = (1..count).map(path_of).collect();
        let paths = paths.ok_or_else(|| {
            let message = format!("its name must end in {}, as it is the first part", suffix(0, count));
            self.fault(ModelErrorKind::Weights, message)
        })?;
        for (number, path) in (1..).zip(&paths) {
            let part = Self::part(path)?;
            if part.integer("split.no")? != Some(number) || part.integer("split.count")? != Some(count) {
                let message =
                    format!("split.no and split.count must say that this is part {} of {count}", number + 1);
                return Err(part.fault(ModelErrorKind::Weights, message));
            }
            let place = self.parts.len();
            for (name, mut tensor) in part.tensors {
                tensor.part = place;
                if self.tensors.insert(name.clone(), tensor).is_some() {
                    let message = format!("{}: tensor {name} is in an earlier part too", path.display());
                    return Err(ModelError::weights(message));
                }
            }
            self.parts.extend(part.parts);
        }
        let (found, told) = (self.tensors.len() as u64, self.integer("split.tensors.count")?);
        match told {
            Some(told) if told != found => {
                Err(self.wrong("split.tensors.count", &format!("{found}, as many as all parts have")))
            }
            _ => Ok(()),
        }
    }

    /// Path of part `number` of `count`, if this file is named like a part.
    fn sibling(&self, number: u64, count: u64) -> Option<PathBuf> {
        let own = self.integer("split.no").ok()?.unwrap_or(0);
        let stem = self.path.file_name()?.to_str()?.strip_suffix(&suffix(own, count))?;
        Some(self.path.with_file_name(format!("{stem}{}", suffix(number, count))))
    }
}

fn suffix(number: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", number.saturating_add(1))
}
