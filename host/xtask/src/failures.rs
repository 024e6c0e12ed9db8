//! What failed tests printed, cut short, for the end of all output: of a long log, CI often shows no more than that.

/// Lines kept of what a failed test printed, and characters of each.
const MOST_LINES: usize = 60;
const MOST_CHARS: usize = 300;

/// A test binary that failed.
pub struct Failed {
    /// Its source file, and how it ended.
    pub binary: String,
    /// What it printed.
    pub printed: String,
}

/// Says why each failed test did, by binary, and last all names: they remain where the beginning is cut off.
pub fn report(failed: &[Failed], total: usize) -> String {
    let mut report = format!("{} of {total} test binaries failed:\n", failed.len());
    let mut names = String::from("\nFailed tests:");
    for Failed { binary, printed } in failed {
        let tests = failed_tests(printed);
        report.push_str(&format!("\n{binary}\n"));
        for (name, lines) in &tests {
            report.push_str(&format!("  {name}\n{}", excerpt(lines)));
        }
        names.push_str(&format!("\n  {binary}"));
        match tests.is_empty() {
            // The process ended in the middle of a test: by a signal, or because a stack overflowed.
            true => {
                report.push_str(&format!("  its end\n{}", excerpt(&printed.lines().collect::<Vec<_>>())));
                names.push_str("\n    it ended without naming any");
            }
            false => tests.iter().for_each(|(name, _)| names.push_str(&format!("\n    {name}"))),
        }
    }
    report + &names
}

/// The failed tests and what each printed. libtest shows that below `---- NAME stdout ----`, if it is anything, and then
/// lists all names below `failures:`.
fn failed_tests(printed: &str) -> Vec<(&str, Vec<&str>)> {
    let Some((shown, listed)) = printed.rsplit_once("\nfailures:\n") else { return Vec::new() };
    let names = listed.lines().map_while(|line| line.strip_prefix("    "));
    names.map(|name| (name, printed_by(name, shown))).collect()
}

fn printed_by<'a>(name: &str, shown: &'a str) -> Vec<&'a str> {
    let head = format!("---- {name} stdout ----");
    let lines = shown.lines().skip_while(|line| *line != head).skip(1);
    lines.take_while(|line| !(line.starts_with("---- ") && line.ends_with(" stdout ----"))).collect()
}

/// The first lines, or those from the first panic on if there are too many; without a panic the last ones.
fn excerpt(lines: &[&str]) -> String {
    let is_text = |line: &&str| !line.trim().is_empty();
    let (Some(first), Some(last)) = (lines.iter().position(is_text), lines.iter().rposition(is_text)) else {
        return "    (it printed nothing)\n".to_owned();
    };
    let lines = &lines[first..=last];
    let begin = match lines.len() > MOST_LINES {
        true => {
            let panic = lines.iter().position(|line| line.contains(" panicked at "));
            panic.unwrap_or(lines.len() - MOST_LINES)
        }
        false => 0,
    };
    let end = lines.len().min(begin + MOST_LINES);
    let mut text = String::new();
    if begin > 0 {
        text.push_str(&format!("    [{begin} lines before]\n"));
    }
    for line in &lines[begin..end] {
        match line.char_indices().nth(MOST_CHARS) {
            None => text.push_str(&format!("    {line}\n")),
            Some((at, _)) => text.push_str(&format!("    {} [cut]\n", &line[..at])),
        }
    }
    if end < lines.len() {
        text.push_str(&format!("    [{} more lines]\n", lines.len() - end));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\nrunning 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d ... FAILED\n\nfailures:\n\n\
        ---- b::c stdout ----\nseed 7\n\nthread 'b::c' (12) panicked at tests/b.rs:3:5:\nno answer\n\n\n\
        failures:\n    b::c\n    d\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n\n";

    fn failed(binary: &str, printed: &str) -> Failed {
        Failed { binary: binary.to_owned(), printed: printed.to_owned() }
    }

    #[test]
    fn report_has_the_panic_of_each_failed_test_and_ends_with_all_names() {
        let overflow = "\nrunning 2 tests\n\nthread 'deep' has overflowed its stack\n";
        let failed =
            [failed("host/b.rs (exit status: 101)", PRINTED), failed("host/e.rs (signal: 6)", overflow)];
        let wanted = "2 of 40 test binaries failed:\n\n\
            host/b.rs (exit status: 101)\n  b::c\n    seed 7\n    \n    thread 'b::c' (12) panicked at tests/b.rs:3:5:\n    \
            no answer\n  d\n    (it printed nothing)\n\n\
            host/e.rs (signal: 6)\n  its end\n    running 2 tests\n    \n    thread 'deep' has overflowed its stack\n\n\
            Failed tests:\n  host/b.rs (exit status: 101)\n    b::c\n    d\n  host/e.rs (signal: 6)\n    \
            it ended without naming any";
        assert_eq!(report(&failed, 40), wanted);
    }

    #[test]
    fn long_output_is_cut_to_what_follows_the_first_panic() {
        let many = ["a step"; 100];
        let long = format!("thread 'x' panicked at tests/x.rs:1:1: {}", "é".repeat(MOST_CHARS));
        let text = excerpt(&[&many[..], &[&*long], &many[..]].concat());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), MOST_LINES + 2);
        assert_eq!((lines[0], lines[MOST_LINES + 1]), ("    [100 lines before]", "    [41 more lines]"));
        assert!(lines[1].starts_with("    thread 'x' panicked at ") && lines[1].ends_with("é [cut]"));

        let text = excerpt(&many);
        assert!(text.starts_with("    [40 lines before]\n    a step\n"), "the last ones: {text}");
    }
}
