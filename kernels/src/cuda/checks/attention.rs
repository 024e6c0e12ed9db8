//! Attention through block tables.

use std::sync::Arc;

use super::support::{Effort, compare, indexes, numbers, poisoned, said, tolerance};
use crate::AttentionParams as Rules;
use crate::Random;
use crate::cuda::{
    self, AttentionParams, AttentionShape, Buffer, Device, KvWriteParams, NONE, Partition, PrefillForm, Type,
};
use crate::reference;

const TYPES: [Type; 3] = [Type::F32, Type::Bf16, Type::F16];
const WIDTHS: [usize; 9] = [16, 20, 32, 64, 80, 96, 128, 192, 256];

/// Sequences whose blocks are scattered over a pool, and those of their tokens that attend.
struct Scene {
    shape: AttentionShape,
    rules: Rules<'static>,
    /// Of each query head, if they have some.
    sinks: Option<Vec<f32>>,
    block_size: usize,
    /// Keys and values of each sequence, `[head][position][dimension]`.
    contexts: Vec<[Vec<f32>; 2]>,
    lens: Vec<usize>,
    /// Sequence and position of each token, grouped by sequence and in order.
    tokens: Vec<(usize, usize)>,
    /// Where the pool has each token's keys and values.
    slots: Vec<u32>,
    q: Vec<f32>,
    q_stride: usize,
    on_device: [Buffer; 6],
    sinks_on_device: Option<Buffer>,
}

