//! The prefix cache across restarts (`--cache-file`): saved when the host stops, restored when it starts.
//!
//! Keys and values mean something only to the model that computed them. So the file names a digest of its weights, and
//! holds the keys and values of a fixed prompt, the probe: the host computes both at every start, and restores a file only
//! if they are the same. The digest tells models apart, the probe what computes them (devices, instruction sets, versions
//! of the host), and neither tells apart what makes no difference. Prefixes with a salt are private, and are not saved; nor
//! are those of adapters, which are known by numbers that the next host may give to others.

mod claim;
mod format;
mod partial;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::{
    AdapterId, Batch, BlockId, CachedBlock, DeviceFault, Engine, EngineConfig, Executor, Micros, Row,
    StepOutput, TenantId,
};

use crate::config::{Config, ConfigError};
use crate::startup::load::shares_blocks;
use crate::startup::progress::Meter;
use crate::tenants::Tenants;
use crate::utc::unix_us;
pub(crate) use claim::Claim;
use format::{About, Saved};
pub(crate) use partial::Partial;

/// How long a host that stops may take to write the file.
pub const SAVING: Duration = Duration::from_secs(30);
/// Less is restored within a second or two.
const WORTH_SHOWING_BYTES: u64 = 1 << 30;
/// Bytes written and read at once.
const BUFFER: usize = 1 << 20;

/// Refuses a place where no file can be, or where another kind of file is.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let Some(path) = &config.cache_file else { return Ok(()) };
    let wrong = |what: &str| Err(ConfigError(format!("--cache-file: {}: {what}", path.display())));
    if path.exists() && !path.is_file() {
        return wrong("it is no file");
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_none() || !dir.is_dir() {
        return wrong("its directory does not exist");
    }
    // The first shutdown would replace it. One that can't be opened is left to the start, which warns of it.
    match File::open(path).and_then(format::is_ours) {
        Ok(false) => wrong("it holds something else than a prefix cache; name a new file"),
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Reads the bytes of a file, for `edges`. Whatever they list, an engine takes what it can of it, before it is known
/// whether the rest is sound; and a sound file would be written again with the same bytes.
///
/// # Errors
/// What is wrong with them.
pub fn examine(bytes: &[u8]) -> Result<(), String> {
    const BLOCK_SIZE: u32 = 2;
    let saved = Saved::open(bytes, bytes.len() as u64)?;
    let (about, list, probe) = (saved.about.clone(), saved.list.clone(), saved.probe.clone());
    if about.block_size == BLOCK_SIZE {
        // A tenant in three is gone.
        let known = (0..about.tenants.len() as u32).map(|nth| (nth % 3 < 2).then_some(TenantId(nth)));
        let (from, kept) = of_known_tenants(&list, &known.collect::<Vec<_>>(), 5);
        assert!(from.len() == kept.len() && from.is_sorted(), "{from:?}");
        let config = EngineConfig { block_size: BLOCK_SIZE, total_blocks: 16, ..EngineConfig::default() };
        let mut engine = Engine::new(config, Policies::builtin());
        engine.restore_cache(&kept, Micros(1));
        engine.check_invariants();
    }
    let mut content = Vec::new();
    saved.blocks(|_, block| {
        content.extend_from_slice(block);
        Ok(())
    })?;
    let mut again = Vec::new();
    // Writing to memory takes no time worth a limit.
    let end = Instant::now() + Duration::from_secs(3_600);
    let width = probe.len();
    let written = format::write(&mut again, &about, &list, &probe, end, |nth, block| {
        block.copy_from_slice(&content[nth * width..][..width]);
        Ok(())
    });
    assert!(written.is_ok() && again == bytes, "a sound file is written again as it was");
    Ok(())
}

/// Where the file is, if one is wanted and there are blocks to save. What a link leads to is replaced, not the link.
fn place(config: &Config) -> Option<PathBuf> {
    let path = config.cache_file.clone().filter(|_| shares_blocks(config))?;
    Some(if path.is_symlink() { path.canonicalize().unwrap_or(path) } else { path })
}

/// Removes the file. An operator who empties the cache also means what the next start would bring back, should this
/// host be killed.
pub async fn remove(config: &Config) -> io::Result<()> {
    let Some(path) = place(config) else { return Ok(()) };
    // A file of gigabytes takes a while.
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_file(path)).await;
    match removed.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file, and what its content must match.
pub struct Keeper {
    path: PathBuf,
    most_bytes: u64,
    block_size: u32,
    weights: String,
    probe: Vec<u8>,
    /// Something of the file is in the cache.
    restored: bool,
    /// Held until the file is saved.
    _claim: Option<Claim>,
}

/// Claims the file, and warns of another host that has it.
fn claim(path: &Path) -> Option<Claim> {
    match Claim::take(path) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            tracing::warn!(
                "another host uses {} now: of the two, the last to stop replaces what the other saved; give each its own \
                 file (--cache-file)",
                path.display()
            );
            None
        }
        // A directory that can't be written is warned of where the file is tried out.
        claimed => claimed.ok(),
    }
}

