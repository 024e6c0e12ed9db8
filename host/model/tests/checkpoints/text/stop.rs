//! Stop strings: the output never depends on where the stream was cut into pieces.

use infer_model::StopStrings;
use proptest::prelude::*;

/// Feeds `pieces` and returns all text sent and whether a stop string ended it.
fn run<'a>(strings: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
    let mut stops = StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect());
    let mut sent = String::new();
    for piece in pieces {
        let step = stops.push(piece);
        sent.push_str(&step.text);
        if step.stopped {
            return (sent, true);
        }
    }
    (sent + &stops.finish(), false)
}

/// The definition: the text up to the stop string that completes first; of several, the longest.
fn expected(strings: &[&str], text: &str) -> (String, bool) {
    for end in 0..=text.len() {
        let Some(seen) = text.get(..end) else { continue };
        let found = strings.iter().filter(|string| !string.is_empty() && seen.ends_with(**string));
        if let Some(longest) = found.map(|string| string.len()).max() {
            return (seen[..end - longest].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

#[test]
fn stop_strings_end_a_stream() {
    for (strings, pieces, sent, stopped) in [
        (&["\n\n"][..], &["a\n", "\nb"][..], "a", true),
        (&["END"], &["the E", "N", "D of"], "the ", true),
        (&["END"], &["the E", "N", "E"], "the ENE", false),
        (&["abc", "b"], &["ab", "c"], "a", true),
        (&["bc", "abc"], &["a", "b", "c"], "", true),
        (&["aab"], &["aa", "ab"], "a", true),
        (&["né"], &["on", "n", "é!"], "on", true),
        (&["\u{6771}\u{4eac}"], &["\u{6771}", "\u{6771}", "\u{4eac}"], "\u{6771}", true),
        (&[""], &["never"], "never", false),
        (&[], &["never"], "never", false),
    ] {
        assert_eq!(
            run(strings, pieces.iter().copied()),
            (sent.to_owned(), stopped),
            "{strings:?} {pieces:?}"
        );
    }
}

#[test]
fn string_that_ended_a_stream_is_known() {
    for (strings, text, found) in [
        (&["abc", "b"][..], "abc", Some("b")),
        (&["bc", "abc"], "xabc", Some("abc")),
        (&["", "né"], "one", None),
        (&["", "né"], "né", Some("né")),
    ] {
        let mut stops = StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect());
        stops.push(text);
        assert_eq!(stops.found(), found, "{strings:?} {text}");
        // What follows a stop changes nothing.
        if found.is_some() {
            stops.push("xabc né");
            assert_eq!(stops.found(), found, "{strings:?} {text}");
        }
    }
}

#[test]
fn only_what_may_become_a_stop_string_is_held_back() {
    let mut stops = StopStrings::new(vec!["STOP".to_owned()]);
    assert_eq!(stops.push("go ST").text, "go ");
    assert_eq!(stops.push("A").text, "STA");
    assert_eq!(stops.push("S").text, "");
    assert_eq!(stops.finish(), "S");
}

#[test]
fn passed_text_can_begin_a_stop_string_but_not_end_one() {
    for (strings, passed, then, sent) in [
        (&["\n\n"][..], &["\n"][..], "\n", Some("")),
        (&["END"], &["the END", " E"], "ND", Some("the END ")),
        (&["aa"], &["aa"], "a", Some("a")),
        (&["aa"], &["aa"], "ba", None),
        (&["é"], &["é", "é"], "e", None),
        (&["abab", "b"], &["ab", "a"], "b", Some("")),
    ] {
        let mut stops = StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect());
        let mut text = String::new();
        for piece in passed {
            let step = stops.pass(piece);
            assert!(!step.stopped, "{strings:?} {passed:?}");
            text.push_str(&step.text);
        }
        let step = stops.push(then);
        text.push_str(&step.text);
        let case = format!("{strings:?} {passed:?} {then:?}");
        assert_eq!(step.stopped, sent.is_some(), "{case}");
        let whole = passed.concat() + then;
        assert_eq!(text + &stops.finish(), sent.unwrap_or(&whole), "{case}");
    }
}

#[test]
fn nothing_is_sent_after_a_stop() {
    let mut stops = StopStrings::new(vec!["x".to_owned()]);
    assert!(stops.push("ax").stopped);
    let step = stops.push("more");
    assert!(step.stopped && step.text.is_empty() && stops.finish().is_empty());
}

proptest! {
    #[test]
    fn cutting_a_stream_elsewhere_changes_nothing(
        strings in prop::collection::vec("[abé]{0,4}", 0..4),
        pieces in prop::collection::vec("[abé]{0,5}", 0..12),
    ) {
        let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
        let text = pieces.concat();
        let sent = run(&strings, pieces.iter().map(String::as_str));
        prop_assert_eq!(&sent, &expected(&strings, &text));
    }
}
