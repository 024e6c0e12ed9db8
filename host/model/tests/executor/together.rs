//! Prompts of ragged lengths, computed alone and together. What follows a prompt is a decode of token 3.

use crate::bits;
use crate::common::{Chunk, Driver};

/// Prompts of these lengths, of arbitrary tokens below `vocab`.
pub fn prompts(lengths: &[u32], vocab: u32) -> Vec<Vec<u32>> {
    let prompt = |&len: &u32| (0..len).map(|i| (i * i * 31 + i * 7 + len) % vocab).collect();
    lengths.iter().map(prompt).collect()
}

/// The bits of the logits of each prompt alone in one step, and of its decode.
pub fn alone(driver: &mut Driver, prompts: &[Vec<u32>]) -> Vec<[Vec<u32>; 2]> {
    let run = |prompt: &Vec<u32>| {
        let prefill = driver.run(&[Chunk { sequence: 1, start: 0, tokens: prompt }]).remove(0).0;
        let decode = driver.run(&[Chunk { sequence: 1, start: prompt.len(), tokens: &[3] }]).remove(0).0;
        driver.release(1);
        [bits(&prefill), bits(&decode)]
    };
    prompts.iter().map(run).collect()
}

/// Lets all prompts advance together, in chunks of `size` tokens; finished ones decode while the others go on. `check` gets
/// the index of a prompt, whether this is its decode (1, else 0), and the bits of its logits.
pub fn together(
    driver: &mut Driver,
    prompts: &[&Vec<u32>],
    size: usize,
    mut check: impl FnMut(usize, usize, Vec<u32>),
) {
    let mut done = vec![0; prompts.len()];
    while done.iter().zip(prompts).any(|(done, prompt)| *done <= prompt.len()) {
        let (mut chunks, mut ends) = (Vec::new(), Vec::new());
        for (i, prompt) in prompts.iter().enumerate() {
            let start = done[i];
            let tokens: &[u32] = if start < prompt.len() {
                &prompt[start..(start + size).min(prompt.len())]
            } else if start == prompt.len() {
                &[3]
            } else {
                continue;
            };
            chunks.push(Chunk { sequence: i as u64 + 1, start, tokens });
            done[i] += tokens.len();
            ends.push((i, done[i]));
        }
        for ((i, end), (logits, _)) in ends.into_iter().zip(driver.run(&chunks)) {
            if let Some(step) = end.checked_sub(prompts[i].len()) {
                check(i, step, bits(&logits));
            }
        }
    }
}
