//! Numbers of a matrix in memory, and the product itself.

use crate::descriptor::{Layout, Places, Shape};

/// Storage of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    Bf16,
    F16,
}

impl Format {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// # Safety
    /// There is such a number at this address.
    unsafe fn read(self, at: u64) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => (at as *const f32).read(),
                Self::Bf16 => (at as *const half::bf16).read().to_f32(),
                Self::F16 => (at as *const half::f16).read().to_f32(),
            }
        }
    }

    /// # Safety
    /// There is room for such a number at this address.
    unsafe fn write(self, at: u64, value: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => (at as *mut f32).write(value),
                Self::Bf16 => (at as *mut half::bf16).write(half::bf16::from_f32(value)),
                Self::F16 => (at as *mut half::f16).write(half::f16::from_f32(value)),
            }
        }
    }
}

impl Layout {
    fn place(&self, start: u64, row: usize, column: usize) -> u64 {
        start + ((column * self.leading + row) * self.format.bytes()) as u64
    }

    /// The matrix as vectors of what is summed: of A its rows, of B its columns.
    ///
    /// # Safety
    /// The matrix is there.
    unsafe fn vectors(&self, start: u64, along_columns: bool) -> Vec<Vec<f32>> {
        let (count, len) = if along_columns { (self.columns, self.rows) } else { (self.rows, self.columns) };
        let number = |vector, index| {
            let (row, column) = if along_columns { (index, vector) } else { (vector, index) };
            // SAFETY: inside the matrix.
            unsafe { self.format.read(self.place(start, row, column)) }
        };
        (0..count).map(|vector| (0..len).map(|index| number(vector, index)).collect()).collect()
    }
}

/// Computes a product.
///
/// # Safety
/// The matrices are there.
pub(crate) unsafe fn multiply(shape: &Shape, places: &Places, alpha: f32, beta: f32) {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe {
        (
            shape.a.vectors(places.a, shape.product.a_transposed),
            shape.b.vectors(places.b, !shape.product.b_transposed),
        )
    };
    for (column, b) in b.iter().enumerate() {
        for (row, a) in a.iter().enumerate() {
            let sum: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            // SAFETY: inside C and D, by the caller's promise.
            unsafe {
                // C is not read at all if it doesn't count, so that its NaN doesn't either.
                let more = match beta {
                    0.0 => 0.0,
                    _ => beta * shape.c.format.read(shape.c.place(places.c, row, column)),
                };
                shape.d.format.write(shape.d.place(places.d, row, column), alpha * sum + more);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Product;

    fn layout(rows: usize, columns: usize, leading: usize) -> Layout {
        Layout { format: Format::F32, rows, columns, leading }
    }

    /// By hand: A = [1 2 3; 4 5 6], B = [1 0; 2 1; 0 3], AB = [5 11; 14 23].
    #[test]
    fn product_is_column_major_whatever_is_transposed() {
        let (a, a_transposed) =
            ([1.0_f32, 4.0, 2.0, 5.0, 3.0, 6.0], [1.0_f32, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 9.0]);
        let (b, b_transposed) = ([1.0_f32, 2.0, 0.0, 0.0, 1.0, 3.0], [1.0_f32, 0.0, 2.0, 1.0, 0.0, 3.0]);
        for transposed in [(false, false), (true, false), (false, true), (true, true)] {
            let (at_a, at_b) = (
                if transposed.0 { a_transposed.as_ptr() } else { a.as_ptr() } as u64,
                if transposed.1 { b_transposed.as_ptr() } else { b.as_ptr() } as u64,
            );
            let mut d = [1.0_f32; 6];
            let shape = Shape {
                product: Product { a_transposed: transposed.0, b_transposed: transposed.1 },
                a: if transposed.0 { layout(3, 2, 4) } else { layout(2, 3, 2) },
                b: if transposed.1 { layout(2, 3, 2) } else { layout(3, 2, 3) },
                c: layout(2, 2, 3),
                d: layout(2, 2, 3),
            };
            assert!(shape.check().is_ok(), "{transposed:?}");
            let at_d = d.as_mut_ptr() as u64;
            let places = Places { a: at_a, b: at_b, c: at_d, d: at_d };
            // SAFETY: arrays of as many numbers as the layouts say.
            unsafe { multiply(&shape, &places, 2.0, 10.0) };
            assert_eq!(d, [20.0, 38.0, 1.0, 32.0, 56.0, 1.0], "{transposed:?}");
        }
    }
}
