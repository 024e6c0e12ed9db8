//! Matrix products by cuBLASLt. The library picks an algorithm per shape, so a row's bits depend on the number of rows. Plans
//! are cached because creating one takes longer than a small product.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    plans: Mutex<Plans<Plan>>,
    warn: fn(&str),
}

/// Plans by shape.
struct Plans<P> {
    /// `None`: our own kernels compute the shape.
    known: HashMap<Shape, Option<P>>,
    /// Whether launches are recorded instead of run.
    recording: bool,
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

impl<P> Plans<P> {
    fn new() -> Self {
        Self { known: HashMap::new(), recording: false }
    }

    /// The plan of a shape, made if it is new. While launches are recorded the cache may exceed its limit: what is recorded
    /// has run before, and to plan it again could spoil the recording.
    fn of(&mut self, shape: Shape, make: impl FnOnce() -> Option<P>) -> &mut Option<P> {
        if self.known.len() >= MAX_PLANS && !self.recording && !self.known.contains_key(&shape) {
            self.known.clear();
        }
        self.known.entry(shape).or_insert_with(make)
    }
}

impl Blas {
    /// Opens the library. `workspace` is device memory, owned by the library until [`Blas::close`]. `warn` is told of shapes
    /// at which it fails.
    pub(super) fn new(workspace: u64, workspace_bytes: usize, warn: fn(&str)) -> Result<Self, CudaError> {
        let handle = result::create_handle().map_err(|error| fault(&error))?;
        Ok(Self { handle, workspace, workspace_bytes, plans: Mutex::new(Plans::new()), warn })
    }

    /// Says whether launches are recorded from now on.
    pub(super) fn set_recording(&self, recording: bool) {
        self.lock().recording = recording;
    }

    fn lock(&self) -> MutexGuard<'_, Plans<Plan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut plans = self.lock();
        let plan = plans.of(shape, || settled(shape, self.plan(shape), &self.warn));
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
            Err(
                error @ CublasError(
                    sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED
                    | sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE
                    | sys::cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH,
                ),
            ) => {
                (self.warn)(&failed_at(shape, &error));
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
        self.lock().known.clear();
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

/// A shape's plan if the library made one. That it has no algorithm is an answer; any other failure is reported, and only
/// once, since the outcome is kept.
fn settled<P>(shape: Shape, planned: Result<P, CublasError>, warn: &dyn Fn(&str)) -> Option<P> {
    match planned {
        Ok(plan) => Some(plan),
        Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => None,
        Err(error) => {
            warn(&failed_at(shape, &error));
            None
        }
    }
}

fn failed_at(shape: Shape, error: &CublasError) -> String {
    let Shape { ty, rows, inputs, outputs, .. } = shape;
    format!(
        "cuBLASLt fails at products of {rows} rows, {inputs} inputs and {outputs} outputs in {ty:?} ({:?}), which our own \
         kernel now computes; INFER_CUDA_LIB sets the folder of another libcublasLt",
        error.0
    )
}

fn fault(error: &CublasError) -> CudaError {
    let kind = match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => CudaErrorKind::OutOfMemory,
        _ => CudaErrorKind::Failed,
    };
    CudaError { kind, message: format!("cuBLASLt: {error:?}") }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn shape(rows: u32) -> Shape {
        Shape { ty: Type::Bf16, rows, inputs: 64, outputs: 96, out_f32: false }
    }

    #[test]
    fn failures_other_than_a_missing_algorithm_are_reported_with_their_status() {
        let warnings = RefCell::new(Vec::new());
        let warn = |warning: &str| warnings.borrow_mut().push(warning.to_owned());
        let outcome = |planned| settled(shape(40), planned, &warn);
        assert_eq!(outcome(Ok(7)), Some(7));
        assert_eq!(outcome(Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))), None);
        assert!(warnings.borrow().is_empty());
        assert_eq!(outcome(Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR))), None);
        let said = warnings.borrow().concat();
        assert!(said.contains("40 rows, 64 inputs and 96 outputs in Bf16"), "{said}");
        assert!(said.contains("CUBLAS_STATUS_INTERNAL_ERROR"), "{said}");
    }

    #[test]
    fn full_cache_is_cleared_by_a_new_shape_but_not_within_a_recording() {
        let mut plans = Plans::new();
        (0..MAX_PLANS as u32).for_each(|rows| assert_eq!(*plans.of(shape(rows), || Some(rows)), Some(rows)));
        let known = |plans: &mut Plans<u32>, rows| *plans.of(shape(rows), || None);
        assert_eq!(known(&mut plans, 3), Some(3), "a known shape clears nothing");
        plans.recording = true;
        plans.of(shape(u32::MAX), || Some(0));
        assert_eq!(known(&mut plans, 5), Some(5));
        plans.recording = false;
        plans.of(shape(u32::MAX - 1), || Some(0));
        assert_eq!(plans.known.len(), 1);
    }
}
