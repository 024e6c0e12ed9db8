//! What the descriptors of a product say.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{cublasComputeType_t, cublasStatus_t, cudaDataType_t};

use crate::matrix::Format;

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const PLAIN: c_int = 0;
const TRANSPOSED: c_int = 1;

/// Why something is refused.
pub(crate) struct Refusal(pub(crate) cublasStatus_t, pub(crate) String);

impl Refusal {
    pub(crate) fn value(why: impl Into<String>) -> Self {
        Self(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE, why.into())
    }
}

/// A matrix in memory, column by column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Numbers from one column to the next.
    pub(crate) leading: usize,
}

impl Layout {
    pub(crate) fn new(kind: cudaDataType_t, rows: u64, columns: u64, leading: i64) -> Result<Self, Refusal> {
        let format = match kind {
            cudaDataType_t::CUDA_R_32F => Format::F32,
            cudaDataType_t::CUDA_R_16BF => Format::Bf16,
            cudaDataType_t::CUDA_R_16F => Format::F16,
            _ => return Err(Refusal::value(format!("{kind:?} isn't emulated"))),
        };
        let leading = usize::try_from(leading).unwrap_or(0);
        let (rows, columns) = (rows as usize, columns as usize);
        if rows == 0 || columns == 0 || leading < rows {
            return Err(Refusal::value(format!("{rows} rows, {columns} columns, {leading} between columns")));
        }
        Ok(Self { format, rows, columns, leading })
    }

    /// Bytes from its first number to its last.
    pub(crate) fn bytes(&self) -> usize {
        ((self.columns - 1) * self.leading + self.rows) * self.format.bytes()
    }
}

/// Which product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) a_transposed: bool,
    pub(crate) b_transposed: bool,
}

impl Product {
    pub(crate) fn new(compute: cublasComputeType_t, scale: cudaDataType_t) -> Result<Self, Refusal> {
        match (compute, scale) {
            (cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType_t::CUDA_R_32F) => {
                Ok(Self { a_transposed: false, b_transposed: false })
            }
            _ => Err(Refusal::value(format!("{compute:?} scaled by {scale:?} isn't emulated"))),
        }
    }

    /// Sets `CUBLASLT_MATMUL_DESC_TRANSA` or `..._TRANSB`.
    ///
    /// # Safety
    /// The value has as many bytes as it says.
    pub(crate) unsafe fn set(&mut self, b: bool, value: *const c_void, bytes: usize) -> Result<(), Refusal> {
        if value.is_null() || bytes != size_of::<c_int>() {
            return Err(Refusal::value("a transposition is a number of four bytes"));
        }
        // SAFETY: as many bytes, by the caller's promise.
        let transposed = match unsafe { value.cast::<c_int>().read_unaligned() } {
            PLAIN => false,
            TRANSPOSED => true,
            other => return Err(Refusal::value(format!("{other} is no transposition"))),
        };
        *(if b { &mut self.b_transposed } else { &mut self.a_transposed }) = transposed;
        Ok(())
    }
}

/// The layouts of a product's matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) product: Product,
    pub(crate) a: Layout,
    pub(crate) b: Layout,
    pub(crate) c: Layout,
    pub(crate) d: Layout,
}

impl Shape {
    /// Rows of the result, its columns, and how many products each number is a sum of.
    pub(crate) fn extent(&self) -> (usize, usize, usize) {
        let summed = if self.product.a_transposed { self.a.rows } else { self.a.columns };
        (self.d.rows, self.d.columns, summed)
    }

    /// Refuses what doesn't fit together, or is in no row of the library's table of types.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let op = |layout: &Layout, transposed| match transposed {
            false => (layout.rows, layout.columns),
            true => (layout.columns, layout.rows),
        };
        let (rows, summed) = op(&self.a, self.product.a_transposed);
        let (summed_too, columns) = op(&self.b, self.product.b_transposed);
        let results = [&self.c, &self.d].map(|layout| (layout.rows, layout.columns));
        if summed != summed_too || results != [(rows, columns); 2] {
            return Err(Refusal::value(format!("these don't fit together: {self:?}")));
        }
        let (input, output) = (self.a.format, self.d.format);
        let known = self.b.format == input
            && self.c.format == output
            && (output == input || (output == Format::F32 && input != Format::F32));
        let unsupported = cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;
        known
            .then_some(())
            .ok_or_else(|| Refusal(unsupported, format!("no such combination of types: {self:?}")))
    }
}

/// Where a product's matrices are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    pub(crate) d: u64,
}
