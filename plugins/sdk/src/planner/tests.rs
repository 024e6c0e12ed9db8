//! Plans by hand and properties over random views.

use super::*;
use crate::testing::{check_fit, check_plan, for_seeds, hostile_step, limits, random_step, step_of};
use crate::{Limits, Row};

fn decode(id: u64, computed_tokens: u32) -> Row {
    let blocks = computed_tokens.div_ceil(16);
    Row {
        id,
        prompt_tokens: computed_tokens,
        computed_tokens,
        generated_tokens: 1,
        max_new_tokens: 100,
        blocks,
        freeable_blocks: blocks,
        ..Row::default()
    }
}

fn prompt(id: u64, prompt_tokens: u32, computed_tokens: u32) -> Row {
    let blocks = computed_tokens.div_ceil(16);
    Row {
        id,
        prompt_tokens,
        computed_tokens,
        max_new_tokens: 100,
        blocks,
        freeable_blocks: blocks,
        ..Row::default()
    }
}

fn ids(ids: &[crate::SequenceId]) -> Vec<u64> {
    ids.iter().map(|id| id.0).collect()
}

#[test]
fn decodes_go_before_prompts_and_prompts_in_chunks() {
    let step = step_of(&[prompt(1, 1_000, 0), decode(2, 20), prompt(3, 40, 32)], &[], 1_000);
    let mut planner = Planner::new(&step);
    assert_eq!(planner.go_on(), 0);
    let plan = planner.finish();
    assert_eq!((ids(&plan.run), plan.tokens), (vec![2, 1, 3], vec![1, 512, 8]));
}

#[test]
fn the_latest_to_start_are_preempted_until_the_others_can_continue() {
    let step = step_of(&[decode(1, 32), decode(2, 32), decode(3, 32)], &[], 0);
    let mut planner = Planner::new(&step);
    assert_eq!(planner.go_on(), 1);
    let plan = planner.finish();
    assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![1, 2], vec![3]));
}

#[test]
fn nothing_is_preempted_while_the_last_blocks_have_room() {
    let step = step_of(&[decode(1, 31), decode(2, 17)], &[], 0);
    let mut planner = Planner::new(&step);
    assert_eq!(planner.go_on(), 0);
    assert_eq!(planner.finish().tokens, [1, 1]);
}

#[test]
fn a_lone_sequence_continues_even_if_memory_seems_full() {
    let step = step_of(&[decode(1, 32)], &[], 0);
    let mut planner = Planner::new(&step);
    assert_eq!(planner.go_on(), 0);
    assert_eq!(ids(&planner.finish().run), [1]);
}

#[test]
fn a_long_prompt_leaves_the_others_their_share() {
    let mut step = step_of(&[prompt(1, 1_000, 0), prompt(2, 1_000, 0), prompt(3, 1_000, 0)], &[], 1_000);
    step.limits = Limits { max_batch_tokens: 100, ..limits() };
    let mut planner = Planner::new(&step);
    planner.go_on();
    assert_eq!(planner.finish().tokens, [68, 16, 16]);
}

#[test]
fn the_least_worthy_is_preempted_and_the_worthiest_prompt_is_computed_first() {
    let of_worth = |row: Row, priority| Row { priority, ..row };
    let step = step_of(&[of_worth(decode(1, 32), 1), decode(2, 32), of_worth(decode(3, 32), 1)], &[], 0);
    let mut planner = Planner::new(&step);
    assert_eq!(planner.go_on_by(|s| s.priority()), 1);
    assert_eq!(planner.slots_left(), limits().max_running - 2, "its slot is free");
    let plan = planner.finish();
    assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![1, 3], vec![2]));

    let prompts = [prompt(1, 1_000, 0), of_worth(prompt(2, 1_000, 0), 1)];
    let step = Step { limits: Limits { max_batch_tokens: 100, ..limits() }, ..step_of(&prompts, &[], 99) };
    let mut planner = Planner::new(&step);
    planner.go_on_by(|s| s.priority());
    let plan = planner.finish();
    assert_eq!((ids(&plan.run), plan.tokens), (vec![2, 1], vec![84, 16]));
}

