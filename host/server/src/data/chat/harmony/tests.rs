//! Outputs as gpt-oss writes them and as it shouldn't, in pieces of any size.

use std::sync::Arc;

use infer_chat::Tools;
use infer_core::FinishReason;
use infer_model::{Source, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::data::chat::calls::joined;
use crate::data::chat::{Expected, Speaker, Speech};
use crate::data::sequence::marks::{NAMES, marked};
use crate::data::sequence::outcome::Outcome;
use crate::data::structured::{Calling, Messages, Prelude};

fn speech(opening: &str) -> Speech {
    Speech {
        reasoning: Expected::Tagged,
        shaped: false,
        style: Tools::Harmony,
        names: vec!["time".to_owned(), "weather".to_owned()],
        forced: false,
        parallel: true,
        opening: Some(Opening::after(opening)),
    }
}

/// What follows `<|start|>assistant`, as most templates end.
fn replying() -> Speech {
    speech("<|start|>user<|message|>a<|end|><|start|>assistant")
}

/// The parts of an output that comes in pieces of this many characters, with adjacent ones joined.
fn read(speech: &Speech, output: &str, width: usize) -> Vec<Part> {
    let letters: Vec<char> = marked(output).chars().collect();
    let mut speaker = Speaker::new(speech);
    let mut parts = Vec::new();
    for piece in letters.chunks(width) {
        parts.extend(speaker.push(piece.iter().collect()));
    }
    parts.extend(speaker.finish());
    joined(parts)
}

fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn call(name: &str, arguments: &str) -> Vec<Part> {
    vec![Part::Call { name: name.to_owned() }, Part::Arguments(arguments.to_owned()), Part::Done]
}

fn check(speech: &Speech, output: &str, parts: &[Part]) {
    for width in [1, 2, 7, 10_000] {
        assert_eq!(read(speech, output, width), parts, "{output:?} by {width}");
    }
}

const THOUGHT: &str = "<|channel|>analysis<|message|>Let me see.<|end|>";

#[test]
fn channels_tell_reasoning_from_calls_and_the_reply() {
    let speech = replying();
    let thought = reasoning("Let me see.");
    let after = |rest: &str| format!("{THOUGHT}<|start|>assistant{rest}");
    let then = |rest: Vec<Part>| [vec![thought.clone()], rest].concat();
    for (output, parts) in [
        (after("<|channel|>final<|message|> Four.\n<|return|>"), then(vec![text(" Four.\n")])),
        (
            after("<|channel|>commentary to=functions.time <|constrain|>json<|message|>{\"a\": 1}<|call|>"),
            then(call("time", "{\"a\": 1}")),
        ),
        (
            after(" to=functions.time<|channel|>commentary json<|message|>{\"a\": 1}<|call|>"),
            then(call("time", "{\"a\": 1}")),
        ),
        // A preamble is for the user.
        (
            after(
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
                 to=functions.weather <|constrain|>json<|message|>{}<|call|>",
            ),
            then([vec![text("I look.")], call("weather", "{}")].concat()),
        ),
        // Messages of a kind are paragraphs.
        (
            format!("{THOUGHT}<|start|>assistant{}", after("<|channel|>final<|message|>Four.<|return|>")),
            vec![reasoning("Let me see.\n\nLet me see."), text("Four.")],
        ),
        (
            "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two."
                .to_owned(),
            vec![text("One.\n\nTwo.")],
        ),
        // Arguments that are missing are none, unless the output is cut off.
        ("<|channel|>commentary to=functions.time<|message|> <|call|>".to_owned(), call("time", "{}")),
        ("<|channel|>commentary to=functions.time<|call|>".to_owned(), call("time", "{}")),
        (
            "<|channel|>commentary to=functions.time<|message|>".to_owned(),
            vec![Part::Call { name: "time".to_owned() }],
        ),
        (
            "<|channel|>commentary to=functions.time<|message|>{\"a\":".to_owned(),
            vec![Part::Call { name: "time".to_owned() }, Part::Arguments("{\"a\":".to_owned())],
        ),
        ("<|channel|>commentary to=functions.time<|message|>{}".to_owned(), call("time", "{}")),
        // Without its namespace only a function that is offered.
        ("<|channel|>commentary to=time<|message|>{}<|call|>".to_owned(), call("time", "{}")),
        ("<|channel|>commentary to=python<|message|>1 + 1<|call|>".to_owned(), vec![text("1 + 1")]),
    ] {
        check(&speech, &output, &parts);
    }
    let unseparated = Speech { reasoning: Expected::Never, ..speech.clone() };
    let output = after("<|channel|>final<|message|>Four.<|return|>");
    check(&unseparated, &output, &[text("Let me see.\n\nFour.")]);
    let no_calls = Speech { names: Vec::new(), ..speech.clone() };
    let output = after("<|channel|>commentary to=functions.time<|message|>{}<|call|>");
    check(&no_calls, &output, &[thought.clone(), text("{}")]);
    let shaped = Speech { shaped: true, ..speech };
    let output = "<|channel|>commentary<|message|>I count.<|end|><|start|>assistant<|channel|>final \
        <|constrain|>json<|message|>{}<|return|>";
    check(&shaped, output, &[reasoning("I count."), text("{}")]);
    // Nothing but the message in the final channel has the form.
    let output = "Sure.<|end|><|message|>So.<|end|>Well.<|start|>assistant<|channel|>other<|message|>Now.<|end|>\
        <|start|>assistant<|channel|>final<|message|>{}<|return|>";
    check(&shaped, output, &[reasoning("Sure.\n\nSo.\n\nWell.\n\nNow."), text("{}")]);
}

#[test]
fn nothing_is_lost_of_what_is_malformed() {
    let speech = replying();
    let long = "x".repeat(2_000);
    let broken = vec![Part::Call { name: "time".to_owned() }, Part::Arguments("{".to_owned()), Part::Done];
    for (output, parts) in [
        ("", vec![]),
        ("Hello", vec![text("Hello")]),
        (" Hello <|return|> ", vec![text(" Hello ")]),
        ("<|message|>Hello<|end|>", vec![text("Hello")]),
        ("<|channel|>other<|message|>Hello<|end|>", vec![text("Hello")]),
        ("<|channel|>analysisLet me see.<|end|>", vec![reasoning("Let me see.")]),
        ("<|channel|>finalFour.<|return|>", vec![text("Four.")]),
        ("<|channel|>final Four.", vec![text("Four.")]),
        ("<|channel|>commentary to=functions.time {}<|call|>", call("time", "{}")),
        ("<|channel|>commentary to=functions.time<|message|>{<|call|>", broken),
        // The end of a message and the begin of the next are left out, or come twice.
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", vec![reasoning("a"), text("b")]),
        (
            "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
            vec![reasoning("a"), text("b")],
        ),
        (
            "<|channel|>analysis<|message|>a<|message|>b<|constrain|>c<|end|><|end|><|return|>",
            vec![reasoning("abc")],
        ),
        ("<|channel|>analysis<|message|>a<|end|> \n b", vec![reasoning("a"), text("b")]),
        ("<|start|><|start|>Hello<|end|>", vec![text("Hello")]),
        ("<|end|><|constrain|><|message|>a", vec![text("a")]),
        // Heads that are cut off.
        ("<|channel|>", vec![]),
        ("<|channel|>analysis", vec![]),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant", vec![reasoning("a")]),
        ("<|channel|>commentary to=functions.wea", vec![]),
        // Spelled out.
        ("<|channel|>final<|message|>< |end|> <| call |>", vec![text("< |end|> <| call |>")]),
    ] {
        check(&speech, output, &parts);
    }
    // What is too long for a head.
    for (output, parts) in [
        (long.clone(), vec![text(&long)]),
        (format!("<|channel|>analysis{long}<|end|>"), vec![reasoning(&long)]),
        (format!("<|start|>{long}<|channel|>final<|message|>b"), vec![text(&format!("{long}\n\nb"))]),
    ] {
        check(&speech, &output, &parts);
    }
}

#[test]
fn output_goes_on_where_the_prompt_ends() {
    for (prompt, output, parts) in [
        ("<|start|>assistant<|channel|>analysis<|message|>", "a<|end|>", vec![reasoning("a")]),
        ("<|start|>assistant<|channel|>analysis<|message|>We", " a<|end|>", vec![reasoning(" a")]),
        ("<|start|>assistant<|channel|>final<|message|>One", " two<|return|>", vec![text(" two")]),
        ("<|start|>assistant<|channel|>final", "<|message|>a<|return|>", vec![text("a")]),
        ("<|start|>assistant<|channel|>", "analysis<|message|>a<|end|>", vec![reasoning("a")]),
        (
            "<|start|>user<|message|>a<|end|>",
            "<|start|>assistant<|channel|>final<|message|>b",
            vec![text("b")],
        ),
        ("nothing of this kind", "<|channel|>analysis<|message|>a", vec![reasoning("a")]),
    ] {
        check(&speech(prompt), output, &parts);
    }
    let long = format!("<|start|>{}", "a".repeat(1_000));
    assert_eq!(Opening::after(&long), Opening::Between);
}

#[test]
fn finish_reason_says_whether_a_call_is_to_be_made() {
    use FinishReason::{Eos, Length, Stop};
    let calling = |arguments: &str| {
        format!("{THOUGHT}<|start|>assistant<|channel|>commentary to=functions.time<|message|>{arguments}")
    };
    for (output, reason, expected) in [
        (calling("{}<|call|>"), Eos, "tool_calls"),
        (calling("{}<|call|>"), Stop, "tool_calls"),
        (calling("{}"), Eos, "tool_calls"),
        (calling("<|call|>"), Eos, "tool_calls"),
        (calling("{}"), Length, "length"),
        (calling("{\"a\""), Eos, "stop"),
        (calling("{oops}<|call|>"), Eos, "stop"),
        (calling("[1]<|call|>"), Eos, "stop"),
        (format!("{THOUGHT}<|start|>assistant<|channel|>final<|message|>a<|return|>"), Eos, "stop"),
    ] {
        let mut speaker = Speaker::new(&replying());
        speaker.push(marked(&output));
        speaker.finish();
        assert_eq!(speaker.reason(&Outcome::ended(reason)).as_deref(), Some(expected), "{output}");
    }
}

#[test]
fn tokens_of_the_reasoning_are_those_from_its_channel_to_its_end() {
    let mut speaker = Speaker::new(&replying());
    let tokens = ["<|channel|>", "analysis", "<|message|>", "Let", " me", "<|end|>"];
    let reply = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "a", "<|return|>"];
    let mut aside = Vec::new();
    for token in tokens.into_iter().chain(reply) {
        speaker.token(marked(token));
        aside.push(speaker.is_aside());
    }
    speaker.finish();
    assert_eq!(speaker.reasoning_tokens(), 5);
    let replying: Vec<usize> = (0..aside.len()).filter(|&at| !aside[at]).collect();
    assert_eq!(replying, [10, 11], "from the end of the head to that of the message");
}

