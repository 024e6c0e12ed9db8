//! Matrix products of warpgroups (`wgmma`): four warps multiply 64 rows by a matrix in shared memory, asynchronously.
//!
//! They take effect when their group is waited for, the latest moment at which a device may perform them. Until then their
//! sums are poison. What they read of shared memory must be ordered behind what was written there, and published to the
//! tensor cores (`fence.proxy.async`), and nothing may overwrite it in between. Each warp computes its sixteen rows by
//! itself; that the four of a group issue the same products is checked wherever all threads of a block meet.

use std::collections::HashMap;

use crate::memory::{Memory, Refused};
use crate::ops::canonical;
use crate::program::{GroupProduct, Kernel, Left, POISON, Slot};
use crate::race::{Moment, Who};
use crate::warp::{LANES, Lanes, fragment};

/// Rows of a warp, and the length of the sums.
const ROWS: usize = 16;
const LENGTH: usize = 16;

/// Products of one warp.
#[derive(Default)]
pub(crate) struct Products {
    /// In flight, oldest first.
    flying: Vec<Flying>,
    /// Committed groups so far, which is the number of the group that is open.
    groups: u32,
    /// Sums of those in flight, by their first slot.
    sums: HashMap<Slot, Vec<f32>>,
    /// Products so far.
    pub(crate) issued: u64,
}

struct Flying {
    /// Index in the kernel's products.
    product: usize,
    left: Factor,
    right: Matrix,
    /// Whether sums are added to.
    add: bool,
    group: u32,
    since: Moment,
    instruction: u32,
}

/// Sixteen rows by sixteen columns.
enum Factor {
    Given(Box<[[f32; LENGTH]; ROWS]>),
    Described(Matrix),
}

/// A matrix in shared memory, as its descriptor says (PTX ISA, matrix descriptor), swizzled by 128 bytes.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    start: u64,
    /// Bytes to the next 64 numbers of a row, and to the next eight rows of 128 bytes.
    leading: u64,
    stride: u64,
}

impl Matrix {
    fn of(descriptor: u64) -> Result<Self, String> {
        let field = |bit: u32| (descriptor >> bit & 0x3fff) << 4;
        if descriptor >> 62 != 1 || descriptor >> 49 & 7 != 0 {
            return Err(format!("the descriptor {descriptor:#x} is not of a matrix swizzled by 128 bytes"));
        }
        Ok(Self { start: field(0), leading: field(16), stride: field(32) })
    }

    /// Address of a number, where rows and columns are those of 128 bytes in memory. The eight parts of a row lie in an order
    /// that its address determines.
    fn at(self, row: usize, column: usize) -> u64 {
        let [row, column] = [row, column].map(|index| index as u64);
        let at =
            self.start + row / 8 * self.stride + row % 8 * 128 + column / 64 * self.leading + column % 64 * 2;
        at ^ (at >> 7 & 7) << 4
    }
}

impl Products {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn are_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    pub(crate) fn commit(&mut self) {
        self.groups += 1;
    }

    /// Begins a product at which all lanes have arrived.
    pub(crate) fn start(
        &mut self,
        kernel: &Kernel,
        product: usize,
        lanes: &mut Lanes<'_>,
        memory: &mut Memory<'_>,
        who: &Who,
    ) -> Result<(), Refused> {
        let GroupProduct { matrix, d, left, right, add, .. } = &kernel.group_products[product];
        let same = |slot: Slot, what: &str| {
            let first = lanes.whole(0, slot);
            match (1..LANES).all(|lane| lanes.whole(lane, slot) == first) {
                true => Ok(first),
                false => Err(format!("{what} differs between lanes")),
            }
        };
        let add = same(*add, "whether to add")? != 0;
        let right = Matrix::of(same(*right, "a descriptor")?)?;
        let left = match left {
            Left::Shared(slot) => Factor::Described(Matrix::of(same(*slot, "a descriptor")?)?),
            Left::Registers(slots) => {
                let mut rows = Box::new([[0.0; LENGTH]; ROWS]);
                for lane in 0..LANES {
                    for number in 0..8 {
                        let (row, column, value) = fragment(lanes, lane, slots, number, *matrix);
                        rows[row][column] = value;
                    }
                }
                Factor::Given(rows)
            }
        };
        let flying = Flying {
            product,
            left,
            right,
            add,
            group: self.groups,
            since: who.now,
            instruction: who.instruction,
        };
        for at in flying.reads(&kernel.group_products[product], who.thread as usize / LANES) {
            memory.read_by_tensor_cores(at, who, who.now)?;
        }
        self.sums.entry(d[0]).or_insert_with(|| {
            let mut sums = vec![0.0; ROWS * 2 * d.len()];
            each_sum(d, |lane, slot, place| {
                sums[place] = f32::from_bits(lanes.get(lane, slot));
                lanes.set(lane, slot, POISON & u64::from(u32::MAX));
            });
            sums
        });
        self.flying.push(flying);
        self.issued += 1;
        Ok(())
    }

