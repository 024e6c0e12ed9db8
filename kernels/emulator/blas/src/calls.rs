//! The functions themselves. Handles are addresses of boxes; a handle that was destroyed is the caller's fault, as with the
//! real library.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t, cublasStatus_t,
    cudaDataType_t, cudaStream_t,
};
use cudarc::driver::sys as driver;

use crate::descriptor::{Layout, Places, Product, Refusal, Shape};
use crate::matrix::multiply;

/// 13.0.
const VERSION: usize = 130_000;
/// How algorithms chosen here are recognized.
const ALGORITHM: u64 = 0x0001_4fe4;
/// What operands are aligned to, where a preference says nothing else.
const ALIGNMENT: u64 = 256;

/// What the library keeps per handle: products that a stream or a graph may still compute.
#[derive(Default)]
struct Library {
    jobs: Mutex<Vec<Arc<Job>>>,
}

struct Job {
    shape: Shape,
    places: Places,
    alpha: f32,
    beta: f32,
}

#[derive(Default)]
struct Preference {
    workspace_bytes: u64,
}

/// Reports a refusal like the emulated driver does.
#[expect(
    clippy::print_stderr,
    reason = "the program under test has its own log, which this library can't reach"
)]
fn answer(name: &str, outcome: Result<(), Refusal>) -> cublasStatus_t {
    match outcome {
        Ok(()) => cublasStatus_t::CUBLAS_STATUS_SUCCESS,
        Err(Refusal(status, why)) => {
            if status != cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                eprintln!("emulated CUDA: {name}: {why}");
            }
            status
        }
    }
}

/// Refuses a null pointer.
///
/// # Safety
/// The pointer is null or valid.
unsafe fn valid<'a, T, P>(pointer: *mut P) -> Result<&'a mut T, Refusal> {
    // SAFETY: the caller's promise; `P` is the interface's name for `T`.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or_else(|| Refusal::value("a null pointer"))
}

/// Hands out a new object.
///
/// # Safety
/// The pointer is null or valid for a write.
unsafe fn create<T, P>(to: *mut *mut P, object: T) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    unsafe { *valid::<*mut P, _>(to)? = Box::into_raw(Box::new(object)).cast() };
    Ok(())
}

/// Ends an object.
///
/// # Safety
/// It came from [`create`] with this type.
unsafe fn destroy<T, P>(object: *mut P) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    unsafe { drop(Box::from_raw(std::ptr::from_mut(valid::<T, P>(object)?))) };
    Ok(())
}

