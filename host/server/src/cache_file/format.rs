//! The layout of a cache file: a safetensors file, so that other programs can read it, too.
//!
//! The header follows from its own metadata, so a reader makes the header it expects and compares; it needs no parser for
//! offsets. The digest at the end covers everything before it. Numbers are little-endian.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::Instant;

use infer_core::{AdapterId, BlockId, CachedBlock, Micros, TenantId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Raised if the meaning of anything in the file changes.
const VERSION: &str = "1";
const FORMAT: &str = "infer prefix cache";
/// A header is some hundred bytes and the names of tenants.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// The format is named within these.
const START_BYTES: u64 = 512;
/// In place of an index or a time that isn't there.
const NONE_32: u32 = u32::MAX;
const NONE_64: u64 = u64::MAX;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About {
    /// When it was saved, in microseconds since 1970.
    pub saved_at: u64,
    /// Tokens in a block.
    pub block_size: u32,
    /// Bytes of a block's keys and values.
    pub block_bytes: u64,
    pub blocks: u64,
    /// Identifies the model's weights.
    pub weights: String,
    /// Names of the tenants, whose numbers in the file are indexes of this list.
    pub tenants: Vec<String>,
}

/// One tensor of the file.
struct Part {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
}

#[derive(Serialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<String, String>,
    #[serde(flatten)]
    tensors: BTreeMap<&'static str, Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    dtype: &'static str,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Deserialize)]
struct OnlyMetadata {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<String, String>,
}

impl About {
    /// The tensors in the order of their bytes.
    fn parts(&self) -> Vec<Part> {
        let (count, tokens) = (self.blocks, u64::from(self.block_size));
        let part = |name, dtype, width: u64, shape: &[u64]| {
            let bytes = shape.iter().fold(width, |all, side| all.saturating_mul(*side));
            Part { name, dtype, shape: shape.to_vec(), bytes }
        };
        vec![
            part("ttl_us", "U64", 8, &[count]),
            part("unused_us", "U64", 8, &[count]),
            part("parent", "U32", 4, &[count]),
            part("tenant", "U32", 4, &[count]),
            part("tokens", "U32", 4, &[count, tokens]),
            part("probe", "U8", 1, &[self.block_bytes]),
            part("blocks", "U8", 1, &[count, self.block_bytes]),
            part("sha256", "U8", 1, &[Sha256::output_size() as u64]),
        ]
    }

    /// Bytes that each block adds to a file.
    pub(super) fn bytes_of_one(&self) -> u64 {
        let bytes = |blocks| Self { blocks, ..self.clone() }.data_bytes();
        bytes(1) - bytes(0)
    }

    /// Bytes of a file without blocks.
    pub(super) fn bytes_of_none(&self) -> u64 {
        let none = Self { blocks: 0, ..self.clone() };
        // Numbers of more digits make a header longer.
        none.header().len() as u64 + none.data_bytes() + 512
    }

    fn data_bytes(&self) -> u64 {
        self.parts().iter().fold(0, |all: u64, part| all.saturating_add(part.bytes))
    }

    /// The start of the file: length and JSON, padded to eight bytes.
    fn header(&self) -> Vec<u8> {
        let tenants = serde_json::to_string(&self.tenants).expect("names are text");
        let metadata = [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.to_owned()),
            ("saved_at_us", self.saved_at.to_string()),
            ("block_size", self.block_size.to_string()),
            ("block_bytes", self.block_bytes.to_string()),
            ("blocks", self.blocks.to_string()),
            ("weights", self.weights.clone()),
            ("tenants", tenants),
        ];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut tensors = BTreeMap::new();
        let mut at: u64 = 0;
        for Part { name, dtype, shape, bytes } in self.parts() {
            let end = at.saturating_add(bytes);
            tensors.insert(name, Tensor { dtype, shape, data_offsets: [at, end] });
            at = end;
        }
        let mut json = serde_json::to_vec(&Header { metadata, tensors }).expect("a header is JSON");
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        header
    }

    /// Reads the metadata of a header.
    fn parse(json: &[u8]) -> Result<Self, String> {
        let OnlyMetadata { metadata } =
            serde_json::from_slice(json).map_err(|error| format!("its header is broken: {error}"))?;
        let get = |key: &str| metadata.get(key).map_or("", String::as_str);
        if get("format") != FORMAT {
            return Err("it is no cache file".to_owned());
        }
        if get("version") != VERSION {
            return Err(format!("it has version {}, this host reads version {VERSION}", get("version")));
        }
        let number = |key: &str| get(key).parse().map_err(|_| format!("its header has no valid {key}"));
        Ok(Self {
            saved_at: number("saved_at_us")?,
            block_size: number("block_size")?
                .try_into()
                .map_err(|_| "its blocks are too large".to_owned())?,
            block_bytes: number("block_bytes")?,
            blocks: number("blocks")?,
            weights: get("weights").to_owned(),
            tenants: serde_json::from_str(get("tenants")).map_err(|e| format!("its tenants: {e}"))?,
        })
    }
}

