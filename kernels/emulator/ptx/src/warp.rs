//! Instructions that the lanes of a warp execute together: shuffles, and matrix products by the fragments of the PTX ISA.

use crate::ops::canonical;
use crate::program::{Instruction, Kernel, Matrix, Op};

pub(crate) const LANES: usize = 32;

/// The slots of a warp's lanes, one lane behind the other.
pub(crate) struct Lanes<'a> {
    pub(crate) slots: &'a mut [u64],
    /// Slots of a lane.
    pub(crate) stride: usize,
}

impl Lanes<'_> {
    pub(crate) fn get(&self, lane: usize, slot: u16) -> u32 {
        self.slots[lane * self.stride + usize::from(slot)] as u32
    }

    /// All bits of a slot.
    pub(crate) fn whole(&self, lane: usize, slot: u16) -> u64 {
        self.slots[lane * self.stride + usize::from(slot)]
    }

    pub(crate) fn set(&mut self, lane: usize, slot: u16, value: u64) {
        self.slots[lane * self.stride + usize::from(slot)] = value;
    }

    /// Executes an instruction at which all lanes have arrived.
    pub(crate) fn execute(&mut self, kernel: &Kernel, instruction: &Instruction) -> Result<(), String> {
        let args = &instruction.args;
        let mask = match instruction.op {
            Op::WarpBarrier => Some(args[0]),
            Op::Shuffle => Some(args[5]),
            Op::Vote => Some(args[2]),
            _ => None,
        };
        if let Some(mask) = mask
            && let Some(lane) = (0..LANES).find(|lane| self.get(*lane, mask) != u32::MAX)
        {
            return Err(format!("lane {lane} names only the lanes of mask {:#x}", self.get(lane, mask)));
        }
        match instruction.op {
            Op::Shuffle => self.shuffle(args),
            Op::Vote => {
                let any = (0..LANES).any(|lane| self.get(lane, args[1]) != 0);
                (0..LANES).for_each(|lane| self.set(lane, args[0], u64::from(any)));
            }
            Op::Multiply(matrix) => self.multiply(&kernel.products[instruction.offset as usize], matrix),
            _ => {}
        }
        Ok(())
    }

    /// `shfl.sync.bfly.b32`: the bits 0 to 4 of the clamp bound the source lane, its bits 8 to 12 fix bits of the lane.
    fn shuffle(&mut self, args: &[u16; 6]) {
        let given: [u32; LANES] = std::array::from_fn(|lane| self.get(lane, args[2]));
        for lane in 0..LANES {
            let own = lane as u32;
            let (lanes, clamp) = (self.get(lane, args[3]) & 31, self.get(lane, args[4]));
            let (bound, fixed) = (clamp & 31, clamp >> 8 & 31);
            let from = own ^ lanes;
            let valid = from <= own & fixed | bound & !fixed;
            let from = if valid { from } else { own };
            self.set(lane, args[0], u64::from(given[from as usize]));
            self.set(lane, args[1], u64::from(valid));
        }
    }

    /// `mma.sync.aligned.m16n8k16`. With a lane's group `lane / 4` and its place in it, `lane % 4`, the ISA places
    ///   of a, numbers 0 to 7 in four words: rows `group`, and 8 more for numbers 2, 3, 6 and 7; columns `place * 2`, 1 more
    ///   for odd numbers, 8 more from number 4 on;
    ///   of b, numbers 0 to 3 in two words: rows like the columns of a with 8 more from number 2 on; column `group`;
    ///   of c and d, numbers 0 to 3: rows `group`, 8 more from number 2 on; columns `place * 2`, 1 more for odd numbers.
    fn multiply(&mut self, slots: &[u16; 14], matrix: Matrix) {
        let widen = matrix.widen();
        let mut a = [[0.0_f32; 16]; 16];
        let mut b = [[0.0_f32; 8]; 16];
        for lane in 0..LANES {
            let (group, place) = (lane / 4, lane % 4);
            for number in 0..8 {
                let (row, column, value) = fragment(self, lane, &slots[4..8], number, matrix);
                a[row][column] = value;
            }
            for number in 0..4 {
                let word = self.get(lane, slots[8 + number / 2]);
                let row = place * 2 + number % 2 + if number >= 2 { 8 } else { 0 };
                b[row][group] = widen((word >> (16 * (number % 2))) as u16);
            }
        }
        // Products of 16-bit numbers are exact in f32. The ISA leaves the order of the sum open.
        let mut sums = [[0.0_f32; 8]; 16];
        for (sums, a) in sums.iter_mut().zip(&a) {
            for (a, b) in a.iter().zip(&b) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        for lane in 0..LANES {
            let (group, place) = (lane / 4, lane % 4);
            for number in 0..4 {
                let row = group + if number >= 2 { 8 } else { 0 };
                let column = place * 2 + number % 2;
                let c = f32::from_bits(self.get(lane, slots[10 + number]));
                let sum = canonical(sums[row][column] + c);
                self.set(lane, slots[number], u64::from(sum.to_bits()));
            }
        }
    }
}

/// Row, column and value of one of the eight numbers of a that a lane has in four words.
pub(crate) fn fragment(
    lanes: &Lanes<'_>,
    lane: usize,
    slots: &[u16],
    number: usize,
    matrix: Matrix,
) -> (usize, usize, f32) {
    let word = lanes.get(lane, slots[number / 2]);
    let row = lane / 4 + if number & 2 != 0 { 8 } else { 0 };
    let column = lane % 4 * 2 + number % 2 + if number >= 4 { 8 } else { 0 };
    (row, column, matrix.widen()((word >> (16 * (number % 2))) as u16))
}