impl Scene {
    /// The last `tails[i]` of the `lens[i]` tokens of sequence `i` attend.
    fn new(
        device: &Arc<dyn Device>,
        random: &mut Random,
        shape: AttentionShape,
        lens: Vec<usize>,
        tails: &[usize],
    ) -> Result<Self, String> {
        let AttentionShape { ty, heads, kv_heads, head_dim } = shape;
        let (heads, kv_heads, width) = (heads as usize, kv_heads as usize, head_dim as usize);
        let block_size = random.one_of(&[1, 5, 16, 16, 32, 48]);
        let window = random.one_of(&[0, 0, 1, 7, 16, 40]);
        let soft_cap = random.one_of(&[0.0, 0.0, 2.0]);
        let rules = Rules {
            heads,
            scale: 1.5 / (width as f32).sqrt(),
            soft_cap: (soft_cap > 0.0).then_some(soft_cap),
            window: (window > 0).then_some(window),
            sinks: None,
        };
        // Some weigh about as much as a token, some nothing, some more than all tokens together.
        let nothing = f32::NEG_INFINITY;
        let sinks = (random.size(0, 1) == 1).then(|| {
            (0..heads).map(|_| random.one_of(&[nothing, -200.0, -1.0, 0.3, 2.0, 5.0, 9.0, 150.0])).collect()
        });
        let blocks: usize = lens.iter().map(|len| len.div_ceil(block_size)).sum::<usize>() + 2;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, random.size(0, i));
        }
        let pool = blocks * block_size * kv_heads * width;
        let mut pools = [vec![f32::NAN; pool], vec![f32::NAN; pool]];
        let (mut contexts, mut tables, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for len in &lens {
            let table: Vec<u32> =
                (0..len.div_ceil(block_size)).map(|_| free.pop().expect("enough blocks")).collect();
            let context = [0, 1].map(|_| random.rounded(ty, kv_heads * len * width));
            for (pool, numbers) in pools.iter_mut().zip(&context) {
                for (place, row) in numbers.chunks(width).enumerate() {
                    let (head, position) = (place / len, place % len);
                    let block = table[position / block_size] as usize;
                    let start = ((block * kv_heads + head) * block_size + position % block_size) * width;
                    pool[start..start + width].copy_from_slice(row);
                }
            }
            contexts.push(context);
            starts.push(tables.len() as u32);
            tables.extend(table);
        }
        let tokens: Vec<(usize, usize)> = (lens.iter().zip(tails).enumerate())
            .flat_map(|(sequence, (len, tail))| (len - tail..*len).map(move |position| (sequence, position)))
            .collect();
        // Queries are part of wider rows, as after a projection.
        let q_stride = heads * width + 8 * random.size(0, 2);
        let q = random.rounded(ty, tokens.len() * q_stride);
        let positions: Vec<u32> = tokens.iter().map(|(_, position)| *position as u32).collect();
        let spans: Vec<u32> = tokens.iter().map(|(sequence, _)| starts[*sequence]).collect();
        let slot = |start: u32, position: usize| {
            tables[start as usize + position / block_size] * block_size as u32
                + (position % block_size) as u32
        };
        let slots = spans.iter().zip(&tokens).map(|(start, (_, position))| slot(*start, *position)).collect();
        let on_device = [
            numbers(device, ty, &q)?,
            numbers(device, ty, &pools[0])?,
            numbers(device, ty, &pools[1])?,
            indexes(device, &positions)?,
            indexes(device, &spans)?,
            indexes(device, &tables)?,
        ];
        let sinks_on_device = sinks.as_ref().map(|sinks: &Vec<f32>| numbers(device, Type::F32, sinks));
        Ok(Self {
            shape,
            rules,
            sinks_on_device: sinks_on_device.transpose()?,
            sinks,
            block_size,
            contexts,
            lens,
            tokens,
            slots,
            q,
            q_stride,
            on_device,
        })
    }

    fn params(&self, items: &Buffer, out: &Buffer) -> AttentionParams {
        let [q, keys, values, positions, tables, blocks] = self.on_device.each_ref().map(Buffer::at);
        AttentionParams {
            q,
            keys,
            values,
            out: out.at(),
            positions,
            tables,
            blocks,
            sinks: self.sinks_on_device.as_ref().map_or(0, Buffer::at),
            items: items.at(),
            q_stride: self.q_stride as u32,
            block_size: self.block_size as u32,
            window: self.rules.window.unwrap_or(0),
            scale: self.rules.scale,
            soft_cap: self.rules.soft_cap.unwrap_or(0.0),
            ..AttentionParams::default()
        }
    }

    fn out_numbers(&self) -> usize {
        self.tokens.len() * (self.shape.heads * self.shape.head_dim) as usize
    }

    fn want(&self) -> Vec<f32> {
        let (heads, width) = (self.shape.heads as usize, self.shape.head_dim as usize);
        let group = heads / self.shape.kv_heads as usize;
        let mut want = Vec::with_capacity(self.out_numbers());
        for (token, (sequence, position)) in self.tokens.iter().enumerate() {
            let len = self.lens[*sequence];
            let [keys, values] = &self.contexts[*sequence];
            for head in 0..heads {
                let q = &self.q[token * self.q_stride + head * width..][..width];
                let part = head / group * len * width..(head / group + 1) * len * width;
                let (keys, values) = (&keys[part.clone()], &values[part]);
                let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
                want.extend(reference::attention(q, keys, values, *position as u32, &self.rules, sink));
            }
        }
        want
    }

    /// Writes the tokens' keys and values, times a factor, and returns what the kernel reads.
    fn write(&self, device: &Arc<dyn Device>, factor: f32) -> Result<[Buffer; 3], String> {
        let AttentionShape { ty, heads, kv_heads, head_dim } = self.shape;
        let width = head_dim as usize;
        let mut qkv = Vec::new();
        for (sequence, position) in &self.tokens {
            qkv.resize(qkv.len() + heads as usize * width, 0.0);
            for numbers in &self.contexts[*sequence] {
                for head in numbers.chunks(self.lens[*sequence] * width) {
                    qkv.extend(head[position * width..][..width].iter().map(|number| number * factor));
                }
            }
        }
        // At every position an angle of 0.
        let angles = [vec![1.0; width / 2], vec![0.0; width / 2]].concat();
        let longest = self.lens.iter().max().expect("a sequence");
        let given = [
            numbers(device, ty, &qkv)?,
            numbers(device, Type::F32, &angles.repeat(*longest))?,
            indexes(device, &self.slots)?,
        ];
        let [_, keys, values, positions, ..] = &self.on_device;
        let params = KvWriteParams {
            qkv: given[0].at(),
            keys: keys.at(),
            values: values.at(),
            rope: given[1].at(),
            positions: positions.at(),
            slots: given[2].at(),
            heads,
            kv_heads,
            head_dim,
            block_size: self.block_size as u32,
            tokens: self.tokens.len() as u32,
            ..KvWriteParams::default()
        };
        // SAFETY: shapes as allocated.
        unsafe { cuda::kv_write(device.as_ref(), ty, &params) }.map_err(said)?;
        Ok(given)
    }

    fn decode(
        &self,
        device: &Arc<dyn Device>,
        partition: Partition,
        items: &[u32],
    ) -> Result<Vec<f32>, String> {
        self.decode_after(device, partition, items, || Ok(()))
    }

    /// With nothing between what `before` launches and the decode.
    fn decode_after<T>(
        &self,
        device: &Arc<dyn Device>,
        partition: Partition,
        items: &[u32],
        before: impl FnOnce() -> Result<T, String>,
    ) -> Result<Vec<f32>, String> {
        let (ty, out) = (self.shape.ty, poisoned(device, self.shape.ty, self.out_numbers())?);
        let numbers = cuda::partial_numbers(&self.shape, items.len() as u32, partition);
        let partial = poisoned(device, Type::F32, numbers)?;
        let list = indexes(device, items)?;
        let none_taken = vec![0; cuda::tickets(&self.shape, items.len() as u32)];
        let tickets = indexes(device, &none_taken)?;
        let params = self.params(&list, &out);
        let params = AttentionParams { partial: partial.at(), tickets: tickets.at(), ..params };
        let _lent = before()?;
        // SAFETY: shapes as allocated.
        unsafe { cuda::decode(device.as_ref(), &self.shape, partition, params, items.len() as u32) }
            .map_err(said)?;
        if tickets.read(4 * none_taken.len()).map_err(said)?.iter().any(|byte| *byte != 0) {
            return Err(format!("{:?}, {partition:?}: tickets are left over", self.shape));
        }
        out.read_numbers(ty, self.out_numbers()).map_err(said)
    }

    /// Prefills in tiles of as many tokens as `cut` says, given how many a tile can have.
    fn prefill(
        &self,
        device: &Arc<dyn Device>,
        form: PrefillForm,
        mut cut: impl FnMut(usize) -> usize,
    ) -> Result<Vec<f32>, String> {
        let (mut tiles, mut token) = (vec![NONE, 0], 0);
        while token < self.tokens.len() {
            let sequence = self.tokens[token].0;
            let left = self.tokens[token..].iter().take_while(|(s, _)| *s == sequence).count();
            let count = cut(left.min(form.tokens(&self.shape) as usize));
            tiles.extend([token as u32, count as u32]);
            token += count;
        }
        let (ty, out) = (self.shape.ty, poisoned(device, self.shape.ty, self.out_numbers())?);
        let list = indexes(device, &tiles)?;
        let params = self.params(&list, &out);
        // SAFETY: shapes as allocated.
        unsafe { cuda::prefill(device.as_ref(), &self.shape, form, params, tiles.len() as u32 / 2) }
            .map_err(said)?;
        out.read_numbers(ty, self.out_numbers()).map_err(said)
    }

    fn check(&self, got: &[f32], want: &[f32], how: &str) -> Result<(), String> {
        let what = format!(
            "{:?}, blocks of {}, {:?}, sinks {:?}, {how}, contexts {:?}",
            self.shape, self.block_size, self.rules, self.sinks, self.lens
        );
        compare(got, want, self.shape.head_dim as usize).close(tolerance(self.shape.ty), &what)
    }
}