#[test]
fn head_of_a_call_is_no_reasoning_beside_a_required_form() {
    let call = ["<|channel|>", "commentary", " to", "=functions", ".time", " ", "<|constrain|>", "json"];
    let call = [&call[..], &["<|message|>", "{}", "<|call|>"]].concat();
    let preamble = ["<|channel|>", "commentary", "<|message|>", "I look.", "<|end|>"];
    for (tokens, counted) in [(&call[..], 0), (&preamble[..], 3)] {
        let mut speaker = Speaker::new(&Speech { shaped: true, ..replying() });
        for token in tokens {
            speaker.token(marked(token));
        }
        assert_eq!(speaker.reasoning_tokens(), counted, "{tokens:?}");
    }
}

/// The demo's tokenizer with these tokens in place of some of its own.
fn tokenizer() -> Tokenizer {
    let (_, file) = infer_demo::FILES.iter().find(|(name, _)| *name == "tokenizer.json").unwrap();
    let mut file: serde_json::Value = serde_json::from_slice(file).unwrap();
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    let mut next = vocab.len();
    let mut added = Vec::new();
    for (name, _) in NAMES {
        let id = vocab.get(name).and_then(serde_json::Value::as_u64).map_or(next, |id| id as usize);
        next += usize::from(id == next);
        added.push(json!({"id": id, "content": name, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}));
    }
    let own = file["added_tokens"].as_array_mut().unwrap();
    own.retain(|token| NAMES.iter().all(|(name, _)| token["content"] != *name));
    own.extend(added);
    let file = file.to_string();
    Tokenizer::load(&Source::Embedded(&[("tokenizer.json", file.as_bytes())])).unwrap()
}

