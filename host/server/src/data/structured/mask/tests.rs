//! What may follow an output, found out ahead or not, with alternatives, after reasoning and after messages.

use infer_core::TenantId;
use infer_model::{Source, Tokenizer};
use serde_json::json;

use super::*;
use crate::data::sequence::head::Head;
use crate::data::sequence::place::Place;
use crate::data::structured::{Calling, Compiler, Messages, Shape};
use crate::shares::Holder;

const VOCAB: u32 = 1_792;
const END: u32 = 1;

fn allowed(mask: &Mask, output: &[u32]) -> Vec<u32> {
    let mut logits = vec![0.0; VOCAB as usize];
    assert!(mask.restrict(output, &mut logits), "{:?}", mask.fault());
    (0..VOCAB).filter(|&token| logits[token as usize] == 0.0).collect()
}

fn compiler() -> Compiler {
    let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
    Compiler::new(tokenizer, VOCAB, Arc::from([END]))
}

fn regex(regex: &str) -> Shape {
    let shape = Shape::of_outputs(json!({"regex": regex}).as_object().unwrap().clone());
    shape.unwrap_or_else(|error| panic!("{}", error.message()))
}

async fn masks(compiler: &Compiler, shape: &Shape, count: usize, prelude: Prelude) -> Vec<Arc<Mask>> {
    let holder = Holder { tenant: TenantId(1), alone: true };
    let masks = compiler.masks(holder, shape, count, prelude).await;
    masks.unwrap_or_else(|error| panic!("{}", error.message()))
}

#[tokio::test]
async fn what_was_found_out_ahead_is_what_a_draw_would_find_out() {
    let compiler = compiler();
    let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "string", "maxLength": 8}, "b": {"type": "integer", "maximum": 999}}});
    let shape = Shape::of_outputs(json!({"json": schema}).as_object().unwrap().clone());
    let shape = shape.unwrap_or_else(|error| panic!("{}", error.message()));
    let masks = masks(&compiler, &shape, 2, Prelude::None).await;
    let [alone, ahead] = &masks[..] else { panic!("two were asked for") };
    let mut output = Vec::new();
    for turn in 0.. {
        let follow = allowed(ahead, &output);
        assert_eq!(follow, allowed(alone, &output), "after {output:?}");
        let token = follow[turn * 7 % follow.len()];
        if token == END {
            break;
        }
        if turn % 3 == 0 {
            // A draw that came to nothing: another one is made.
            Arc::clone(ahead).drawn(follow[turn * 5 % follow.len()]);
            assert_eq!(allowed(ahead, &output), follow);
        }
        Arc::clone(ahead).drawn(token);
        output.push(token);
        if turn % 2 == 0 {
            // The threads are given the time; on the other turns whoever is first does it.
            while ahead.lock().taken.len() < output.len() {
                std::thread::yield_now();
            }
        }
    }
    let (ahead, alone) = (ahead.lock(), alone.lock());
    assert!(ahead.costs.masks >= alone.costs.masks && alone.costs.masks == alone.costs.draws, "{output:?}");
}

#[tokio::test]
async fn output_keeps_to_one_of_its_alternatives_and_to_either_until_a_token_tells() {
    let compiler = compiler();
    let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
    let (digits, letters) = (regex("x[0-9]{3}"), regex("x[a-z]{40}|x"));
    let either = mask(&digits.clone().or(letters.clone())).await;
    let (digits, letters) = (mask(&digits).await, mask(&letters).await);
    let both = |output: &[u32]| {
        let mut both = [allowed(&digits, output), allowed(&letters, output)].concat();
        both.sort_unstable();
        both.dedup();
        both
    };
    assert_eq!(allowed(&either, &[]), both(&[]));
    let begin = allowed(&letters, &[]);
    let common = *allowed(&digits, &[]).iter().find(|token| begin.contains(token)).unwrap();
    assert_eq!(allowed(&either, &[common]), both(&[common]), "either");
    let digit = allowed(&digits, &[common])[0];
    let letter = *allowed(&letters, &[common]).iter().find(|&&token| token != END).unwrap();
    // Also after a draw that was made again, with another outcome.
    for (told, alone) in [(digit, &digits), (letter, &letters), (digit, &digits)] {
        let output = [common, told];
        assert_eq!(allowed(&either, &output), allowed(alone, &output));
        let next = *allowed(alone, &output).iter().find(|&&token| token != END).unwrap();
        Arc::clone(&either).drawn(next);
        // So that it is ahead when it is asked again.
        while either.lock().taken.len() == output.len() {
            std::thread::yield_now();
        }
    }
    assert_eq!(allowed(&either, &[common]), both(&[common]), "either again");

    // An end may be drawn, and another token in its place.
    let masks = either.lock().costs.masks;
    assert!(both(&[common]).contains(&END));
    either.prepare(1, END);
    assert_eq!(allowed(&either, &[common]), both(&[common]), "either after an end");
    assert_eq!(either.lock().costs.masks, masks, "nothing was asked about an end");
    assert_eq!(allowed(&either, &[common, digit]), allowed(&digits, &[common, digit]));
}