fn shape(random: &mut Random, ty: Type, width: usize, most_group: usize) -> AttentionShape {
    let kv_heads = random.size(1, 3) as u32;
    let group = random.size(1, most_group) as u32;
    AttentionShape { ty, heads: kv_heads * group, kv_heads, head_dim: width as u32 }
}

pub(super) fn decode(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in TYPES {
        for width in WIDTHS {
            let most_group = random.one_of(&[8, 8, 8, 20]);
            let shape = shape(random, ty, width, most_group);
            let most = effort.pick(300, 3_000);
            let lens = vec![1, random.size(1, 17), random.size(1, most)];
            let scene = Scene::new(device, random, shape, lens, &[1, 1, 1])?;
            let want = scene.want();
            // Items out of order, and padding at the end.
            let items = [2, 0, 1, NONE];
            for blocks in [1, random.size(2, 5) as u32, 40] {
                let got = scene.decode(device, Partition::Balanced { blocks }, &items)?;
                scene.check(&got, &want, &format!("{blocks} blocks"))?;
            }
        }
    }
    many_pieces(device, random)?;
    many_items(device, effort, random)?;
    Ok("three types, nine widths, 1 to 40 blocks, up to 150 pieces of a context, 300 sequences, windows, soft caps, sinks, \
        contexts from 1 on"
        .to_owned())
}

/// More pieces of a context than are added up at a time, and some contexts in one piece.
fn many_pieces(device: &Arc<dyn Device>, random: &mut Random) -> Result<(), String> {
    for (ty, head_dim) in [(Type::Bf16, 32), (Type::F16, 64)] {
        let shape = AttentionShape { ty, heads: 2, kv_heads: 1, head_dim };
        let scene = Scene::new(device, random, shape, vec![2_400, 31, 5_000], &[1, 1, 1])?;
        let want = scene.want();
        for partition in [Partition::Fixed { tokens: 32, longest: 5_010 }, Partition::Balanced { blocks: 31 }]
        {
            scene.check(&scene.decode(device, partition, &[1, 0, 2])?, &want, &format!("{partition:?}"))?;
        }
    }
    Ok(())
}

