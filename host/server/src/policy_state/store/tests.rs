//! The directory of `--policy-state`: what is kept in it, what is refused or set aside, and what outlives a cut write.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::tenants::Numbering;

fn place() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state/policies");
    (home, dir)
}

fn document() -> Document {
    Document::new("2026-03-01T12:00:00Z".to_owned())
}

fn component(text: &str) -> (String, Arc<[u8]>) {
    (digest(text.as_bytes()), text.as_bytes().into())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_is_private_and_read_back_and_old_components_go() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    assert_eq!(store.read(), Ok(None));
    let (old, new) = (component("old"), component("new"));
    store.save(&document(), &Components::from([old.clone()])).unwrap();
    store.save(&document(), &Components::from([new.clone()])).unwrap();
    assert_eq!(store.read(), Ok(Some(document())));
    assert_eq!(store.component(&new.0), Ok(new.1.clone()));
    assert!(store.component(&old.0).unwrap_err().contains("can't read"));
    let mut left = vec![format!("{}.wasm", new.0), FILE.to_owned(), format!("{FILE}.lock")];
    left.sort();
    assert_eq!(names(&dir), left);
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    for name in &left {
        assert_eq!(fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    // Whatever removed it: it is written again.
    fs::remove_file(dir.join(format!("{}.wasm", new.0))).unwrap();
    store.save(&document(), &Components::from([new.clone()])).unwrap();
    assert!(store.component(&new.0).is_ok());
}

#[test]
fn a_component_with_another_content_is_not_used() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    let (sha256, bytes) = component("mine");
    store.save(&document(), &Components::from([(sha256.clone(), bytes)])).unwrap();
    let path = dir.join(format!("{sha256}.wasm"));
    fs::write(&path, "thine").unwrap();
    assert!(store.component(&sha256).unwrap_err().contains("another SHA-256"));
    fs::remove_file(&path).unwrap();
    fs::write(dir.join("real"), "mine").unwrap();
    symlink(dir.join("real"), &path).unwrap();
    assert!(store.component(&sha256).is_err(), "links are not followed");
}

#[test]
fn a_component_that_was_read_is_not_written_again() {
    let (_home, dir) = place();
    let one = Components::from([component("mine")]);
    let sha256 = one.keys().next().unwrap();
    Store::open(&dir).unwrap().save(&document(), &one).unwrap();
    let inode = || fs::metadata(dir.join(format!("{sha256}.wasm"))).unwrap().ino();
    let before = inode();
    let mut store = Store::open(&dir).unwrap();
    store.component(sha256).unwrap();
    store.save(&document(), &one).unwrap();
    assert_eq!(inode(), before);
}

#[test]
fn what_policies_exported_is_private_and_read_back_and_damage_is_set_aside() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    assert_eq!(store.exported(), Ok(None));
    let names = BTreeMap::from([(0, "default".to_owned())]);
    let saved = Saved { at_us: 7, tenants: Numbering { names, next: 1 }, ..Saved::default() };
    store.save_exported(&saved).unwrap();
    assert_eq!(store.exported(), Ok(Some(saved)));
    let file = dir.join(EXPORTED);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    store.save(&document(), &Components::new()).unwrap();
    assert!(file.exists(), "a save of the other file leaves it alone");
    for text in ["first", "second"] {
        fs::write(&file, text).unwrap();
        assert!(store.exported().unwrap_err().starts_with("it is damaged: "));
        let unread = store.set_exported_aside().unwrap();
        assert_eq!((fs::read_to_string(unread).unwrap().as_str(), file.exists()), (text, false));
    }
    symlink("elsewhere", &file).unwrap();
    assert!(store.exported().is_err(), "links are not followed");
}

#[test]
fn files_of_others_stay() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    let hex = "ab".repeat(32);
    let others =
        ["mine.wasm".to_owned(), "notes.txt".to_owned(), format!("{hex}.json"), format!("{hex}.WASM")];
    for name in &others {
        fs::write(dir.join(name), "precious").unwrap();
    }
    fs::create_dir(dir.join(format!("{hex}.wasm"))).unwrap();
    store.save(&document(), &Components::new()).unwrap();
    fs::write(dir.join(FILE), "{\"format\": \"infer policy state\"").unwrap();
    store.set_aside().unwrap();
    for name in &others {
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "precious", "{name}");
    }
    assert!(dir.join(format!("{hex}.wasm")).is_dir());
}

#[test]
fn a_file_that_cannot_be_read_is_set_aside_with_its_components_in_place_of_the_last_one() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    for text in ["first", "second"] {
        let (sha256, bytes) = component(text);
        store.save(&document(), &Components::from([(sha256.clone(), bytes)])).unwrap();
        fs::write(dir.join(FILE), text).unwrap();
        let unread = store.set_aside().unwrap();
        assert_eq!(names(&dir), [format!("{FILE}.lock"), UNREAD.to_owned()]);
        let mut moved = vec![format!("{sha256}.wasm"), FILE.to_owned()];
        moved.sort();
        assert_eq!(names(&unread), moved);
        assert_eq!(fs::read_to_string(unread.join(FILE)).unwrap(), text);
    }
}