/// What is probed: a model, and the limits of its steps.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Identifies its weights.
    pub weights: String,
    /// Token ids are below this.
    pub vocab: u32,
    /// Most tokens of a step.
    pub step_tokens: u32,
    /// Most tokens of a sequence.
    pub max_seq_len: u32,
}

impl Keeper {
    /// Computes the probe, if a file is configured. `None` if there is none, or if this executor's blocks can't be copied.
    pub fn new(
        config: &Config,
        executor: &mut dyn Executor,
        probed: impl FnOnce() -> Probed,
    ) -> Option<Self> {
        let path = place(config)?;
        if executor.block_bytes() == 0 {
            return None;
        }
        let probed = probed();
        match probe(executor, config.block_size, &probed) {
            Ok(probe) => {
                let (most_bytes, block_size) = (config.cache_file_bytes, config.block_size);
                let (weights, claim) = (probed.weights, claim(&path));
                Some(Self { path, most_bytes, block_size, weights, probe, restored: false, _claim: claim })
            }
            Err(fault) => {
                tracing::warn!(
                    "--cache-file is not used: the device can't compute its probe: {}",
                    fault.message
                );
                None
            }
        }
    }

    /// Fills a new engine's cache from the file. If that doesn't work, the cache stays empty.
    pub fn restore(
        &mut self,
        engine: &mut Engine,
        executor: &mut dyn Executor,
        tenants: &Tenants,
        now: Micros,
    ) {
        let path = self.path.display();
        let started = Instant::now();
        // Here and not at the shutdown, when it is too late for another place. It also removes what a killed host left.
        match Partial::create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::warn!("the prefix cache can't be saved to {path}: {error} (--cache-file)");
            }
            _ => {}
        }
        let saved = match self.open() {
            Ok(saved) => saved,
            Err(Unusable::Missing) => {
                tracing::info!("{path} does not exist yet; the prefix cache will be saved there");
                return;
            }
            Err(Unusable::Wrong(wrong)) => {
                tracing::warn!("the prefix cache in {path} is not restored: {wrong}");
                return;
            }
        };
        let known: Vec<_> = saved.about.tenants.iter().map(|name| tenants.current(name)).collect();
        let away = unix_us().saturating_sub(saved.about.saved_at);
        let (places_in_file, list) = of_known_tenants(&saved.list, &known, away);
        let places = engine.restore_cache(&list, now);
        let saved_blocks = saved.list.len();
        let mut targets = vec![None; saved_blocks];
        for (nth, place) in places_in_file.into_iter().zip(&places) {
            targets[nth] = *place;
        }
        let mut meter = Meter::new("restoring the prefix cache");
        let bytes = saved.about.blocks * saved.about.block_bytes;
        if bytes >= WORTH_SHOWING_BYTES {
            meter.start(bytes);
        }
        let outcome = saved.blocks(|nth, bytes| {
            meter.advance(bytes.len() as u64);
            let Some(block) = targets[nth] else { return Ok(()) };
            executor.write_block(block, bytes).map_err(|fault| fault.message)
        });
        meter.finish();
        let blocks = places.iter().flatten().count();
        let unknown = saved_blocks - list.len();
        match outcome {
            Ok(()) => {
                tracing::info!(
                    blocks,
                    of = saved_blocks,
                    of_unknown_tenants = (unknown > 0).then_some(unknown),
                    tokens = blocks as u64 * u64::from(self.block_size),
                    ms = started.elapsed().as_millis() as u64,
                    "restored the prefix cache from {path}"
                );
                self.restored = blocks > 0;
            }
            Err(wrong) => {
                engine.empty_cache(now);
                tracing::warn!("the prefix cache in {path} is not restored: {wrong}");
            }
        }
    }

    fn open(&self) -> Result<Saved<BufReader<File>>, Unusable> {
        let file = File::open(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unusable::Missing,
            _ => Unusable::Wrong(error.to_string()),
        })?;
        let bytes = file.metadata().map_err(|error| Unusable::Wrong(error.to_string()))?.len();
        let saved = Saved::open(BufReader::with_capacity(BUFFER, file), bytes).map_err(Unusable::Wrong)?;
        let of_file = saved.about.block_size;
        if of_file != self.block_size {
            let own = self.block_size;
            return Err(Unusable::Wrong(format!(
                "its blocks have {of_file} tokens, this host's {own} (--block-size)"
            )));
        }
        if saved.about.weights != self.weights {
            let wrong = "it has those of other weights: another model, or another --dtype or --quantize";
            return Err(Unusable::Wrong(wrong.to_owned()));
        }
        if saved.probe != self.probe {
            let wrong = "this device, its instruction set or this version of the host computes other bits";
            return Err(Unusable::Wrong(wrong.to_owned()));
        }
        Ok(saved)
    }

    /// Writes what the engine has cached, most recently used first, as much as the file may hold. If that doesn't work,
    /// an earlier file stays.
    pub fn save(&self, engine: &Engine, executor: &mut dyn Executor, tenants: &Tenants, now: Micros) {
        let started = Instant::now();
        let path = self.path.display();
        match self.write(&engine.cached_blocks(now), executor, tenants, started + SAVING) {
            Ok(Written::File { blocks, of, bytes }) => tracing::info!(
                blocks,
                of,
                bytes,
                ms = started.elapsed().as_millis() as u64,
                "saved the prefix cache to {path}"
            ),
            Ok(Written::Nothing) => tracing::info!("nothing is cached, and {path} stays as it was"),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => tracing::warn!(
                "the prefix cache is not saved: {path} was not written within {} s; lower --cache-file-size",
                SAVING.as_secs()
            ),
            Err(error) => tracing::warn!("the prefix cache is not saved: {path}: {error}"),
        }
    }

    fn write(
        &self,
        list: &[CachedBlock],
        executor: &mut dyn Executor,
        tenants: &Tenants,
        end: Instant,
    ) -> io::Result<Written> {
        let mut names = Names { tenants, places: BTreeMap::new(), all: Vec::new() };
        let (from, mut kept) = without(list, |block| {
            // An adapter's number means nothing to another process.
            let lasting = block.salt == 0 && block.adapter == AdapterId::NONE;
            let tenant = lasting.then(|| names.place(block.tenant)).flatten()?;
            Some(CachedBlock { tenant, ..block.clone() })
        });
        let mut about = About {
            saved_at: unix_us(),
            block_size: self.block_size,
            block_bytes: self.probe.len() as u64,
            blocks: 0,
            weights: self.weights.clone(),
            tenants: names.all,
        };
        if kept.is_empty() && !self.restored && self.path.exists() {
            return Ok(Written::Nothing);
        }
        let room = self.most_bytes.saturating_sub(about.bytes_of_none()) / about.bytes_of_one();
        if room == 0 {
            return Err(io::Error::other("--cache-file-size is too small for a block"));
        }
        kept.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        about.blocks = kept.len() as u64;
        tracing::info!(blocks = kept.len(), "saving the prefix cache to {}", self.path.display());
        let partial = Partial::wait(&self.path, end)?;
        let writer = BufWriter::with_capacity(BUFFER, partial.writer());
        format::write(writer, &about, &kept, &self.probe, end, |nth, to| {
            executor.read_block(list[from[nth]].id, to).map_err(|fault| io::Error::other(fault.message))
        })?;
        Ok(Written::File { blocks: kept.len(), of: list.len(), bytes: partial.put(&self.path)? })
    }
}