#[tokio::test]
async fn output_goes_on_in_the_alternatives_that_are_left_when_one_fails() {
    let compiler = compiler();
    let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
    let (digits, letters) = (regex("x[0-9]{3}"), regex("x[a-z]{40}"));
    let union = digits.clone().or(letters.clone());
    let (digits, letters) = (mask(&digits).await, mask(&letters).await);
    let begin = allowed(&letters, &[]);
    let common = *allowed(&digits, &[]).iter().find(|token| begin.contains(token)).unwrap();
    let follow = [&digits, &letters].map(|mask| [allowed(mask, &[]), allowed(mask, &[common])].concat());
    let follow = follow.concat();
    let never = (200..VOCAB).find(|token| !follow.contains(token));
    let fail = |mask: &Mask, way: usize| {
        let told = mask.lock().ways[way].matcher.consume_token(never.unwrap());
        told.expect_err("it forbids the token");
    };
    // Found out when the token is taken, or by the mask that follows it, or when the output goes back.
    for (failed, left) in [(0, &letters), (1, &digits)] {
        let taking = mask(&union).await;
        assert!(!allowed(&taking, &[]).is_empty());
        fail(&taking, failed);
        assert_eq!(allowed(&taking, &[common]), allowed(left, &[common]), "{failed}");
        assert_eq!(allowed(&taking, &[]), allowed(left, &[]), "{failed}: for good");
        let asking = mask(&union).await;
        fail(&asking, failed);
        assert_eq!(allowed(&asking, &[]), allowed(left, &[]), "{failed}");
        let going_back = mask(&union).await;
        assert!(!allowed(&going_back, &[common]).is_empty());
        fail(&going_back, failed);
        assert_eq!(allowed(&going_back, &[]), allowed(left, &[]), "{failed}");
    }
    let none = mask(&union).await;
    fail(&none, 0);
    fail(&none, 1);
    assert!(!none.restrict(&[], &mut vec![0.0; VOCAB as usize]));
    assert!(!none.fault().unwrap().contains("no alternative"), "{:?}", none.fault());
}

#[tokio::test]
async fn many_sequences_have_all_alternatives_each_after_its_own_reasoning() {
    const CLOSE: u32 = 101;
    let compiler = compiler();
    let (digits, letters) = (regex("[0-9]{9}"), regex("[a-z]{40}"));
    let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
    let alone = [mask(&digits).await, mask(&letters).await];
    // More than share an automaton, and each on its own way.
    let all = masks(&compiler, &digits.or(letters), 9, Prelude::Opened { close: CLOSE }).await;
    for (at, mask) in all.iter().enumerate() {
        let alone = &alone[at % 2];
        let token = allowed(alone, &[])[at];
        assert!(allowed(mask, &[token]).contains(&CLOSE), "{at}: reasoning");
        let begin = allowed(mask, &[token, CLOSE]);
        assert!(begin.contains(&token), "{at}");
        assert!(begin.len() > allowed(alone, &[]).len(), "{at}: either");
        assert_eq!(allowed(mask, &[token, CLOSE, token]), allowed(alone, &[token]), "{at}");
    }
}

#[tokio::test]
async fn reasoning_precedes_the_shape_and_may_contain_all_but_its_end() {
    const OPEN: u32 = 100;
    const CLOSE: u32 = 101;
    let compiler = compiler();
    let shape = regex("[0-9]{8}");
    let mask = async |prelude| masks(&compiler, &shape, 1, prelude).await.remove(0);
    let all: Vec<u32> = (0..VOCAB).filter(|&token| token != END).collect();
    let plain = mask(Prelude::None).await;
    let shaped = allowed(&plain, &[]);
    let digit = shaped[0];
    let then = allowed(&plain, &[digit]);
    assert!(!shaped.contains(&OPEN) && shaped.len() < 1_000);

    let opened = mask(Prelude::Opened { close: CLOSE }).await;
    assert_eq!(allowed(&opened, &[]), all);
    assert_eq!(allowed(&opened, &[digit, 7]), all);
    assert_eq!(allowed(&opened, &[digit, 7, CLOSE]), shaped);
    assert_eq!(allowed(&opened, &[digit, 7, CLOSE, digit]), then);

    let tagged = mask(Prelude::Tagged { open: Arc::from([OPEN]), close: CLOSE }).await;
    let mut either = shaped.clone();
    either.push(OPEN);
    either.sort_unstable();
    assert_eq!(allowed(&tagged, &[]), either);
    assert_eq!(allowed(&tagged, &[digit]), then, "without reasoning");
    Arc::clone(&tagged).drawn(digit);
    for reasoning in [&[OPEN][..], &[OPEN, digit], &[OPEN, digit, 9]] {
        assert_eq!(allowed(&tagged, reasoning), all);
        Arc::clone(&tagged).drawn(digit);
    }
    assert_eq!(allowed(&tagged, &[OPEN, digit, 9, CLOSE]), shaped);
    assert_eq!(allowed(&tagged, &[OPEN, digit, 9, CLOSE, digit]), then);
}

