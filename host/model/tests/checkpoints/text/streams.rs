//! The text of tokens, at once and token by token.

use super::{Golden, KINDS, llama_2, made, stream, stream_after, text};
use crate::ids;

#[test]
fn tokens_become_the_same_text_at_once_and_in_a_stream() {
    for golden in Golden::all() {
        let (encode, decode) = (golden.cases("encode"), golden.cases("decode"));
        for case in encode.iter().chain(decode) {
            // The decoded text of an encoded one is that of its ids with special tokens.
            let ids = ids(case.get("ids_with_special").unwrap_or(&case["ids"]));
            let at_once = golden.tokenizer.decode(&ids, true).expect("decodes");
            assert_eq!(at_once, text(&case["decoded_skip_special"]), "{}: {case}", golden.name);
            assert_eq!(stream(&golden.tokenizer, &ids), at_once, "{}: {case}", golden.name);
        }
    }
}

#[test]
fn a_stream_never_shows_half_a_character() {
    for golden in Golden::all() {
        for case in golden.cases("stream") {
            let mut detokenizer = golden.tokenizer.detokenizer();
            let mut shown = String::new();
            for id in ids(&case["ids"]) {
                shown.push_str(&detokenizer.push(id));
                assert!(text(&case["text"]).starts_with(&shown), "{}: {shown:?}", golden.name);
            }
            shown.push_str(&detokenizer.finish());
            assert_eq!(shown, text(&case["text"]), "{}", golden.name);
        }
    }
}

#[test]
fn only_the_first_leading_space_is_dropped() {
    let tokenizer = llama_2();
    let mut detokenizer = tokenizer.detokenizer();
    let pieces: Vec<_> = [3, 3, 1, 12, 11].into_iter().map(|id| detokenizer.push(id)).collect();
    assert_eq!(pieces, ["the", " the", " ", " x", "."]);
}

#[test]
fn continuation_of_a_prompt_keeps_its_leading_space() {
    KINDS.with(|kinds| {
        let of = |name: &str| &kinds.iter().find(|(kind, _)| *kind == name).expect("it is there").1;
        for (kind, prompt, output, text) in [
            ("llama 2", &[0, 3][..], &[3, 12, 11][..], " the x."),
            ("llama 2", &[3, 2], &[12], " x"),
            ("llama 2", &[3, 6, 7, 8], &[3], " the"),
            ("llama 2", &[6, 7, 8], &[6, 7, 8, 3], "\u{6771} the"),
            ("llama 2", &[3, 1_000], &[3], " the"),
            // After a special token, and after nothing, a new text begins.
            ("llama 2", &[0], &[3, 12], "the x"),
            ("llama 2", &[3, 0], &[3, 12], "the x"),
            ("llama 2", &[], &[3, 12], "the x"),
            ("metaspace", &[0, 4], &[3, 2, 12], " the   x"),
            ("word pieces", &[1], &[3, 2, 5], " threetwo ."),
            ("word pieces", &[0], &[3, 2], "threetwo"),
        ] {
            assert_eq!(stream_after(of(kind), prompt, output), text, "{kind} {prompt:?} {output:?}");
        }
    });
}

#[test]
fn leading_space_is_kept_after_a_long_run_of_byte_tokens() {
    let tokenizer = llama_2();
    // Whole characters up to the longest run, and one byte beyond or before it.
    for characters in 9..13 {
        let ids: Vec<u32> = [6, 7, 8].repeat(characters).into_iter().chain([9, 9, 3]).collect();
        for ids in
            [&ids[..], &[&ids[..3 * characters], &[9, 3]].concat(), &[&ids[..3 * characters], &[3]].concat()]
        {
            let whole = tokenizer.decode(ids, true).expect("decodes");
            assert_eq!(stream(&tokenizer, ids), whole, "{characters}: {ids:?}");
        }
    }
}

#[test]
fn a_long_run_of_byte_tokens_does_not_hold_everything_back() {
    let tokenizer = llama_2();
    let mut detokenizer = tokenizer.detokenizer();
    let mut shown = detokenizer.push(4);
    let mut most_held_back = 0;
    for character in 1..=100 {
        for byte in [6, 7, 8] {
            shown.push_str(&detokenizer.push(byte));
        }
        most_held_back = most_held_back.max(1 + character - shown.chars().count());
    }
    assert!(most_held_back <= 11, "{most_held_back} characters were held back");
    shown.push_str(&detokenizer.push(11));
    assert_eq!(shown, format!("a{}.", "\u{6771}".repeat(100)));
}

#[test]
fn spelled_special_token_has_its_name_as_text_between_any_others() {
    let tokenizer = llama_2();
    for (ids, text) in [
        (&[0, 3][..], "<s> the"),
        (&[3, 0, 3, 0, 0, 12], "the<s> the<s><s> x"),
        // It ends a run of bytes.
        (&[6, 7, 0, 8, 11], "\u{fffd}\u{fffd}<s>\u{fffd}."),
        (&[6, 7, 8, 0, 6, 7, 8, 11], "\u{6771}<s>\u{6771}."),
    ] {
        let mut detokenizer = tokenizer.detokenizer().spelling(&["<s>", "a", "none"]);
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        assert_eq!(shown + &detokenizer.finish(), text, "{ids:?}");
        assert_eq!(stream(&tokenizer, ids), tokenizer.decode(ids, true).expect("decodes"), "{ids:?}");
    }
}

#[test]
fn marked_special_token_is_a_character_that_text_can_not_have() {
    let tokenizer = llama_2();
    for (ids, text) in [
        (&[0, 3][..], "\u{fdd0} the"),
        (&[3, 0, 3, 0, 0, 12], "the\u{fdd0} the\u{fdd0}\u{fdd0} x"),
        // It ends a run of bytes.
        (&[6, 7, 0, 8, 11], "\u{fffd}\u{fffd}\u{fdd0}\u{fffd}."),
        (&[6, 7, 8, 0, 6, 7, 8, 11], "\u{6771}\u{fdd0}\u{6771}."),
    ] {
        let marks = [("<s>", '\u{fdd0}'), ("a", 'a'), ("none", 'n')];
        let mut detokenizer = tokenizer.detokenizer().marking(&marks);
        assert!(detokenizer.marks(0) && !detokenizer.marks(3));
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        assert_eq!(shown + &detokenizer.finish(), text, "{ids:?}");
        // The character that text has is told from the token.
        let marks = [("<s>", '\u{6771}')];
        let mut detokenizer = tokenizer.detokenizer().marking(&marks);
        let shown: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
        let expected = text.replace('\u{6771}', "\u{fffd}").replace('\u{fdd0}', "\u{6771}");
        assert_eq!(shown + &detokenizer.finish(), expected, "{ids:?}");
    }
}

/// The library's `Strip` takes a letter off both ends of a token, and panics where both are the same.
#[test]
fn token_that_the_library_panics_on_has_no_text_and_is_told() {
    let strip = serde_json::json!({"type": "Strip", "content": "a", "start": 1, "stop": 1});
    let tokenizer = made(&strip, &["<s>", "b", "a"]);
    let mut detokenizer = tokenizer.detokenizer();
    assert_eq!((detokenizer.push(1), detokenizer.has_failed()), ("b".to_owned(), false));
    assert_eq!((detokenizer.push(2), detokenizer.has_failed()), (String::new(), true));
    assert_eq!((detokenizer.push(1), detokenizer.has_failed()), ("b".to_owned(), true), "it goes on");
    let error = tokenizer.decode(&[1, 2], true).expect_err("a token can't be decoded");
    assert!(error.message.starts_with("tokens can't be turned into text"), "{error}");
}