/// Why a file can't be used.
enum Unusable {
    Missing,
    Wrong(String),
}

enum Written {
    File {
        blocks: usize,
        of: usize,
        bytes: u64,
    },
    /// A host that restored nothing, perhaps for a wrong setting, and has cached nothing says nothing about the file.
    Nothing,
}

/// Tenants by their place in the file's list of names.
struct Names<'a> {
    tenants: &'a Tenants,
    places: BTreeMap<TenantId, Option<TenantId>>,
    all: Vec<String>,
}

impl Names<'_> {
    fn place(&mut self, tenant: TenantId) -> Option<TenantId> {
        let (tenants, all) = (self.tenants, &mut self.all);
        *self.places.entry(tenant).or_insert_with(|| {
            let (name, _) = tenants.find(tenant)?;
            all.push(name);
            Some(TenantId(all.len() as u32 - 1))
        })
    }
}

/// The blocks of tenants that there still are, by their numbers in this process, and their places in the list.
fn of_known_tenants(
    list: &[CachedBlock],
    known: &[Option<TenantId>],
    away: u64,
) -> (Vec<usize>, Vec<CachedBlock>) {
    without(list, |block| {
        let tenant = known.get(block.tenant.0 as usize).copied().flatten()?;
        Some(CachedBlock { tenant, unused: Micros(block.unused.0.saturating_add(away)), ..block.clone() })
    })
}