#[tokio::test]
async fn tag_of_several_tokens_opens_the_reasoning_beside_a_form_that_begins_alike() {
    const CLOSE: u32 = 101;
    let compiler = compiler();
    let shape = regex("[0-9]{8}");
    let mask = async |prelude| masks(&compiler, &shape, 1, prelude).await.remove(0);
    let plain = mask(Prelude::None).await;
    let digit = allowed(&plain, &[])[0];
    let then = allowed(&plain, &[digit]);
    let second = (200..VOCAB).find(|token| !then.contains(token)).unwrap();
    let tagged = mask(Prelude::Tagged { open: Arc::from([digit, second]), close: CLOSE }).await;
    for _ in 0..2 {
        assert_eq!(allowed(&tagged, &[]), allowed(&plain, &[]));
        Arc::clone(&tagged).drawn(digit);
        let mut either = [&then[..], &[second]].concat();
        either.sort_unstable();
        assert_eq!(allowed(&tagged, &[digit]), either);
        Arc::clone(&tagged).drawn(second);
        let reasoning = [digit, second, digit];
        assert!(allowed(&tagged, &reasoning).contains(&CLOSE));
        let after = [&reasoning[..], &[CLOSE]].concat();
        assert_eq!(allowed(&tagged, &after), allowed(&plain, &[]));
        assert_eq!(allowed(&tagged, &[&after[..], &[digit]].concat()), then);
        assert_eq!(allowed(&tagged, &[digit, then[0]]), allowed(&plain, &[digit, then[0]]));
    }
}

#[tokio::test]
async fn form_is_that_of_the_message_in_a_channel() {
    let [channel, message, end] = [100, 101, END];
    let name: Arc<[u32]> = Arc::from([102, 103]);
    let compiler = compiler();
    let shape = regex("[0-9]{8}");
    let mask = async |opened, call| {
        let messages = Messages { channel, opened, name: Arc::clone(&name), message, call };
        masks(&compiler, &shape, 1, Prelude::Messages(messages)).await.remove(0)
    };
    let calling = |to: &str| {
        let opening = Place::Body(Head::given(format!("assistant to={to}")).unwrap());
        Calling { end, bounds: [105, 106], opening, functions: Arc::from(["f".to_owned()]) }
    };
    let plain = masks(&compiler, &shape, 1, Prelude::None).await.remove(0);
    let digits = allowed(&plain, &[]);
    let all = |may_end| (0..VOCAB).filter(|&token| token != end || may_end).collect::<Vec<u32>>();
    for (call, may_end) in
        [(None, false), (Some(calling("python")), false), (Some(calling("functions.f")), true)]
    {
        let mask = mask(false, call).await;
        let all = all(may_end);
        for before in [
            &[][..],
            &[channel, 102, message, 7],
            &[channel, 7, message, 102, 103, message, 9],
            &[channel, 102, 103],
            &[channel, 7, channel, 102, 103, 104],
        ] {
            assert_eq!(allowed(&mask, before), all, "{before:?}");
        }
        let begun = [channel, 7, message, channel, 102, 103, 104, message];
        assert_eq!(allowed(&mask, &begun), digits);
        let more = [&begun[..], &[digits[0]]].concat();
        assert_eq!(allowed(&mask, &more), allowed(&plain, &[digits[0]]));
    }
    // The prompt ends where the channel's name follows.
    let mask = mask(true, None).await;
    for before in [&[102][..], &[102, 103], &[102, message], &[7, message, 102, 103, message]] {
        assert_eq!(allowed(&mask, before), all(false), "{before:?}");
    }
    for begun in [&[102, 103, message][..], &[7, message, channel, 102, 103, message]] {
        assert_eq!(allowed(&mask, begun), digits, "{begun:?}");
    }
}

#[tokio::test]
async fn a_draw_finds_a_mask_that_is_ready() {
    let compiler = compiler();
    let shape = regex("[a-z]{40}");
    let masks = masks(&compiler, &shape, 1, Prelude::None).await;
    let mask = &masks[0];
    let token = allowed(mask, &[])[0];
    Arc::clone(mask).drawn(token);
    while mask.lock().allowed.is_none() || mask.lock().taken.is_empty() {
        std::thread::yield_now();
    }
    let before = mask.lock().costs.masks;
    assert!(!allowed(mask, &[token]).is_empty());
    assert_eq!(mask.lock().costs.masks, before, "nothing was left to compute");
}
