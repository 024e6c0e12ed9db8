//! Matrix products, of warps and of warpgroups.

use super::{Body, Wrong};
use crate::operands::Operand;
use crate::ops::Class;
use crate::program::{GroupProduct, Instruction, Left, Matrix, Op};

impl<'a> Body<'a, '_> {
    /// `mma.sync.aligned.m16n8k16`: registers of d, a, b and c.
    pub(super) fn multiply(
        &mut self,
        ty: &str,
        operands: [&[&'a str]; 4],
        new: &mut Instruction,
    ) -> Result<(), Wrong> {
        new.op = Op::Multiply(matrix_named(ty)?);
        let mut slots = [0; 14];
        for (index, word) in operands.into_iter().flatten().enumerate() {
            slots[index] = match index < 4 {
                true => self.target_of(word, Class::Word)?,
                false => self.source_of(word, Class::Word)?,
            };
        }
        new.offset = self.kernel.products.len() as i64;
        self.kernel.products.push(slots);
        Ok(())
    }

    /// `wgmma.mma_async`: sums, left factor in registers or by its descriptor, descriptor of the right one, whether to add,
    /// signs of the factors, and for each in shared memory whether it is transposed.
    pub(super) fn multiply_group(
        &mut self,
        shape: &str,
        ty: &str,
        d: &[&'a str],
        rest: &[Operand<'a>],
        new: &mut Instruction,
    ) -> Result<(), Wrong> {
        let columns: Option<usize> = shape
            .strip_prefix("m64n")
            .and_then(|shape| shape.strip_suffix("k16"))
            .and_then(|columns| columns.parse().ok());
        if !columns.is_some_and(|columns| columns % 8 == 0 && columns <= 256 && 2 * d.len() == columns) {
            return Err("sums of another shape".to_owned());
        }
        let (left, right, add, transposed) = match rest {
            [
                Operand::List(left),
                Operand::Word(right),
                Operand::Word(add),
                Operand::Word("1"),
                Operand::Word("1"),
                Operand::Word(transposed),
            ] if left.len() == 4 => {
                let mut slots = [0; 4];
                for (slot, word) in slots.iter_mut().zip(left) {
                    *slot = self.source_of(word, Class::Word)?;
                }
                (Left::Registers(slots), right, add, transposed)
            }
            [
                Operand::Word(left),
                Operand::Word(right),
                Operand::Word(add),
                Operand::Word("1"),
                Operand::Word("1"),
                Operand::Word("0"),
                Operand::Word(transposed),
            ] => (Left::Shared(self.source_of(left, Class::Double)?), right, add, transposed),
            _ => return Err("operands that are not known".to_owned()),
        };
        let transposed = match *transposed {
            "0" => false,
            "1" => true,
            _ => return Err("whether the right factor is transposed".to_owned()),
        };
        let product = GroupProduct {
            matrix: matrix_named(ty)?,
            d: d.iter().map(|word| self.target_of(word, Class::Word)).collect::<Result<_, _>>()?,
            left,
            right: self.source_of(right, Class::Double)?,
            transposed,
            add: self.source_of(add, Class::Predicate)?,
        };
        new.op = Op::MultiplyGroup;
        new.offset = self.kernel.group_products.len() as i64;
        self.kernel.group_products.push(product);
        Ok(())
    }
}

fn matrix_named(ty: &str) -> Result<Matrix, Wrong> {
    match ty {
        "bf16" => Ok(Matrix::Bf16),
        "f16" => Ok(Matrix::F16),
        _ => Err("an unknown type of factors".to_owned()),
    }
}
