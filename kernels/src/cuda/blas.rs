//! Matrix products by cuBLASLt. The library picks an algorithm per shape, so a row's bits depend on the number of rows. Plans
//! are cached because creating one takes longer than a small product.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Mutex;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::device::Type;
use super::error::{CudaError, CudaErrorKind};
use super::library;
use super::params::ProductParams;

/// Cached plans; at the limit the cache is cleared. Prefill needs one per number of rows.
const MAX_PLANS: usize = 4_096;

/// The library, its workspace and cached plans.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    workspace_bytes: usize,
    plans: Mutex<HashMap<Shape, Option<Plan>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    ty: Type,
    rows: u32,
    inputs: u32,
    outputs: u32,
    out_f32: bool,
}

/// How a shape is computed.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    y: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Blas {
    /// Opens the library. `workspace` is device memory, owned by the library until [`Blas::close`].
    pub(super) fn new(workspace: u64, workspace_bytes: usize) -> Result<Self, CudaError> {
        let handle = result::create_handle().map_err(|error| fault(&error))?;
        Ok(Self { handle, workspace, workspace_bytes, plans: Mutex::default() })
    }

    /// The library's own number: 130000 is 13.0.
    pub(super) fn version() -> usize {
        // SAFETY: the library is open, or there would be no handle.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// The file that calls go to. cudarc opens the library itself, by names of which the loader may find an earlier one in
    /// another file than we opened.
    pub(super) fn file() -> Option<PathBuf> {
        // SAFETY: the library is open, or there would be no handle, and has this function, which is only located here.
        let version = unsafe {
            let symbol = sys::culib().get::<unsafe extern "C" fn() -> usize>("cublasLtGetVersion");
            symbol.ok()?.try_as_raw_ptr()?
        };
        library::file_of(version)
    }

    /// See `Device::vendor_product`.
    ///
    /// # Safety
    /// The parameters describe memory on the device; the stream is alive.
    pub(super) unsafe fn product(
        &self,
        ty: Type,
        params: &ProductParams,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<bool, CudaError> {
        let ProductParams { x, w, y, rows, inputs, outputs, out_f32 } = *params;
        let shape = Shape { ty, rows, inputs, outputs, out_f32: out_f32 != 0 };
        let mut plans = self.plans.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(self.plan(shape).ok()),
        };
        let Some(known) = plan else { return Ok(false) };
        let (one, zero) = (1.0_f32, 0.0_f32);
        let scalar = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        // SAFETY: the caller's promise; the plan's descriptors are alive.
        let done = unsafe {
            result::matmul(
                self.handle,
                known.product,
                scalar(&one),
                scalar(&zero),
                w as *const c_void,
                known.w,
                x as *const c_void,
                known.x,
                y as *const c_void,
                known.y,
                y as *mut c_void,
                known.y,
                &raw const known.algorithm,
                self.workspace as *mut c_void,
                self.workspace_bytes,
                stream.cast(),
            )
        };
        match done {
            Ok(()) => Ok(true),
            // The library may refuse an algorithm that it proposed itself; nothing was started then.
            Err(CublasError(
                sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
                | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE
                | sys::cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH,
            )) => {
                *plan = None;
                Ok(false)
            }
            Err(error) => Err(fault(&error)),
        }
    }

    /// The library is column-major: `y^T [outputs, rows] = w^T transposed * x^T`.
    fn plan(&self, shape: Shape) -> Result<Plan, CublasError> {
        let Shape { ty, rows, inputs, outputs, out_f32 } = shape;
        let number = match ty {
            Type::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Type::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Type::F16 => sys::cudaDataType_t::CUDA_R_16F,
        };
        let single = sys::cudaDataType_t::CUDA_R_32F;
        let result_number = if out_f32 { single } else { number };
        let layout = |number, height: u32, width: u32| {
            result::create_matrix_layout(number, u64::from(height), u64::from(width), i64::from(height))
        };
        let mut plan = Plan {
            product: result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, single)?,
            w: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            y: std::ptr::null_mut(),
            // SAFETY: plain numbers, overwritten below.
            algorithm: unsafe { std::mem::zeroed() },
        };
        plan.w = layout(number, inputs, outputs)?;
        plan.x = layout(number, inputs, rows)?;
        plan.y = layout(result_number, outputs, rows)?;
        let (transposed, bytes) = (1_i32, self.workspace_bytes);
        // SAFETY: descriptors were just created; attributes have the sizes that the library expects.
        unsafe {
            result::set_matmul_desc_attribute(
                plan.product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of::<i32>(),
            )?;
            let wish = result::create_matmul_pref()?;
            let outcome = result::set_matmul_pref_attribute(
                wish,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )
            .and_then(|()| {
                let Plan { product, w, x, y, .. } = plan;
                result::get_matmul_algo_heuristic(self.handle, product, w, x, y, y, wish)
            });
            let _ = result::destroy_matmul_pref(wish);
            plan.algorithm = outcome?.algo;
        }
        Ok(plan)
    }

    /// Closes the library and returns the workspace.
    pub(super) fn close(self) -> u64 {
        self.plans.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        // SAFETY: `self` was its only user.
        let _ = unsafe { result::destroy_handle(self.handle) };
        self.workspace
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created by `plan`; absent ones are null.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in [self.w, self.x, self.y].into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

fn fault(error: &CublasError) -> CudaError {
    let kind = match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => CudaErrorKind::OutOfMemory,
        _ => CudaErrorKind::Failed,
    };
    CudaError { kind, message: format!("cuBLASLt: {error:?}") }
}
