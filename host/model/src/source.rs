//! Where a checkpoint's files come from: a directory, or bytes inside the binary. Nothing is downloaded
//! here, and no file outside the directory is ever opened.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crate::error::ModelError;

/// A checkpoint in Hugging Face's layout.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A directory that holds `config.json` and the rest.
    Directory(PathBuf),
    /// File names and their bytes.
    Embedded(&'a [(&'a str, &'a [u8])]),
}

impl<'a> Source<'a> {
    /// The bytes of file `name`, or `None` where there is no such file.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, ModelError> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(plain_name(name)?);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(ModelError::io(&path, &error)),
                }
            }
            Self::Embedded(files) => {
                Ok(files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| Cow::Borrowed(*bytes)))
            }
        }
    }

    /// What to call this checkpoint in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Directory(directory) => directory.display().to_string(),
            Self::Embedded(_) => "the embedded model".to_owned(),
        }
    }
}

/// Refuses names that would leave the checkpoint's directory: an index file is data of a stranger.
pub(crate) fn plain_name(name: &str) -> Result<&Path, ModelError> {
    let path = Path::new(name);
    let plain = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(path)
    } else {
        Err(ModelError::weights(format!("file name {name:?} must stay inside the checkpoint's directory")))
    }
}
