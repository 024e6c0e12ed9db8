//! Streams of arbitrary tokens add up to the text of the whole, with every kind of decoder.

use infer_model::StopStrings;
use proptest::prelude::*;

use super::{KINDS, stream, stream_after};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_stream_with_spelled_tokens_adds_up_to_the_whole(
        random in prop::collection::vec(0_u32..70_000, 0..60),
    ) {
        KINDS.with(|kinds| {
            for (kind, tokenizer) in kinds {
                let name = |id: &u32| tokenizer.token(*id).filter(|written| tokenizer.is_special(written));
                let spelled = (0..tokenizer.vocab_size()).find(|id| name(id).is_some()).expect("there is one");
                // Every fifth token is the spelled one.
                let ids = random.iter().zip(0..).map(|(id, at)| {
                    if at % 5 == 2 { spelled } else { id % (tokenizer.vocab_size() + 2) }
                });
                let ids: Vec<u32> = ids.collect();
                let mut detokenizer = tokenizer.detokenizer().spelling(&[&name(&spelled).expect("special")]);
                let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
                let kept: Vec<u32> =
                    ids.iter().copied().filter(|id| *id == spelled || name(id).is_none()).collect();
                let whole = tokenizer.decode(&kept, false).expect("decodes");
                prop_assert_eq!(text + &detokenizer.finish(), whole, "{} {:?}", kind, ids);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_stream_adds_up_to_the_whole(random in prop::collection::vec(0_u32..70_000, 0..60)) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                // A few ids beyond the vocabulary are among them.
                let ids: Vec<u32> = random.iter().map(|id| id % (tokenizer.vocab_size() + 2)).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                prop_assert_eq!(stream(tokenizer, &ids), whole, "{} {:?}", name, ids);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_prompt_and_what_follows_it_add_up_to_the_whole(
        random in prop::collection::vec(0_u32..70_000, 1..40),
        cut in 0_usize..40,
    ) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % tokenizer.vocab_size()).collect();
                let (prompt, output) = ids.split_at(cut.min(ids.len()));
                let text = |ids: &[u32]| tokenizer.decode(ids, true).expect("decodes");
                let last = prompt.last().and_then(|id| tokenizer.token(*id));
                let anew = last.is_none_or(|written| tokenizer.is_special(&written));
                let (whole, before) = if anew { (text(output), String::new()) } else { (text(&ids), text(prompt)) };
                // If the cut splits a character, the prompt's text is no prefix of the whole.
                let Some(expected) = whole.strip_prefix(&before) else { continue };
                if before.ends_with(char::REPLACEMENT_CHARACTER) {
                    continue;
                }
                prop_assert_eq!(stream_after(tokenizer, prompt, output), expected, "{} {:?} {:?}", name, prompt, output);
            }
            Ok(())
        })?;
    }

    #[test]
    fn what_is_shown_is_never_taken_back(random in prop::collection::vec(0_u32..70_000, 0..30)) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % (tokenizer.vocab_size() + 2)).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                let (mut detokenizer, mut shown) = (tokenizer.detokenizer(), String::new());
                for id in &ids {
                    shown.push_str(&detokenizer.push(*id));
                    // Half a character would give U+FFFD in place of a letter.
                    prop_assert!(whole.starts_with(&shown), "{} {:?}: {:?}", name, ids, shown);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_tokens_cut_it(
        random in prop::collection::vec(0_u32..70_000, 1..40),
        (from, len) in (0_usize..60, 1_usize..6),
    ) {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds {
                let ids: Vec<u32> = random.iter().map(|id| id % tokenizer.vocab_size()).collect();
                let whole = tokenizer.decode(&ids, true).expect("decodes");
                let stop: String = whole.chars().skip(from).take(len).collect();
                if stop.is_empty() {
                    continue;
                }
                let mut stops = StopStrings::new(vec![stop.clone()]);
                let (mut detokenizer, mut shown, mut stopped) = (tokenizer.detokenizer(), String::new(), false);
                for id in ids.iter().map(Some).chain([None]) {
                    let text = match id {
                        Some(&id) => detokenizer.push(id),
                        None => detokenizer.finish(),
                    };
                    let step = stops.push(&text);
                    shown.push_str(&step.text);
                    stopped = step.stopped;
                    if stopped {
                        break;
                    }
                }
                let end = whole.find(&stop).expect("it is part of the text");
                prop_assert!(stopped, "{} {:?} {:?}", name, ids, stop);
                prop_assert_eq!(&shown, &whole[..end], "{} {:?} {:?}", name, ids, stop);
            }
            Ok(())
        })?;
    }

    #[test]
    fn text_survives_tokens_and_a_stream(text in "\\PC{0,40}") {
        KINDS.with(|kinds| {
            for (name, tokenizer) in kinds.iter().filter(|(name, _)| name.starts_with("llama-")) {
                let ids = tokenizer.encode(&text, true).expect("encodes");
                prop_assert_eq!(stream(tokenizer, &ids), text.clone(), "{}", name);
            }
            Ok(())
        })?;
    }
}