/// The blocks that `change` keeps, with parents by their new places, and where they were. All blocks of a prefix are kept,
/// or none.
fn without(
    list: &[CachedBlock],
    mut change: impl FnMut(&CachedBlock) -> Option<CachedBlock>,
) -> (Vec<usize>, Vec<CachedBlock>) {
    let mut places = vec![None; list.len()];
    let (mut from, mut kept) = (Vec::new(), Vec::new());
    for (at, block) in list.iter().enumerate() {
        let parent = match block.parent {
            None => None,
            Some(before) => match places[..at].get(before).copied().flatten() {
                Some(place) => Some(place),
                None => continue,
            },
        };
        if let Some(changed) = change(block) {
            places[at] = Some(kept.len());
            from.push(at);
            kept.push(CachedBlock { parent, ..changed });
        }
    }
    (from, kept)
}

/// Keys and values of a fixed prompt, which overwrite block 0 of an executor that has computed nothing yet.
fn probe(executor: &mut dyn Executor, block_size: u32, limits: &Probed) -> Result<Vec<u8>, DeviceFault> {
    let mut bytes = vec![0; executor.block_bytes()];
    // What a prompt shorter than a block leaves must be the same at every start, too.
    executor.write_block(BlockId(0), &bytes)?;
    let token = |at: u32| {
        let spread = u64::from(at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((spread * u64::from(limits.vocab)) >> 32) as u32
    };
    let end = block_size.min(limits.max_seq_len);
    for (step, from) in (1..).zip((0..end).step_by(limits.step_tokens as usize)) {
        let to = end.min(from + limits.step_tokens);
        let row = Row { token_len: to - from, context_len: to, table_len: 1, ..Row::default() };
        let batch = Batch {
            step,
            tokens: (from..to).map(token).collect(),
            positions: (from..to).collect(),
            slots: (from..to).collect(),
            rows: vec![row],
            block_tables: vec![BlockId(0)],
            ..Batch::default()
        };
        executor.execute(&batch, &mut StepOutput::default())?;
    }
    executor.read_block(BlockId(0), &mut bytes)?;
    Ok(bytes)
}