#[test]
fn a_host_that_is_killed_while_it_sets_a_file_aside_leaves_all_of_it_to_the_next() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    let (sha256, bytes) = component("mine");
    store.save(&document(), &Components::from([(sha256.clone(), bytes)])).unwrap();
    let (file, unread) = (dir.join(FILE), dir.join(UNREAD));
    fs::write(&file, "of a newer host").unwrap();
    // What keeps the file from its new place stands for the kill.
    fs::create_dir_all(unread.join(FILE)).unwrap();
    assert!(store.set_aside().is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "of a newer host");
    assert!(store.component(&sha256).is_ok());
    // Nor is it overwritten while it is in the way.
    let why = store.save(&document(), &Components::new()).unwrap_err().to_string();
    assert!(why.contains("policies.json, which can't be read, can't be moved: "), "{why}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of a newer host");
    fs::remove_dir(unread.join(FILE)).unwrap();
    store.save(&document(), &Components::new()).unwrap();
    let mut moved = vec![format!("{sha256}.wasm"), FILE.to_owned()];
    moved.sort();
    assert_eq!(names(&unread), moved);
    assert_eq!(fs::read_to_string(unread.join(FILE)).unwrap(), "of a newer host");
    assert_eq!(store.read(), Ok(Some(document())));
}

#[test]
fn only_one_host_at_a_time_has_a_directory() {
    let (_home, dir) = place();
    let first = Store::open(&dir).unwrap();
    assert!(matches!(Store::open(&dir), Err(OpenError::Busy)));
    drop(first);
    assert_eq!(names(&dir), Vec::<String>::new());
    Store::open(&dir).unwrap();
}

#[test]
fn a_place_that_is_not_ours_is_refused() {
    let (_home, dir) = place();
    let refused = |says: &str| {
        let Err(OpenError::Wrong(why)) = Store::open(&dir) else { panic!("it is refused: {says}") };
        assert!(why.contains(says), "{why}");
    };
    fs::create_dir_all(dir.parent().unwrap()).unwrap();
    fs::write(&dir, "").unwrap();
    refused("can't be created");
    fs::remove_file(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    refused("others can't open");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
    let file = dir.join(FILE);
    fs::write(&file, "{\"precious\": true}").unwrap();
    refused("something else");
    fs::remove_file(&file).unwrap();
    symlink("elsewhere", &file).unwrap();
    refused("is no file");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused("is no file");
    fs::remove_dir(&file).unwrap();
    Store::open(&dir).unwrap();
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let (_home, dir) = place();
    let store = Store::open(&dir).unwrap();
    File::create(dir.join(FILE)).unwrap().set_len(format::MAX_BYTES + 1).unwrap();
    assert!(matches!(store.read(), Err(ReadError::Unusable(why)) if why.contains("more than")));
}

#[test]
fn what_the_system_does_not_let_a_host_read_is_no_damage() {
    let (_home, dir) = place();
    let store = Store::open(&dir).unwrap();
    symlink("elsewhere", dir.join(FILE)).unwrap();
    assert!(matches!(store.read(), Err(ReadError::Unread(_))));
    fs::remove_file(dir.join(FILE)).unwrap();
    fs::write(dir.join(FILE), "").unwrap();
    assert!(matches!(store.read(), Err(ReadError::Unusable(_))));
}

#[test]
fn a_directory_that_is_gone_is_an_error_and_is_used_again_when_it_is_back() {
    let (_home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    let one = Components::from([component("mine")]);
    store.save(&document(), &one).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(store.save(&document(), &one).is_err());
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let why = store.save(&document(), &one).unwrap_err().to_string();
    assert!(why.contains("others can't open"), "as at a start: {why}");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    store.save(&document(), &one).unwrap();
    assert!(store.component(one.keys().next().unwrap()).is_ok());
    assert!(matches!(Store::open(&dir), Err(OpenError::Busy)), "it is claimed again");
}

#[test]
fn a_directory_with_a_state_in_place_of_this_one_stays_as_it_is() {
    let (home, dir) = place();
    let mut store = Store::open(&dir).unwrap();
    store.save(&document(), &Components::new()).unwrap();
    fs::rename(&dir, home.path().join("moved")).unwrap();
    let mut other = Store::open(&dir).unwrap();
    let theirs = Document::new("2026-03-02T12:00:00Z".to_owned());
    other.save(&theirs, &Components::new()).unwrap();
    let why = store.save(&document(), &Components::new()).unwrap_err().to_string();
    assert!(why.contains("another directory"), "{why}");
    drop(store);
    assert_eq!(other.read(), Ok(Some(theirs)));
    assert!(matches!(Store::open(&dir), Err(OpenError::Busy)), "the other one's lock stays");
}