#[test]
fn who_was_preempted_before_does_not_go_on() {
    let step = step_of(&[decode(1, 32), decode(2, 32)], &[prompt(3, 20, 0)], 0);
    let mut planner = Planner::new(&step);
    planner.preempt(step.running.get(0));
    assert_eq!(planner.go_on(), 0, "what it gave back is enough for the other");
    let plan = planner.finish();
    assert_eq!((ids(&plan.run), ids(&plan.preempt)), (vec![2], vec![1]));
}

#[test]
fn prompt_tokens_can_be_limited_below_the_limit() {
    let step = step_of(&[prompt(1, 1_000, 0), prompt(2, 1_000, 0)], &[], 100);
    let mut planner = Planner::new(&step);
    planner.limit_prompt_tokens(40);
    planner.go_on();
    assert_eq!(planner.finish().tokens, [24, 16]);
}

#[test]
fn a_failed_start_names_what_is_short() {
    let mut step = step_of(&[decode(1, 20)], &[prompt(2, 100, 0)], 6);
    let start = |step: &Step| Planner::new(step).start(step.waiting.get(0), u32::MAX);
    assert_eq!(start(&step), Err(Short::Memory));
    step.memory.free_blocks = 7;
    assert_eq!(start(&step), Ok(100));
    step.limits.max_prefill_sequences = 0;
    assert_eq!(start(&step), Err(Short::Compute));
    step.limits.max_running = 1;
    assert_eq!(start(&step), Err(Short::Slots));
}

#[test]
fn a_fully_cached_prompt_starts_without_tokens() {
    let mut full = prompt(2, 40, 40);
    (full.blocks, full.idle_blocks) = (0, 2);
    let mut step = step_of(&[], &[full], 2);
    assert_eq!(
        Planner::new(&step).start(step.waiting.get(0), 8),
        Err(Short::Memory),
        "the last block is copied"
    );
    step.memory.free_blocks = 3;
    step.limits.max_prefill_sequences = 0;
    assert_eq!(Planner::new(&step).start(step.waiting.get(0), 8), Ok(0));
}

#[test]
fn the_fast_path_plans_like_the_slow_one() {
    let mut usual = 0;
    for_seeds(0..3_000, |rng| {
        let step = random_step(rng);
        let worth = |sequence: Sequence<'_>| sequence.priority();
        let (mut at_once, mut one_by_one) = (Planner::new(&step), Planner::new(&step));
        usual += u32::from(Planner::new(&step).go_on_with_decodes().is_some());
        assert_eq!(at_once.go_on_by(worth), one_by_one.go_on_one_by_one(worth));
        assert_eq!(
            (at_once.blocks, at_once.tokens, at_once.promised_blocks),
            (one_by_one.blocks, one_by_one.tokens, one_by_one.promised_blocks)
        );
        assert_eq!(at_once.finish(), one_by_one.finish());
    });
    assert!(usual > 1_000, "{usual}");
}

#[test]
fn plans_keep_the_rules_for_any_view() {
    for_seeds(0..3_000, |rng| {
        let step = random_step(rng);
        let mut planner = Planner::new(&step);
        planner.go_on();
        for sequence in step.waiting.iter() {
            let _ = planner.start(sequence, rng.between(1, 100));
        }
        let plan = planner.finish();
        check_plan(&step, &plan).unwrap();
        if step.running.len() - plan.preempt.len() != 1 {
            check_fit(&step, &plan).unwrap();
        }
    });
}

#[test]
fn hostile_views_get_an_answer() {
    for_seeds(0..3_000, |rng| {
        let step = hostile_step(rng);
        let mut planner = Planner::new(&step);
        planner.go_on();
        for sequence in step.waiting.iter() {
            let _ = planner.start(sequence, u32::MAX);
        }
        let plan = planner.finish();
        assert_eq!(plan.run.len(), plan.tokens.len());
    });
}
