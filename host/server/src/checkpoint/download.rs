//! Downloads a checkpoint into the hub's cache with hf-hub, which resumes what was interrupted. What goes wrong is
//! said in terms of what the user can do about it.

use std::collections::BTreeMap;
use std::path::Path;

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo};

use super::hub::{Hub, INDEX, WEIGHTS, shards};
use crate::progress::Meter;

/// Taken where the repository has them.
const SMALL_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];
const PUBLIC: &str = "https://huggingface.co";
/// How often a file is resumed after its connection broke.
const RETRIES: usize = 3;

/// Fetches what a model needs of `name`, `ORG/NAME`.
pub(super) fn fetch(hub: &Hub, cache: &Path, name: &str) -> Result<(), String> {
    let endpoint = hub.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/');
    let site = Site { endpoint, name, cache };
    let api = ApiBuilder::from_cache(Cache::new(cache.to_owned()))
        .with_endpoint(endpoint.to_owned())
        .with_token(hub.token.clone())
        .with_progress(false)
        .with_retries(RETRIES)
        .build()
        .map_err(|error| site.explain(&error))?;
    let repository = api.repo(Repo::model(name.to_owned()));
    let sizes = site.files(&repository)?;
    let mut wanted: Vec<String> = Vec::new();
    for file in SMALL_FILES.iter().filter(|file| sizes.contains_key(**file)) {
        wanted.push((*file).to_owned());
    }
    if !sizes.contains_key(WEIGHTS) && sizes.contains_key(INDEX) {
        let index = repository.get(INDEX).map_err(|error| site.explain(&error))?;
        let index = std::fs::read(&index).map_err(|error| format!("can't read {INDEX}: {error}"))?;
        wanted.extend(shards(&index)?);
    } else {
        wanted.push(WEIGHTS.to_owned());
    }
    if let Some(absent) = ["config.json", "tokenizer.json"]
        .into_iter()
        .map(str::to_owned)
        .chain(wanted.iter().cloned())
        .find(|file| !sizes.contains_key(file))
    {
        return Err(format!(
            "the repository has no {absent}; a Hugging Face checkpoint in safetensors is needed (of a repository \
             with GGUF files, download one and give its path)"
        ));
    }
    site.check_space(wanted.iter().map(|file| sizes[file]).sum())?;
    tracing::info!("downloading {name} from {endpoint} to {}", cache.display());
    for file in &wanted {
        let cached = Cache::new(cache.to_owned()).repo(Repo::model(name.to_owned())).get(file);
        if cached.is_none() {
            let meter = Transfer(Meter::new(format!("downloading {file}")));
            repository.download_with_progress(file, meter).map_err(|error| site.explain(&error))?;
        }
    }
    Ok(())
}

struct Site<'a> {
    endpoint: &'a str,
    name: &'a str,
    cache: &'a Path,
}

impl Site<'_> {
    /// Sizes of the repository's files by their names; 0 where the hub doesn't say.
    fn files(&self, repository: &ApiRepo) -> Result<BTreeMap<String, u64>, String> {
        #[derive(serde::Deserialize)]
        struct File {
            rfilename: String,
            #[serde(default)]
            size: Option<u64>,
        }
        #[derive(serde::Deserialize)]
        struct Info {
            siblings: Vec<File>,
        }
        let answer = repository.info_request().query("blobs", "true").call();
        let mut answer = answer.map_err(|error| self.explain(&ApiError::from(Box::new(error))))?;
        let info = answer.body_mut().read_json::<Info>();
        let info = info.map_err(|error| format!("{} gave no list of files: {error}", self.endpoint))?;
        Ok(info.siblings.into_iter().map(|file| (file.rfilename, file.size.unwrap_or(0))).collect())
    }

    fn check_space(&self, bytes: u64) -> Result<(), String> {
        std::fs::create_dir_all(self.cache)
            .map_err(|error| format!("can't make {}: {error}; set HF_HUB_CACHE", self.cache.display()))?;
        let Ok(disk) = rustix::fs::statvfs(self.cache) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes <= free {
            return Ok(());
        }
        Err(format!(
            "it takes {} MiB and {} has {} MiB free; make room, or set HF_HUB_CACHE to another disk",
            bytes.div_ceil(1 << 20),
            self.cache.display(),
            free >> 20
        ))
    }

    /// What went wrong, and what to do.
    fn explain(&self, error: &ApiError) -> String {
        match error {
            ApiError::TooManyRetries(last) => self.explain(last),
            ApiError::IoError(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                format!("the disk of {} is full; make room, or set HF_HUB_CACHE", self.cache.display())
            }
            ApiError::IoError(error) => {
                format!("the download broke off: {error}; start again, it goes on where it was")
            }
            ApiError::LockAcquisition(path) => {
                format!("another process is downloading it ({} is locked); wait for it", path.display())
            }
            ApiError::RequestError(error) => self.explain_request(error),
            other => format!("the download failed: {other}"),
        }
    }

    fn explain_request(&self, error: &ureq::Error) -> String {
        let Self { endpoint, name, .. } = self;
        match error {
            ureq::Error::StatusCode(401 | 403) => format!(
                "{endpoint} refuses access to {name}: the name is wrong, or it is private or gated; accept its terms \
                 at {endpoint}/{name} and set HF_TOKEN to a token that may read it"
            ),
            ureq::Error::StatusCode(404) => format!("{endpoint} has no {name}; check the name"),
            ureq::Error::StatusCode(429) => {
                format!("{endpoint} takes no more requests for now; wait, or set HF_TOKEN")
            }
            ureq::Error::StatusCode(status) => {
                format!("{endpoint} answered with status {status}; try again later")
            }
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                format!("the disk of {} is full; make room, or set HF_HUB_CACHE", self.cache.display())
            }
            other => format!(
                "{endpoint} can't be reached ({other}); without a network, fetch the checkpoint elsewhere \
                 (`hf download {name}`) and copy it, or give its directory"
            ),
        }
    }
}

/// Shows how far a file is.
struct Transfer(Meter);

impl Progress for Transfer {
    fn init(&mut self, size: usize, _filename: &str) {
        self.0.start(size as u64);
    }

    fn update(&mut self, size: usize) {
        self.0.advance(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish();
    }
}