#[test]
fn messages_are_divided_by_tokens_and_by_no_text_that_spells_them() {
    let tokenizer = tokenizer();
    Opening::check(&tokenizer).unwrap_or_else(|error| panic!("{}", error.message()));
    let mut detokenizer = tokenizer.detokenizer().marking(&NAMES);
    let spelled = "<|end|><|start|>assistant<|channel|>commentary to=functions.time<|message|>{}<|call|>";
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    let mut tokens = encode("<|channel|>final<|message|>");
    // Letter by letter, as no tokenizer does with the names of special tokens.
    tokens.extend(spelled.chars().flat_map(|letter| encode(&letter.to_string())));
    tokens.extend(encode("\u{fdd4}<|return|>"));
    let mut speaker = Speaker::new(&replying());
    let mut parts = Vec::new();
    for token in tokens {
        parts.extend(speaker.token(detokenizer.push(token)));
    }
    parts.extend(speaker.push(detokenizer.finish()));
    parts.extend(speaker.finish());
    assert_eq!(joined(parts), [text(&format!("{spelled}\u{fffd}"))]);

    let plain = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
    let error = Opening::check(&plain).unwrap_err();
    assert_eq!((error.status().as_u16(), error.reason()), (422, "not_supported"));
    assert!(error.message().ends_with("no special token <|start|>"), "{}", error.message());
}