/// Whether a file is a cache file, going by its beginning: of any version, however damaged its rest is. Or it is empty.
pub(super) fn is_ours(file: impl Read) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(START_BYTES).read_to_end(&mut start)?;
    let format = FORMAT.as_bytes();
    Ok(start.is_empty() || start.windows(format.len()).any(|part| part == format))
}

/// Writes a file. `list` names tenants by index of `about.tenants`; `read` copies the keys and values of the nth block.
/// Fails if that is not done by `end`.
pub(super) fn write(
    file: impl Write,
    about: &About,
    list: &[CachedBlock],
    probe: &[u8],
    end: Instant,
    mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut to = Hashed { file, sha: Sha256::new() };
    to.write(&about.header())?;
    list.iter().try_for_each(|block| to.write(&block.ttl.map_or(NONE_64, |ttl| ttl.0).to_le_bytes()))?;
    list.iter().try_for_each(|block| to.write(&block.unused.0.to_le_bytes()))?;
    let parent = |block: &CachedBlock| block.parent.map_or(NONE_32, |at| at as u32);
    list.iter().try_for_each(|block| to.write(&parent(block).to_le_bytes()))?;
    list.iter().try_for_each(|block| to.write(&block.tenant.0.to_le_bytes()))?;
    for block in list {
        block.tokens.iter().try_for_each(|token| to.write(&token.to_le_bytes()))?;
    }
    to.write(probe)?;
    let mut bytes = vec![0; probe.len()];
    for nth in 0..list.len() {
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long"));
        }
        read(nth, &mut bytes)?;
        to.write(&bytes)?;
    }
    let digest = to.sha.finalize();
    to.file.write_all(&digest)?;
    to.file.flush()
}

/// A file that is being read.
pub(super) struct Saved<R> {
    from: Hashed<R>,
    pub about: About,
    /// The blocks, with tenants by index of `about.tenants`.
    pub list: Vec<CachedBlock>,
    pub probe: Vec<u8>,
}

impl<R: Read> Saved<R> {
    /// Reads everything before the keys and values.
    pub(super) fn open(file: R, file_bytes: u64) -> Result<Self, String> {
        let mut from = Hashed { file, sha: Sha256::new() };
        let mut len = [0; 8];
        from.read(&mut len)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER_BYTES {
            return Err("it is no cache file".to_owned());
        }
        let mut json = vec![0; len as usize];
        from.read(&mut json)?;
        let about = About::parse(&json)?;
        let header = about.header();
        if header[8..] != json {
            return Err("its header is broken".to_owned());
        }
        let expected = about.data_bytes().saturating_add(header.len() as u64);
        if expected != file_bytes {
            return Err(format!("it has {file_bytes} bytes instead of {expected}"));
        }
        let count = about.blocks as usize;
        let ttls = from.numbers(count, u64::from_le_bytes)?;
        let unused = from.numbers(count, u64::from_le_bytes)?;
        let parents = from.numbers(count, u32::from_le_bytes)?;
        let tenants = from.numbers(count, u32::from_le_bytes)?;
        let tokens = from.numbers(count * about.block_size as usize, u32::from_le_bytes)?;
        let mut probe = vec![0; about.block_bytes as usize];
        from.read(&mut probe)?;
        let block = |nth: usize| CachedBlock {
            id: BlockId(nth as u32),
            parent: (parents[nth] != NONE_32).then_some(parents[nth] as usize),
            tokens: tokens[nth * about.block_size as usize..][..about.block_size as usize].into(),
            tenant: TenantId(tenants[nth]),
            salt: 0,
            adapter: AdapterId::NONE,
            ttl: (ttls[nth] != NONE_64).then_some(Micros(ttls[nth])),
            unused: Micros(unused[nth]),
        };
        let list = (0..count).map(block).collect();
        Ok(Self { from, about, list, probe })
    }

    /// Reads the keys and values of all blocks in order. What `each` was given is worth nothing if this fails.
    pub(super) fn blocks(
        mut self,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut bytes = vec![0; self.about.block_bytes as usize];
        for nth in 0..self.list.len() {
            self.from.read(&mut bytes)?;
            each(nth, &bytes)?;
        }
        let digest = self.from.sha.finalize();
        let mut said = [0; 32];
        self.from.file.read_exact(&mut said).map_err(unread)?;
        if digest[..] != said {
            return Err("its content is damaged".to_owned());
        }
        Ok(())
    }
}

fn unread(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
        _ => error.to_string(),
    }
}

/// A file whose bytes are hashed in passing.
struct Hashed<F> {
    file: F,
    sha: Sha256,
}

impl<F: Write> Hashed<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sha.update(bytes);
        self.file.write_all(bytes)
    }
}

