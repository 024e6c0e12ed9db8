//! The pictures in this program's README and the project's are what it prints: each follows a comment with its
//! command line, played from a recording that lies beside this file.
//!
//! `UPDATE_EXPECT=1 cargo test -p infer-tui --test readme` puts the current pictures in. The recording was made
//! beside conversations with the demo model (`--show-text`), while a scheduler ran in shadow, with `infer-tui
//! --read-only --hz 1 --record session.jsonl --record-text --print --after 75`; of block maps and cache reports only
//! the last are in it.

use std::path::Path;
use std::process::Command;

const MARK: &str = "<!-- infer-tui ";

/// What the console prints for these arguments, where a README stands.
fn printed(folder: &Path, arguments: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_infer-tui"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("LANG", "C.UTF-8")
        .env_remove("LC_ALL")
        .env_remove("LC_CTYPE")
        .output()
        .expect("the console");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_pictures_in_the_readmes_are_what_the_program_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Every screen but the log; the project's shows one.
    for (folder, pictures) in [(folder, 5), (folder.parent().expect("the workspace"), 1)] {
        are_printed(folder, pictures);
    }
}

fn are_printed(folder: &Path, expected: usize) {
    let file = folder.join("README.md");
    let readme = std::fs::read_to_string(&file).expect("a README");
    let mut pieces = readme.split(MARK);
    let mut current = pieces.next().unwrap_or_default().to_owned();
    let mut pictures = 0;
    for piece in pieces {
        let (arguments, rest) = piece.split_once(" -->\n```\n").expect("a picture below its command");
        let (_, rest) = rest.split_once("\n```\n").expect("a picture has an end");
        let picture = printed(folder, arguments);
        current += &format!("{MARK}{arguments} -->\n```\n{}\n```\n{rest}", picture.trim_end());
        pictures += 1;
    }
    assert_eq!(pictures, expected, "{}", file.display());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&file, current).expect("writable");
        return;
    }
    let differing = current.lines().zip(readme.lines()).find(|(now, then)| now != then);
    assert_eq!(differing, None, "UPDATE_EXPECT=1 cargo test -p infer-tui --test readme");
    assert_eq!(current, readme);
}