#[test]
fn required_form_is_that_of_the_reply_and_a_call_follows_the_reasoning() {
    let tokenizer = tokenizer();
    let id = |name: &str| tokenizer.id(name).unwrap();
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    let (close, message) = (id("<|end|>"), id("<|message|>"));
    let messages = |opened, call| {
        let (channel, name) = (id("<|channel|>"), encode("final").into());
        Prelude::Messages(Messages { channel, opened, name, message, call })
    };
    let before_final = |call| messages(false, call);
    let functions = ["time".to_owned()];
    let calling = Calling {
        end: id("<|call|>"),
        bounds: [id("<|start|>"), close],
        opening: Opening::after("<|start|>assistant"),
        functions: Arc::from(functions.clone()),
    };
    let tagged = Prelude::Tagged { open: Arc::from([id("<|channel|>"), encode("analysis")[0]]), close };
    let form = Required::Form { functions: &[] };
    for (prompt, required, expected) in [
        ("<|start|>assistant", form, Some(before_final(None))),
        ("<|start|>assistant", Required::Form { functions: &functions }, Some(before_final(Some(calling)))),
        ("<|start|>assistant<|channel|>analysis<|message|>", form, Some(before_final(None))),
        ("<|start|>assistant<|channel|>", form, Some(messages(true, None))),
        ("<|start|>assistant<|channel|>final", form, Some(Prelude::Opened { close: message })),
        ("<|start|>assistant<|channel|>final<|message|>One", form, Some(Prelude::None)),
        ("<|start|>assistant", Required::Call, Some(tagged.clone())),
        ("<|start|>user<|message|>a<|end|>", Required::Call, Some(tagged)),
        ("<|start|>assistant<|channel|>analysis<|message|>", Required::Call, Some(Prelude::Opened { close })),
        ("<|start|>assistant<|channel|>", Required::Call, None),
        ("<|start|>assistant<|channel|>final<|message|>One", Required::Call, None),
    ] {
        match (Opening::after(prompt).prelude(required, &tokenizer), expected) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{prompt}"),
            (Err(error), None) => assert!(error.message().starts_with("tool_choice: "), "{prompt}"),
            (found, _) => panic!("{prompt}: {:?}", found.map_err(|error| error.message().to_owned())),
        }
    }
}

