//! Compares texts with files, or rewrites the files if `UPDATE_EXPECT=1` is set.

use std::path::Path;

/// Compares `actual` with the file `name` under `tests/screens`.
///
/// # Panics
/// If they differ, with both texts and how to accept the new one.
pub fn file(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        std::fs::write(&path, actual).expect("writable");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        actual == expected,
        "{} differs. If the new screen is right: UPDATE_EXPECT=1 cargo test -p infer-tui\n\
         --- expected\n{expected}\n--- actual\n{actual}",
        path.display()
    );
}
