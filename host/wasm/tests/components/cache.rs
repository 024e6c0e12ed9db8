//! Compiled code from disk: used if it is ours and complete, recompiled if anything is wrong.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::support::{self, Guest, Lines};
use infer_wasm::{LoaderConfig, PolicyLoader};
use wasmtime::Engine;

fn cached(dir: &Path) -> PolicyLoader {
    support::loader(LoaderConfig { cache_dir: Some(dir.to_owned()), ..support::patient() })
}

fn artifacts(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(dir).expect("the directory").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn name(loader: &PolicyLoader, guest: &Guest) -> String {
    loader.describe(&guest.component()).expect("a good component").1.name
}

fn guests() -> (Guest, Guest) {
    (Guest { name: "first", ..Guest::default() }, Guest { name: "second", ..Guest::default() })
}

/// A way to damage a kept artifact.
type Spoil = fn(&Path);

#[test]
fn artifacts_are_private_and_reused() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("policies");
    let (first, second) = guests();
    assert_eq!(name(&cached(&dir), &first), "first");
    let of_first = artifacts(&dir);
    assert_eq!(of_first.len(), 1);
    assert_eq!(fs::metadata(&dir).expect("the directory").mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&of_first[0]).expect("the file").mode() & 0o777, 0o600);

    // The first one's code under the second one's name: an answer like the first's proves that it is used.
    assert_eq!(name(&cached(&dir), &second), "second");
    let of_second = artifacts(&dir).into_iter().find(|path| path != &of_first[0]).expect("a second file");
    fs::copy(&of_first[0], &of_second).expect("both are ours");
    assert_eq!(name(&cached(&dir), &second), "first");
}

#[test]
fn a_damaged_or_writable_artifact_is_recompiled() {
    let spoil: [(&str, Spoil); 6] = [
        ("a flipped byte", |path| {
            let mut bytes = fs::read(path).expect("it exists");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).expect("it is ours");
        }),
        ("cut short", |path| {
            let bytes = fs::read(path).expect("it exists");
            fs::write(path, &bytes[..bytes.len() / 2]).expect("it is ours");
        }),
        ("empty", |path| fs::write(path, []).expect("it is ours")),
        ("readable by others", |path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("it is ours");
        }),
        ("a symbolic link", |path| {
            let moved = path.with_extension("moved");
            fs::rename(path, &moved).expect("it is ours");
            symlink(&moved, path).expect("the name is free");
        }),
        ("not wasmtime's", |path| {
            use sha2::{Digest, Sha256};
            let mut content = b"no machine code".to_vec();
            content.extend_from_slice(&Sha256::digest(b"no machine code"));
            fs::write(path, content).expect("it is ours");
        }),
    ];
    let (first, _) = guests();
    for (what, spoil) in spoil {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("policies");
        assert_eq!(name(&cached(&dir), &first), "first", "{what}");
        let artifact = artifacts(&dir).remove(0);
        let good = fs::read(&artifact).expect("it was written");
        spoil(&artifact);
        assert_eq!(name(&cached(&dir), &first), "first", "{what}");
        assert_eq!(fs::read(&artifact).expect("it was replaced"), good, "{what}");
        let metadata = fs::symlink_metadata(&artifact).expect("it was replaced");
        assert!(metadata.is_file() && metadata.mode() & 0o777 == 0o600, "{what}");
    }
}

#[test]
fn a_directory_open_to_others_is_not_used() {
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let (first, _) = guests();
    assert_eq!(name(&cached(home.path()), &first), "first");
    assert_eq!(artifacts(home.path()), Vec::<PathBuf>::new());
}

#[test]
fn another_engine_configuration_has_artifacts_of_its_own() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("policies");
    let (first, _) = guests();
    assert_eq!(name(&cached(&dir), &first), "first");
    let fuel =
        LoaderConfig { cache_dir: Some(dir.clone()), fuel: Some(1_000_000), ..LoaderConfig::default() };
    assert_eq!(name(&support::loader(fuel), &first), "first");
    assert_eq!(artifacts(&dir).len(), 2);
}

#[test]
fn refused_components_are_not_cached() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("policies");
    let guest = Guest { schedule: "unreachable".into(), ..Guest::default() };
    support::scheduler(&cached(&dir), &guest.component()).map(drop).expect_err("it fails its self-test");
    assert_eq!(artifacts(&dir), Vec::<PathBuf>::new());
    support::scheduler(&cached(&dir), &Guest::default().component()).map(drop).expect("a good component");
    assert_eq!(artifacts(&dir).len(), 1);
}

fn set_age(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("ours");
    let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    file.set_modified(at).expect("ours");
}

#[test]
fn a_full_directory_loses_its_oldest_artifact_and_no_directory() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("policies");
    let (first, _) = guests();
    assert_eq!(name(&cached(&dir), &first), "first");
    let kept = artifacts(&dir).remove(0);
    fs::create_dir(dir.join("a-directory")).expect("ours");
    for at in 0..64 {
        let older = dir.join(format!("older-{at}"));
        fs::write(&older, []).expect("ours");
        set_age(&older, at);
    }
    fs::remove_file(&kept).expect("ours");
    assert_eq!(name(&cached(&dir), &first), "first");
    assert!(kept.exists() && dir.join("a-directory").exists() && !dir.join("older-0").exists());
    assert_eq!(artifacts(&dir).len(), 65);
}

#[test]
fn an_artifact_that_is_used_outlives_later_ones() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("policies");
    let (first, second) = guests();
    assert_eq!(name(&cached(&dir), &first), "first");
    let used = artifacts(&dir).remove(0);
    set_age(&used, 0);
    for at in 1..64 {
        let later = dir.join(format!("later-{at}"));
        fs::write(&later, []).expect("ours");
        set_age(&later, at);
    }
    assert_eq!(name(&cached(&dir), &first), "first");
    assert_eq!(name(&cached(&dir), &second), "second");
    assert!(used.exists() && !dir.join("later-1").exists());
    assert_eq!(artifacts(&dir).len(), 64);
}

#[test]
fn a_directory_that_cannot_be_used_is_warned_of_once() {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("file"), "").expect("a file");
    let dir = home.path().join("file/policies");
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        assert_eq!(name(&cached(&dir), &guests().0), "first");
        // Other modules of the same process.
        let engine = Engine::new(&infer_wasm::bare_config()).expect("an engine");
        for _ in 0..2 {
            infer_wasm::compile_module(&engine, b"\0asm\x01\0\0\0", Some(&dir)).expect("a module");
        }
    });
    let text = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(&format!("the cache directory {}: ", dir.display())), "{text}");
}