    /// Performs the products of all groups but the latest `left` and the open one.
    pub(crate) fn wait(
        &mut self,
        kernel: &Kernel,
        left: u32,
        lanes: &mut Lanes<'_>,
        memory: &mut Memory<'_>,
        who: &Who,
    ) -> Result<(), Refused> {
        let groups = self.groups;
        let done = self.flying.partition_point(|flying| flying.group + left < groups);
        let performed: Vec<Flying> = self.flying.drain(..done).collect();
        for flying in &performed {
            let product = &kernel.group_products[flying.product];
            // Conflicts name the product, not the wait.
            let who = Who { instruction: flying.instruction, ..*who };
            for at in flying.reads(product, who.thread as usize / LANES) {
                memory.read_by_tensor_cores(at, &who, flying.since)?;
            }
            let sums = self.sums.get_mut(&product.d[0]).ok_or_else(|| "a product without sums".to_owned())?;
            flying.perform(product, sums, memory, who.thread as usize / LANES);
        }
        for flying in &performed {
            let d = &kernel.group_products[flying.product].d;
            let again = self.flying.iter().any(|other| kernel.group_products[other.product].d[0] == d[0]);
            if !again && let Some(sums) = self.sums.remove(&d[0]) {
                each_sum(d, |lane, slot, place| lanes.set(lane, slot, u64::from(sums[place].to_bits())));
            }
        }
        Ok(())
    }
}

/// Calls `each` with the lane, the slot and the place, row by row, of each of a warp's sums. Slots `4 * i` and the next are
/// of columns `8 * i + 2 * (lane % 4)` and the next of row `lane / 4`, the other two of a row eight further.
fn each_sum(d: &[Slot], mut each: impl FnMut(usize, Slot, usize)) {
    let columns = 2 * d.len();
    for lane in 0..LANES {
        for (index, slot) in d.iter().enumerate() {
            let row = lane / 4 + if index % 4 >= 2 { 8 } else { 0 };
            let column = index / 4 * 8 + lane % 4 * 2 + index % 2;
            each(lane, *slot, row * columns + column);
        }
    }
}

impl Flying {
    /// Addresses of all that a warp reads of shared memory, in parts of 16 bytes.
    fn reads(&self, product: &GroupProduct, warp: usize) -> Vec<u64> {
        let mut parts = Vec::new();
        if let Factor::Described(matrix) = &self.left {
            let rows = warp % 4 * ROWS..(warp % 4 + 1) * ROWS;
            parts.extend(rows.flat_map(|row| [matrix.at(row, 0), matrix.at(row, 8)]));
        }
        let columns = 2 * product.d.len();
        if product.transposed {
            let of_row = |row| (0..columns).step_by(8).map(move |column| self.right.at(row, column));
            parts.extend((0..LENGTH).flat_map(of_row));
        } else {
            parts.extend((0..columns).flat_map(|row| [self.right.at(row, 0), self.right.at(row, 8)]));
        }
        parts
    }

    fn perform(&self, product: &GroupProduct, sums: &mut [f32], memory: &Memory<'_>, warp: usize) {
        let columns = 2 * product.d.len();
        let widen = product.matrix.widen();
        let number = |at: u64| widen(memory.shared_half(at));
        // Column by column.
        let right: Vec<[f32; LENGTH]> = (0..columns)
            .map(|column| {
                std::array::from_fn(|k| {
                    let (row, column) = if product.transposed { (k, column) } else { (column, k) };
                    number(self.right.at(row, column))
                })
            })
            .collect();
        for (row, sums) in sums.chunks_exact_mut(columns).enumerate() {
            let left: [f32; LENGTH] = match &self.left {
                Factor::Given(rows) => rows[row],
                Factor::Described(matrix) => {
                    std::array::from_fn(|k| number(matrix.at(warp % 4 * ROWS + row, k)))
                }
            };
            for (sum, right) in sums.iter_mut().zip(&right) {
                // Products of 16-bit numbers are exact in f32. The ISA leaves the order of the sum open.
                let product: f32 = left.iter().zip(right).map(|(left, right)| left * right).sum();
                *sum = canonical(if self.add { *sum + product } else { product });
            }
        }
    }
}