#[test]
fn only_a_call_may_take_the_place_of_a_form() {
    let (tokenizer, functions) = (tokenizer(), ["time".to_owned()]);
    let thought = format!("{THOUGHT}<|start|>assistant");
    let calling = "<|channel|>commentary to=functions.time <|constrain|>json<|message|>";
    for (prompt, output, may_end) in [
        ("<|start|>assistant", String::new(), false),
        ("<|start|>assistant", "<|channel|>analysis<|message|>Let me call.".to_owned(), false),
        ("<|start|>assistant", "<|channel|>analysis<|message|> to=functions.time".to_owned(), false),
        ("<|start|>assistant", format!("{thought}<|channel|>commentary<|message|>I look."), false),
        ("<|start|>assistant", format!("{thought}<|channel|>commentary to=python<|message|>1"), false),
        ("<|start|>assistant", format!("{thought}{calling}"), true),
        ("<|start|>assistant", format!("{thought}{calling}{{\"a\": 1}}"), true),
        ("<|start|>assistant", format!("{thought}{calling}{{}}<|end|>"), false),
        ("<|start|>assistant", format!("{thought}{calling}{{}}<|channel|>analysis<|message|>a"), false),
        (
            "<|start|>assistant",
            format!("{thought} to=functions.time<|channel|>commentary<|message|>{{}}"),
            true,
        ),
        ("<|start|>assistant", format!("{thought}<|channel|>commentary to=time"), true),
        ("<|start|>assistant", " to=functions.time<|channel|>commentary<|message|>".to_owned(), true),
        ("<|start|>assistant", "I do. to=functions.time".to_owned(), false),
        ("<|start|>assistant<|channel|>analysis<|message|>", "a".to_owned(), false),
        ("<|start|>assistant to=functions.time<|channel|>commentary<|message|>", "{}".to_owned(), true),
        ("<|start|>assistant<|channel|>commentary", " to=functions.time<|message|>".to_owned(), true),
    ] {
        let prelude = Opening::after(prompt).prelude(Required::Form { functions: &functions }, &tokenizer);
        let prelude = prelude.unwrap_or_else(|error| panic!("{}", error.message()));
        let tokens = tokenizer.encode(&output, false).unwrap();
        let expected = may_end.then(|| tokenizer.id("<|call|>").unwrap());
        assert_eq!(prelude.may_end(&tokens, &tokenizer), expected, "{prompt}: {output}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn parts_do_not_depend_on_how_the_output_is_split(
        chosen in prop::collection::vec(0_usize..25, 0..24),
        opening in 0_usize..4,
        shaped in any::<bool>(),
        widths in prop::collection::vec(1_usize..9, 1..6),
    ) {
        let words = [
            "analysis", "commentary", "final", "assistant", " to=functions.time", " json", "user", " ", "a",
            "Hello there, ", "{\"a\": 1}", "é🙂", "to=", "\n\n", "to=weather", "fin", "functions.x",
        ];
        let long = "y".repeat(300);
        let words: Vec<&str> =
            words.into_iter().chain(NAMES.map(|(name, _)| name)).chain([long.as_str()]).collect();
        let output: String = chosen.iter().map(|&at| words[at % words.len()]).collect();
        let openings = [
            "<|start|>assistant", "<|start|>assistant<|channel|>analysis<|message|>",
            "<|start|>assistant<|channel|>final<|message|>a", "a<|end|>",
        ];
        let speech = Speech { shaped, ..speech(openings[opening]) };
        let whole = read(&speech, &output, usize::MAX >> 1);
        let letters: Vec<char> = marked(&output).chars().collect();
        let mut speaker = Speaker::new(&speech);
        let (mut parts, mut rest, mut turn) = (Vec::new(), letters.as_slice(), 0);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(widths[turn % widths.len()].min(rest.len()));
            parts.extend(speaker.push(piece.iter().collect()));
            (rest, turn) = (after, turn + 1);
        }
        parts.extend(speaker.finish());
        prop_assert_eq!(joined(parts), whole, "{:?}", output);
    }

    #[test]
    fn stop_strings_are_looked_for_where_a_client_gets_text(
        chosen in prop::collection::vec(0_usize..17, 0..24),
        opening in 0_usize..4,
        shaped in any::<bool>(),
    ) {
        let words = ["final", "assistant", " to=functions.time", " json", " ", "a", "to=", "Hello there, ", "\n\n"];
        let long = "y".repeat(300);
        let words: Vec<&str> =
            words.into_iter().chain(NAMES.map(|(name, _)| name)).chain([long.as_str()]).collect();
        let output: String = chosen.iter().map(|&at| words[at]).collect();
        let prompts = ["<|start|>assistant", "<|start|>assistant<|channel|>", "<|start|>assistant<|message|>", "<|end|>"];
        let opening = Opening::after(prompts[opening]);
        let (mut place, mut harmony) = (opening.clone(), Harmony::new(&opening, vec!["time".to_owned()], true, shaped));
        for letter in marked(&output).chars() {
            for (text, mark) in pieces(letter.encode_utf8(&mut [0; 4])) {
                place.text(text);
                mark.into_iter().for_each(|mark| place.mark(mark));
            }
            harmony.push(letter.encode_utf8(&mut [0; 4]));
            let is_message = !matches!(harmony.state, State::Between | State::Head(_));
            prop_assert_eq!(matches!(place, Opening::Body(_)), is_message, "{:?}", output);
        }
    }
}