fn of_driver(result: driver::CUresult, what: &str) -> Result<(), Refusal> {
    match result {
        driver::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(Refusal(cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED, format!("{what}: {error:?}"))),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t {
    let begin = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes a pointer.
        of_driver(unsafe { driver::cuCtxGetCurrent(&raw mut context) }, "cuCtxGetCurrent")?;
        if context.is_null() {
            let status = cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED;
            return Err(Refusal(status, "no context is current on this thread".to_owned()));
        }
        // SAFETY: the caller's promise.
        unsafe { create(handle, Library::default()) }
    };
    answer("cublasLtCreate", begin())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t {
    // SAFETY: the caller's promise.
    answer("cublasLtDestroy", unsafe { destroy::<Library, _>(handle) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut cublasLtMatrixLayout_t,
    kind: cudaDataType_t,
    rows: u64,
    columns: u64,
    leading: i64,
) -> cublasStatus_t {
    let made = Layout::new(kind, rows, columns, leading);
    // SAFETY: the caller's promise.
    answer("cublasLtMatrixLayoutCreate", made.and_then(|made| unsafe { create(layout, made) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t {
    // SAFETY: the caller's promise.
    answer("cublasLtMatrixLayoutDestroy", unsafe { destroy::<Layout, _>(layout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(
    product: *mut cublasLtMatmulDesc_t,
    compute: cublasComputeType_t,
    scale: cudaDataType_t,
) -> cublasStatus_t {
    let made = Product::new(compute, scale);
    // SAFETY: the caller's promise.
    answer("cublasLtMatmulDescCreate", made.and_then(|made| unsafe { create(product, made) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    product: cublasLtMatmulDesc_t,
    attribute: Attribute,
    value: *const c_void,
    bytes: usize,
) -> cublasStatus_t {
    let set = || {
        let b = match attribute {
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA => false,
            Attribute::CUBLASLT_MATMUL_DESC_TRANSB => true,
            _ => return Err(Refusal::value(format!("{attribute:?} isn't emulated"))),
        };
        // SAFETY: the caller's promise.
        unsafe { valid::<Product, _>(product)?.set(b, value, bytes) }
    };
    answer("cublasLtMatmulDescSetAttribute", set())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescDestroy(product: cublasLtMatmulDesc_t) -> cublasStatus_t {
    // SAFETY: the caller's promise.
    answer("cublasLtMatmulDescDestroy", unsafe { destroy::<Product, _>(product) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(
    preference: *mut cublasLtMatmulPreference_t,
) -> cublasStatus_t {
    // SAFETY: the caller's promise.
    answer("cublasLtMatmulPreferenceCreate", unsafe { create(preference, Preference::default()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: cublasLtMatmulPreference_t,
    attribute: PreferenceAttribute,
    value: *const c_void,
    bytes: usize,
) -> cublasStatus_t {
    let set = || {
        let is_known = attribute == PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        if !is_known || value.is_null() || bytes != size_of::<u64>() {
            return Err(Refusal::value(format!("{attribute:?} of {bytes} bytes isn't emulated")));
        }
        // SAFETY: the caller's promise.
        unsafe { valid::<Preference, _>(preference)?.workspace_bytes = value.cast::<u64>().read_unaligned() };
        Ok(())
    };
    answer("cublasLtMatmulPreferenceSetAttribute", set())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(
    preference: cublasLtMatmulPreference_t,
) -> cublasStatus_t {
    // SAFETY: the caller's promise.
    answer("cublasLtMatmulPreferenceDestroy", unsafe { destroy::<Preference, _>(preference) })
}

/// # Safety
/// The descriptors are alive or null.
unsafe fn shape(
    product: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 4],
) -> Result<Shape, Refusal> {
    let [a, b, c, d] = layouts;
    // SAFETY: the caller's promise.
    let layout = |layout| unsafe { valid::<Layout, _>(layout) }.copied();
    // SAFETY: as above.
    let product = *unsafe { valid::<Product, _>(product) }?;
    let shape = Shape { product, a: layout(a)?, b: layout(b)?, c: layout(c)?, d: layout(d)? };
    shape.check()?;
    Ok(shape)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    c: cublasLtMatrixLayout_t,
    d: cublasLtMatrixLayout_t,
    preference: cublasLtMatmulPreference_t,
    wanted: c_int,
    results: *mut cublasLtMatmulHeuristicResult_t,
    found: *mut c_int,
) -> cublasStatus_t {
    let choose = || {
        // SAFETY: the caller's promise.
        unsafe {
            valid::<Library, _>(handle)?;
            let workspace = valid::<Preference, _>(preference)?.workspace_bytes as usize;
            let (rows, columns, _) = shape(product, [a, b, c, d])?.extent();
            if wanted < 1 {
                return Err(Refusal::value("no results are wanted"));
            }
            let algo = cublasLtMatmulAlgo_t { data: [ALGORITHM, rows as u64, columns as u64, 0, 0, 0, 0, 0] };
            *valid::<cublasLtMatmulHeuristicResult_t, _>(results)? = cublasLtMatmulHeuristicResult_t {
                algo,
                workspaceSize: workspace,
                state: cublasStatus_t::CUBLAS_STATUS_SUCCESS,
                wavesCount: 1.0,
                reserved: [0; 4],
            };
            *valid::<c_int, _>(found)? = 1;
        }
        Ok(())
    };
    answer("cublasLtMatmulAlgoGetHeuristic", choose())
}

/// Refuses memory that isn't the device's, or is less aligned than an algorithm may count on.
fn check_place(name: &str, at: u64, bytes: usize) -> Result<(), Refusal> {
    if !at.is_multiple_of(ALIGNMENT) {
        return Err(Refusal::value(format!("{name} at {at:#x} isn't aligned to {ALIGNMENT} bytes")));
    }
    let (mut start, mut len) = (0, 0);
    // SAFETY: writes two numbers.
    of_driver(unsafe { driver::cuMemGetAddressRange_v2(&raw mut start, &raw mut len, at) }, name)?;
    if at - start + bytes as u64 > len as u64 {
        return Err(Refusal::value(format!("{bytes} bytes of {name} at {at:#x} leave their allocation")));
    }
    Ok(())
}

/// Computes a job: what the stream calls.
unsafe extern "C" fn compute(job: *mut c_void) {
    // SAFETY: the library keeps its jobs until it is closed; their matrices are there by its caller's promise.
    unsafe {
        let Job { shape, places, alpha, beta } = &*job.cast::<Job>();
        multiply(shape, places, *alpha, *beta);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: cublasLtHandle_t,
    product: cublasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: cublasLtMatrixLayout_t,
    b: *const c_void,
    b_layout: cublasLtMatrixLayout_t,
    beta: *const c_void,
    c: *const c_void,
    c_layout: cublasLtMatrixLayout_t,
    d: *mut c_void,
    d_layout: cublasLtMatrixLayout_t,
    algorithm: *const cublasLtMatmulAlgo_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: cudaStream_t,
) -> cublasStatus_t {
    let start = || {
        // SAFETY: the caller's promise.
        let (shape, library, algorithm, alpha, beta) = unsafe {
            (
                shape(product, [a_layout, b_layout, c_layout, d_layout])?,
                valid::<Library, _>(handle)?,
                valid::<cublasLtMatmulAlgo_t, _>(algorithm.cast_mut())?.data,
                *valid::<f32, _>(alpha.cast_mut())?,
                *valid::<f32, _>(beta.cast_mut())?,
            )
        };
        let (rows, columns, _) = shape.extent();
        if algorithm[..3] != [ALGORITHM, rows as u64, columns as u64] {
            return Err(Refusal::value("the algorithm was chosen for another shape"));
        }
        let places = Places { a: a as u64, b: b as u64, c: c as u64, d: d as u64 };
        let used = [
            ("A", places.a, shape.a.bytes()),
            ("B", places.b, shape.b.bytes()),
            ("C", places.c, shape.c.bytes()),
            ("D", places.d, shape.d.bytes()),
            ("the workspace", workspace as u64, workspace_bytes),
        ];
        used.iter().try_for_each(|(name, at, bytes)| check_place(name, *at, *bytes))?;
        let mut jobs = library.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let job = Arc::new(Job { shape, places, alpha, beta });
        jobs.push(Arc::clone(&job));
        // SAFETY: the job lives until the library is closed.
        let called = unsafe {
            driver::cuLaunchHostFunc(stream.cast(), Some(compute), Arc::as_ptr(&job).cast_mut().cast())
        };
        of_driver(called, "cuLaunchHostFunc")
    };
    answer("cublasLtMatmul", start())
}
