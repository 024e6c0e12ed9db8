//! Where a checkpoint's files come from: a directory in Hugging Face's layout, bytes embedded in the binary, or one GGUF file,
//! presented as the files that it replaces. Nothing is downloaded here, and no file outside the directory is ever opened.

use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::bytes::read_within;
use crate::config::{ModelConfig, Pooling};
use crate::error::ModelError;
use crate::gguf::Gguf;

/// Most bytes of `tokenizer.json`, of which large vocabularies have some 40 MB.
const MAX_TOKENIZER_BYTES: u64 = 1 << 30;
/// Most bytes of an index, which has about 100 for each tensor.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Most bytes of any other file that is read whole: configurations and templates.
const MAX_SMALL_BYTES: u64 = 16 << 20;

/// A checkpoint.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A directory with `config.json` and the other files.
    Directory(PathBuf),
    /// File names and their bytes.
    Embedded(&'a [(&'a str, &'a [u8])]),
    /// A GGUF file.
    Gguf(Arc<Gguf>),
}

impl<'a> Source<'a> {
    /// Opens a GGUF file and checks its header.
    ///
    /// # Errors
    /// Names the key or tensor at fault.
    pub fn gguf(path: &Path) -> Result<Self, ModelError> {
        Ok(Self::Gguf(Arc::new(Gguf::open(path)?)))
    }

    /// The bytes of file `name`, or `None` if there is no such file. A directory may be anybody's, so there is a bound for
    /// each of its files.
    ///
    /// # Errors
    /// If the name leaves the directory, the file can't be read or is larger than its bound, or GGUF metadata can't be
    /// converted to it.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, ModelError> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(plain_name(name)?);
                let most = most_bytes(name);
                match read_within(&path, most) {
                    Ok(Ok(bytes)) => {
                        refuse_pointer(path.display(), &bytes)?;
                        Ok(Some(Cow::Owned(bytes)))
                    }
                    Ok(Err(size)) => {
                        let message = format!(
                            "{} has {size} bytes, and at most {most} are read of it; is it what its name says?",
                            path.display()
                        );
                        Err(ModelError::unsupported(message))
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(ModelError::io(&path, &error)),
                }
            }
            Self::Embedded(files) => {
                Ok(files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| Cow::Borrowed(*bytes)))
            }
            Self::Gguf(file) => Ok(file.read(name)?.map(Cow::Owned)),
        }
    }

    /// Whether there is a file `name`, without reading it.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(directory) => directory.join(name).is_file(),
            Self::Embedded(files) => files.iter().any(|(file, _)| *file == name),
            Self::Gguf(_) => false,
        }
    }

    /// Name of this checkpoint in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Directory(directory) => directory.display().to_string(),
            Self::Embedded(_) => "the embedded model".to_owned(),
            Self::Gguf(file) => file.path().display().to_string(),
        }
    }
}

impl ModelConfig {
    /// Reads `config.json` and, if present, `generation_config.json` and `modules.json`; or a GGUF file's metadata.
    ///
    /// # Errors
    /// Names the file and key that is missing, invalid or not supported.
    pub fn load(source: &Source<'_>) -> Result<Self, ModelError> {
        if let Source::Gguf(file) = source {
            return file.config();
        }
        let config = source.read("config.json")?.ok_or_else(|| {
            ModelError::config(format!("{} has no config.json; is it a checkpoint?", source.name()))
        })?;
        let generation = source.read("generation_config.json")?;
        Ok(Self { pooling: Pooling::load(source)?, ..Self::parse(&config, generation.as_deref())? })
    }
}

/// Most bytes that are read of a file.
fn most_bytes(name: &str) -> u64 {
    match name {
        "tokenizer.json" => MAX_TOKENIZER_BYTES,
        "model.safetensors.index.json" => MAX_INDEX_BYTES,
        _ => MAX_SMALL_BYTES,
    }
}

/// Refuses what Git puts in place of a large file when it clones a repository without Git LFS.
pub(crate) fn refuse_pointer(file: impl Display, bytes: &[u8]) -> Result<(), ModelError> {
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        let message = format!(
            "{file} is a Git LFS pointer and not the file itself; run `git lfs pull` there, or download the checkpoint \
             (`hf download`)"
        );
        return Err(ModelError::unsupported(message));
    }
    Ok(())
}

/// Refuses names that would leave the checkpoint's directory: index files are untrusted.
pub(crate) fn plain_name(name: &str) -> Result<&Path, ModelError> {
    let path = Path::new(name);
    let plain = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(path)
    } else {
        Err(ModelError::weights(format!("file name {name:?} must stay inside the checkpoint's directory")))
    }
}
