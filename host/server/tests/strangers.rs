//! Feeds the fuzz targets' corpora, and seeded mutations of them, to every parser of untrusted bytes.
//! `ROUNDS=n` sets the number of mutations per file, `EDGE=name` selects one target, `SEED=n` sets the first
//! seed.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use infer_core::testing::SplitMix;
use infer_server::edges::{ALL, Edge};

const ROUNDS: u64 = 60;
/// Tokens of the formats. Inserting them reaches deeper than random bytes would.
const WORDS: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\n\n",
    b"\r\n",
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"0",
    b"18446744073709551615",
    b"4294967296",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xf0\x9f\x98\x80",
    b"data: ",
    b"{{",
    b"{%",
    b"GGUF",
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A path in the workspace of the fuzz targets.
fn fuzz(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz").join(path)
}

fn corpus(edge: &str) -> Vec<Vec<u8>> {
    let folder = fuzz("corpus").join(edge);
    let entries = folder.read_dir().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{edge} has a corpus");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// A copy of the bytes with one to four mutations.
fn change(bytes: &[u8], others: &[Vec<u8>], dice: &mut SplitMix) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..dice.between(1, 4) {
        let at = dice.below(bytes.len() as u64 + 1) as usize;
        let end = (at + dice.between(1, 16) as usize).min(bytes.len());
        match dice.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = dice.next_u64() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => {
                let again = bytes[at..end].repeat(dice.between(1, 40) as usize);
                bytes.splice(at..at, again);
            }
            5 => {
                // A piece of another file.
                let other = &others[dice.below(others.len() as u64) as usize];
                let from = dice.below(other.len() as u64 + 1) as usize;
                let to = (from + dice.between(1, 64) as usize).min(other.len());
                bytes.splice(at..at, other[from..to].to_vec());
            }
            6 => {
                // A length field of a binary format.
                let lengths = [0, 1, u64::MAX, 1 << 31, 1 << 32, 1 << 62, dice.below(1 << 20)];
                let length = lengths[dice.below(7) as usize].to_le_bytes();
                let to = (at + 8).min(bytes.len());
                bytes.splice(at..to, length);
            }
            _ => {
                let word = WORDS[dice.below(WORDS.len() as u64) as usize];
                bytes.splice(at..at, word.iter().copied());
            }
        }
    }
    bytes
}

fn feed(name: &str, edge: Edge, bytes: &[u8], what: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| edge(bytes))) {
        let file = std::env::temp_dir().join(format!("infer-edge-{name}.bin"));
        fs::write(&file, bytes).unwrap();
        eprintln!("{name}: {what}; the bytes are in {}", file.display());
        resume_unwind(panic);
    }
}

#[test]
fn mutated_corpora_break_no_parser() {
    let wanted = std::env::var("EDGE").ok();
    let rounds = number("ROUNDS").unwrap_or(ROUNDS);
    let first = number("SEED").unwrap_or(1);
    if let Some(wanted) = &wanted {
        let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&wanted.as_str()), "EDGE={wanted}: there are {names:?}");
    }
    for (name, edge) in ALL {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let corpus = corpus(name);
        for (nth, bytes) in corpus.iter().enumerate() {
            feed(name, edge, bytes, &format!("file {nth} of the corpus"));
            // Large files get fewer mutations, because they take longer.
            let rounds = if bytes.len() > 1 << 16 { rounds.min(8) } else { rounds };
            for round in 0..rounds {
                let seed = first + round;
                let mut dice = SplitMix(seed ^ (nth as u64) << 32);
                feed(
                    name,
                    edge,
                    &change(bytes, &corpus, &mut dice),
                    &format!("file {nth}, SEED={seed} ROUNDS=1"),
                );
            }
        }
    }
}

/// No ordinary build compiles the targets.
#[test]
fn every_edge_has_a_target_and_a_corpus() {
    let edges: BTreeSet<String> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(edges.len(), ALL.len(), "each edge has a name of its own");
    for folder in ["fuzz_targets", "corpus"] {
        let entries = fuzz(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert_eq!(entries.map(stem).collect::<BTreeSet<_>>(), edges, "{folder}");
    }
    let manifest: toml::Table = toml::from_str(&fs::read_to_string(fuzz("Cargo.toml")).unwrap()).unwrap();
    let targets = manifest["bin"].as_array().unwrap().iter().map(|bin| {
        let (name, path) = (bin["name"].as_str().unwrap(), bin["path"].as_str().unwrap());
        assert_eq!(path, format!("fuzz_targets/{name}.rs"));
        name.to_owned()
    });
    assert_eq!(targets.collect::<BTreeSet<_>>(), edges, "targets in Cargo.toml");
    for name in &edges {
        let target = fs::read_to_string(fuzz(&format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(target.contains(&format!("edges::{name}(")), "{name}.rs calls another edge: {target}");
    }
}

/// Mutations only reach deep code if the corpus itself is valid.
#[test]
fn every_corpus_has_a_file_that_parses() {
    use infer_chat::{ChatTemplate, Sandbox};
    use infer_model::{Source, Tokenizer};
    use infer_server::config::Settings;
    let some = |edge: &str, read: &dyn Fn(&[u8]) -> bool| {
        assert!(corpus(edge).iter().any(|bytes| read(bytes)), "no file of {edge} is read");
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    some("config", &|bytes| Settings::of_text("infer.toml".as_ref(), &text(bytes)).is_ok());
    some("tenants", &|bytes| infer_server::tenants::grants("tenants.toml", &text(bytes)).is_ok());
    some("fuzz_case", &|bytes| infer_sim::fuzz::Case::from_text(&text(bytes)).is_ok());
    some("model_config", &|bytes| infer_model::ModelConfig::parse(bytes, None).is_ok());
    some("recording", &|bytes| {
        use infer_api::trace::Line;
        use infer_server::trace::Question;
        let text = text(bytes);
        text.lines().count() > 1
            && text.lines().all(|line| match serde_json::from_str(line) {
                Ok(Line::Decision(decision)) => Question::of_decision(*decision).is_ok(),
                Ok(Line::Asked(asked)) => Question::of_asked(*asked).is_ok(),
                _ => false,
            })
    });
    some("tokenizer", &|bytes| Tokenizer::load(&Source::Embedded(&[("tokenizer.json", bytes)])).is_ok());
    let sandbox = Sandbox::new(None).expect("the renderer compiles");
    some("template", &|bytes| {
        matches!(
            ChatTemplate::load(&sandbox, &Source::Embedded(&[("chat_template.jinja", bytes)])),
            Ok(Some(_))
        )
    });
}
