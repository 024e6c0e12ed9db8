//! Compares the screens in this crate's README and the project's with what the console prints for a
//! recording, `tests/session.jsonl`. Each screen follows a comment with its command line.
//!
//! `UPDATE_EXPECT=1 cargo test -p infer-tui --test scripted readme::` updates them. The recording was made with
//! `infer-tui --read-only --hz 1 --record session.jsonl --record-text --print --after 75`, during
//! conversations with the demo model (`--show-text`) and with a scheduler in shadow. Of block maps and cache
//! reports it has only the last ones.

use std::path::Path;
use std::process::Command;

const MARK: &str = "<!-- infer-tui ";

/// Returns what the console prints for these arguments, run in the README's folder.
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
fn screens_in_the_readmes_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The crate's README has every screen but the log and the tenants (the recording has none); the project's has one.
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
    assert_eq!(differing, None, "UPDATE_EXPECT=1 cargo test -p infer-tui --test scripted readme::");
    assert_eq!(current, readme);
}