impl<F: Read> Hashed<F> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.file.read_exact(bytes).map_err(unread)?;
        self.sha.update(&*bytes);
        Ok(())
    }

    fn numbers<T, const N: usize>(&mut self, count: usize, read: fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        let mut bytes = vec![0; count * N];
        self.read(&mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|number| read(*number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn example() -> (About, Vec<CachedBlock>, Vec<u8>) {
        let about = About {
            saved_at: 1_700_000_000_000_000,
            block_size: 2,
            block_bytes: 24,
            blocks: 3,
            weights: "c0ffee".to_owned(),
            tenants: vec!["default".to_owned(), "ä \"b\"".to_owned()],
        };
        let block = |id, parent, tenant, ttl| CachedBlock {
            id: BlockId(id),
            parent,
            tokens: [id, u32::MAX - id].into(),
            tenant: TenantId(tenant),
            salt: 0,
            adapter: AdapterId::NONE,
            ttl,
            unused: Micros(u64::from(id) * 7),
        };
        let list = vec![
            block(0, None, 0, None),
            block(1, Some(0), 0, Some(Micros(0))),
            block(2, None, 1, Some(Micros(9))),
        ];
        (about, list, (0..24).collect())
    }

    fn content(nth: usize) -> Vec<u8> {
        vec![nth as u8 + 100; 24]
    }

    fn written() -> Vec<u8> {
        let (about, list, probe) = example();
        let mut file = Vec::new();
        let end = Instant::now() + Duration::from_secs(600);
        write(&mut file, &about, &list, &probe, end, |nth, bytes| {
            bytes.copy_from_slice(&content(nth));
            Ok(())
        })
        .unwrap();
        file
    }

    type All = (About, Vec<CachedBlock>, Vec<u8>, Vec<Vec<u8>>);

    fn read(file: &[u8]) -> Result<All, String> {
        let saved = Saved::open(file, file.len() as u64)?;
        let (about, list, probe) = (saved.about.clone(), saved.list.clone(), saved.probe.clone());
        let mut blocks = Vec::new();
        saved.blocks(|nth, bytes| {
            assert_eq!(nth, blocks.len());
            blocks.push(bytes.to_vec());
            Ok(())
        })?;
        Ok((about, list, probe, blocks))
    }

    #[test]
    fn what_was_written_is_read() {
        let file = written();
        let (about, list, probe) = example();
        let blocks = (0..3).map(content).collect();
        assert_eq!(read(&file), Ok((about.clone(), list, probe, blocks)));
        let most = about.bytes_of_none() + 3 * about.bytes_of_one();
        assert!((file.len() as u64..file.len() as u64 + 1_024).contains(&most), "{} {most}", file.len());
    }

    #[test]
    fn fuzzing_seed_is_a_file_that_is_read() {
        let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/cache_file/three.cache");
        let made = written();
        if std::env::var_os("WRITE_SEEDS").is_some() {
            std::fs::write(seed, &made).unwrap();
        }
        let kept = std::fs::read(seed).expect("the corpus has one");
        assert!(kept == made, "{seed} is another than is made here; WRITE_SEEDS=1 writes it");
        assert_eq!(super::super::examine(&kept), Ok(()));
    }

    #[test]
    fn it_is_a_safetensors_file() {
        let file = written();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let tokens = tensors.tensor("tokens").unwrap();
        assert_eq!((tokens.dtype(), tokens.shape()), (safetensors::Dtype::U32, &[3, 2][..]));
        assert_eq!(tensors.tensor("blocks").unwrap().data(), (0..3).flat_map(content).collect::<Vec<_>>());
    }

    #[test]
    fn every_damaged_byte_and_every_length_is_noticed() {
        let file = written();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            assert!(read(&damaged).is_err(), "byte {at} of {}", file.len());
        }
        for len in 0..file.len() {
            assert!(read(&file[..len]).is_err(), "{len} bytes of {}", file.len());
        }
        assert!(read(&[&file[..], &[0]].concat()).is_err());
    }

    #[test]
    fn other_files_are_refused_before_they_are_read() {
        for (file, wrong) in [
            (&[0xff; 64][..], "it is no cache file"),
            (b"\x02\0\0\0\0\0\0\0{}", "its header is broken"),
            (b"", "it ends too early"),
        ] {
            let error = read(file).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        let other = [("metadata", 1.0f32.to_le_bytes())];
        let view =
            |bytes| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], bytes).unwrap();
        let model =
            safetensors::serialize(other.iter().map(|(name, bytes)| (*name, view(bytes))), None).unwrap();
        assert!(read(&model).unwrap_err().contains("header is broken"));
        // A header that promises more than there is.
        let (about, ..) = example();
        let header = About { blocks: 1 << 60, ..about }.header();
        assert!(read(&header).unwrap_err().contains("bytes instead of"));
    }

    #[test]
    fn files_are_told_from_others_by_their_beginning() {
        let file = written();
        let (about, ..) = example();
        let most = About { block_size: u32::MAX, block_bytes: u64::MAX, blocks: u64::MAX, ..about }.header();
        for ours in [&file[..], &file[..400], &most[..], &[]] {
            assert!(is_ours(ours).unwrap());
        }
        for other in [&b"precious = true"[..], &[0; 4_096][..], &file[400..]] {
            assert!(!is_ours(other).unwrap());
        }
    }

    #[test]
    fn writing_ends_in_time() {
        let (about, list, probe) = example();
        let past = Instant::now() - Duration::from_millis(1);
        let error = write(&mut Vec::new(), &about, &list, &probe, past, |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