/// More sequences than a block has threads, of uneven lengths and with padding between.
fn many_items(device: &Arc<dyn Device>, effort: Effort, random: &mut Random) -> Result<(), String> {
    let shape = AttentionShape { ty: Type::Bf16, heads: 6, kv_heads: 2, head_dim: 64 };
    let most = effort.pick(40, 600);
    let lens: Vec<usize> =
        (0..280).map(|i| if i % 70 == 9 { 8 * most } else { random.size(1, most) }).collect();
    let scene = Scene::new(device, random, shape, lens, &[1; 280])?;
    let mut items: Vec<u32> = (0..280).chain([NONE; 20]).collect();
    for i in (1..items.len()).rev() {
        items.swap(i, random.size(0, i));
    }
    let blocks = random.size(5, 60) as u32;
    let got = scene.decode(device, Partition::Balanced { blocks }, &items)?;
    scene.check(&got, &scene.want(), &format!("{} items, {blocks} blocks", items.len()))
}

/// A step's tokens see each other's keys and values, though attention starts before these are written.
pub(super) fn after_writes(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        for width in [64, 80, 128, 256] {
            let shape = shape(random, ty, width, 8);
            let lens =
                vec![random.size(1, 17), random.size(60, effort.pick(300, 3_000)), 16 * random.size(2, 9)];
            let tails = [1, random.size(1, 40), random.size(1, 3)];
            let scene = Scene::new(device, random, shape, lens, &tails)?;
            let items: Vec<u32> = (0..scene.tokens.len() as u32).collect();
            for blocks in [2, 40] {
                drop(scene.write(device, f32::NAN)?);
                device.wait().map_err(said)?;
                let balanced = Partition::Balanced { blocks };
                let got = scene.decode_after(device, balanced, &items, || scene.write(device, 1.0))?;
                scene.check(&got, &scene.want(), &format!("{blocks} blocks, right after the writes"))?;
            }
        }
    }
    Ok("two types, four widths, up to 44 tokens of a step, which see each other".to_owned())
}

/// With fixed parts, a token's bits don't depend on the other tokens of the batch.
pub(super) fn fixed_parts(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        let width = random.one_of(&WIDTHS);
        let shape = shape(random, ty, width, 8);
        let most = effort.pick(150, 2_000);
        let lens = vec![random.size(1, most), random.size(1, most)];
        let scene = Scene::new(device, random, shape, lens, &[1, 1])?;
        let fixed = Partition::Fixed { tokens: 64, longest: most as u32 };
        let (together, alone) = (scene.decode(device, fixed, &[0, 1])?, scene.decode(device, fixed, &[1])?);
        scene.check(&together, &scene.want(), "fixed parts")?;
        let half = together.len() / 2;
        if together[half..] != alone[half..] {
            return Err(format!("{shape:?}: a token's bits differ alone"));
        }
    }
    Ok("two types; bits of a token alone and beside another".to_owned())
}

pub(super) fn prefill(
    device: &Arc<dyn Device>,
    effort: Effort,
    random: &mut Random,
) -> Result<String, String> {
    for ty in [Type::Bf16, Type::F16] {
        for width in [32, 64, 80, 96, 128, 256] {
            let widest = if width > 128 { 64 } else { 128 };
            let most_group = random.one_of(&[8, 8, 8, 64, widest]);
            let shape = shape(random, ty, width, most_group);
            let most = effort.pick(100, 1_500);
            let lens = vec![1, random.size(1, 20), random.size(1, most)];
            let tails: Vec<usize> =
                lens.iter().map(|len| random.size(1, (*len).min(effort.pick(40, 600)))).collect();
            let scene = Scene::new(device, random, shape, lens, &tails)?;
            let want = scene.want();
            for form in PrefillForm::all_on(shape, device.properties()) {
                // All warps of full tiles have rows; of those of few tokens most only copy.
                let whole = scene.prefill(device, form, |most| most)?;
                scene.check(&whole, &want, &format!("{form:?}"))?;
                let ragged = scene.prefill(device, form, |most| random.size(1, most))?;
                let short = scene.prefill(device, form, |most| random.size(1, most.min(3)))?;
                if ragged != whole || short != whole {
                    return Err(format!("{shape:?}, {form:?}: bits depend on how the prompt was cut"));
                }
            }
        }
    }
    let rows = match device.properties().warpgroups {
        true => "64 and 128 rows by warps, 64 to 192 by warpgroups",
        false => "64 and 128 rows (none by warpgroups: the device or the image lacks them)",
    };
    Ok(format!(
        "two types, six widths, {rows}, up to 128 queries a key, windows, soft caps, sinks; three ways of cutting bit by bit"
    ))
}
