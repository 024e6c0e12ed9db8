//! An NVIDIA GPU behind [`Device`], through the driver API. One stream, kernels from the image that the build embedded.
//!
//! Driver calls go to the context of the calling thread, so every method binds it first: the engine thread and the one
//! that loads may differ.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::blas::Blas;
use super::device::{Device, Graph, Launch, Mark, Memory, Properties, Type};
use super::error::{CudaError, CudaErrorKind};
use super::library;
use super::params::ProductParams;

/// Every kernel for sm_80, sm_89 and sm_90, and PTX for what is newer; empty where no toolkit was there.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// Shared memory of a block that needs no permission.
const COMMON_SHARED: u32 = 48 << 10;

/// Whether this program was built with a toolkit and holds kernels.
pub fn kernels_embedded() -> bool {
    !KERNELS.is_empty()
}

/// A GPU.
pub struct Driver {
    session: Arc<Session>,
    functions: Mutex<HashMap<&'static str, Function>>,
    blas: Option<Blas>,
    /// Whether a kernel may come to the device before the one ahead of it is done.
    early: bool,
    properties: Properties,
}

/// The stream and the kernels of a [`Driver`]. Recordings and marks hold it, too: they end before it does, whoever is
/// dropped first.
struct Session {
    stream: sys::CUstream,
    module: sys::CUmodule,
    // Given back last.
    context: Context,
}

/// A device's primary context. What is left in it goes with it.
struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: handles may be used from any thread that binds the context; the driver orders calls on a stream.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    /// The context becomes the calling thread's.
    fn bind(&self) -> Result<(), CudaError> {
        self.context.bind().map_err(|error| fault("no context", error))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: nobody else has these handles any more.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::module::unload(self.module);
            let _ = result::stream::destroy(self.stream);
        }
    }
}

impl Context {
    fn retain(device: sys::CUdevice) -> Result<Self, DriverError> {
        // SAFETY: the device was got from the driver.
        let handle = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Self { device, handle })
    }

    fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: retained until this is dropped.
        unsafe { result::ctx::set_current(self.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, given back once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A kernel and how much shared memory it was allowed.
#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    shared_bytes: u32,
}

// SAFETY: functions are handles of the session's module; what changes is behind a mutex, and cuBLASLt's handle may be
// used from any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens the `index`-th GPU.
    ///
    /// # Errors
    /// Says whether the kernels, the driver or the device are missing.
    pub fn open(index: u32) -> Result<Self, CudaError> {
        let refuse = |kind, message: String| Err(CudaError { kind, message });
        if !library::open(&["libcuda.so.1", "libcuda.so"]) {
            return refuse(CudaErrorKind::NoDevice, "no NVIDIA driver (libcuda.so.1) was found".to_owned());
        }
        if !kernels_embedded() {
            let message = "this program was built without a CUDA toolkit and holds no GPU kernels; see \
                           `cargo xtask cuda-toolkit`";
            return refuse(CudaErrorKind::NoKernels, message.to_owned());
        }
        let count = result::init().and_then(|()| result::device::get_count());
        let count = match count {
            Ok(count) if count > 0 => count,
            Ok(_) => return refuse(CudaErrorKind::NoDevice, "the NVIDIA driver shows no GPU".to_owned()),
            Err(error) => {
                return refuse(
                    CudaErrorKind::NoDevice,
                    format!("the NVIDIA driver shows no GPU ({error:?})"),
                );
            }
        };
        if i64::from(index) >= i64::from(count) {
            let message = format!("there is no GPU {index}: the driver shows {count}, counted from 0");
            return refuse(CudaErrorKind::NoDevice, message);
        }
        Self::start(index as i32)
    }

    fn start(index: i32) -> Result<Self, CudaError> {
        let wrong = |what: &'static str| move |error| fault(what, error);
        let device = result::device::get(index).map_err(wrong("no such device"))?;
        let attribute = |attribute| {
            // SAFETY: the device was just got.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            value.map(|value| value as u32).map_err(wrong("the device doesn't say what it is"))
        };
        let capability = (
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let name = result::device::get_name(device).map_err(wrong("the device has no name"))?;
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(CudaError::failed(format!(
                "{name} has compute capability {major}.{minor}; 8.0 or newer is needed"
            )));
        }
        let multiprocessors = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let context = Context::retain(device).map_err(wrong("no context"))?;
        context.bind().map_err(wrong("no context"))?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(wrong("no stream"))?;
        // Embedded bytes may lie anywhere; the driver reads words.
        let mut image = vec![0_u64; KERNELS.len().div_ceil(8)];
        // SAFETY: as many bytes are there. The image knows its own length, and the driver copies it.
        let module = unsafe {
            std::ptr::copy_nonoverlapping(KERNELS.as_ptr(), image.as_mut_ptr().cast(), KERNELS.len());
            result::module::load_data(image.as_ptr().cast())
        }
        .map_err(|error| fault(&too_old().unwrap_or("the kernels can't be loaded".to_owned()), error))?;
        let mut driver = Self {
            session: Arc::new(Session { stream, module, context }),
            functions: Mutex::default(),
            blas: None,
            early: capability.0 == 9
                && std::env::var_os("INFER_CUDA_EARLY").is_none_or(|value| value != "off"),
            properties: Properties { name, capability, multiprocessors, vendor_products: None },
        };
        if library::open(&["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]) {
            driver.use_vendor(if capability.0 >= 9 { 32 << 20 } else { 4 << 20 });
        }
        Ok(driver)
    }

    /// Takes the vendor's library for large products. Where it doesn't start, ours compute them.
    fn use_vendor(&mut self, workspace_bytes: usize) {
        let Ok(workspace) = self.allocate(workspace_bytes) else { return };
        match Blas::new(workspace, workspace_bytes) {
            Ok(blas) => {
                self.blas = Some(blas);
                self.properties.vendor_products = Some(Blas::version());
            }
            // SAFETY: allocated above, used by nobody.
            Err(_) => unsafe { self.free(workspace, workspace_bytes) },
        }
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.session.bind()
    }

    fn function(&self, launch: &Launch<'_>) -> Result<sys::CUfunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = functions.get(launch.kernel).copied();
        let mut function = match known {
            Some(function) => function,
            None => {
                let name = CString::new(launch.kernel).expect("kernel names hold no zero");
                // SAFETY: the module lives as long as this.
                let handle = unsafe { result::module::get_function(self.session.module, name) }
                    .map_err(|error| fault(&format!("no kernel {}", launch.kernel), error))?;
                Function { handle, shared_bytes: COMMON_SHARED }
            }
        };
        if launch.shared_bytes > function.shared_bytes {
            let kind = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of the module.
            unsafe {
                result::function::set_function_attribute(function.handle, kind, launch.shared_bytes as i32)
            }
            .map_err(|error| fault(&format!("{} and its shared memory", launch.kernel), error))?;
            function.shared_bytes = launch.shared_bytes;
        }
        functions.insert(launch.kernel, function);
        Ok(function.handle)
    }
}

impl Device for Driver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<Memory, CudaError> {
        self.bind()?;
        let (free, total) = result::mem_get_info().map_err(|error| fault("memory", error))?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        self.bind()?;
        // SAFETY: a plain allocation.
        unsafe { result::malloc_sync(bytes) }
            .map_err(|error| fault(&format!("{bytes} bytes of device memory"), error))
    }

    unsafe fn free(&self, at: u64, _bytes: usize) {
        if self.bind().is_ok() {
            // SAFETY: the caller's promise. The call waits for the device, so launches before it are over.
            let _ = unsafe { result::free_sync(at) };
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        self.bind()?;
        // SAFETY: a plain allocation.
        unsafe { result::malloc_host(bytes, 0) }
            .map(<*mut c_void>::cast)
            .map_err(|error| fault(&format!("{bytes} bytes of pinned memory"), error))
    }

    unsafe fn free_host(&self, at: *mut u8, _bytes: usize) {
        if self.bind().is_ok() {
            // SAFETY: the caller's promise.
            let _ = unsafe { result::free_host(at.cast()) };
        }
    }

    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(to, from, self.session.stream) }
            .map_err(|error| fault("copy to the device", error))
    }

    unsafe fn copy_out(&self, from: u64, to: &mut [u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_async(to, from, self.session.stream) }
            .map_err(|error| fault("copy from the device", error))
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.session.stream) }
            .map_err(|error| fault("copy within the device", error))
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(at, byte, bytes, self.session.stream) }
            .map_err(|error| fault("fill", error))
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<(), CudaError> {
        self.bind()?;
        let function = self.function(&launch)?;
        let [x, y, z] = launch.grid;
        let mut params = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // Kernels wait for those ahead of them themselves (`take_turn` of `device.cuh`), so they may be sent early.
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.session.stream,
            attrs: &mut attribute,
            numAttrs: u32::from(self.early),
        };
        // SAFETY: the caller's promise; the driver copies the parameters during the call.
        unsafe {
            sys::cuLaunchKernelEx(&config, function, params.as_mut_ptr(), std::ptr::null_mut()).result()
        }
        .map_err(|error| fault(launch.kernel, error))
    }

    unsafe fn vendor_product(&self, ty: Type, params: &ProductParams) -> Result<bool, CudaError> {
        let Some(blas) = &self.blas else { return Ok(false) };
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { blas.product(ty, params, self.session.stream) }
    }

    fn begin_recording(&self) -> Result<(), CudaError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::begin_capture(self.session.stream, mode) }
            .map_err(|error| fault("recording", error))
    }

    fn end_recording(&self) -> Result<Box<dyn Graph>, CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as this.
        let graph = unsafe { result::stream::end_capture(self.session.stream) }
            .map_err(|error| fault("recording", error))?;
        if graph.is_null() {
            return Err(CudaError::failed("the recording broke off"));
        }
        // SAFETY: the graph was just made, and the executable one doesn't need it.
        let executable = unsafe {
            let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            executable
        };
        let executable = executable.map_err(|error| fault("a graph of launches", error))?;
        Ok(Box::new(DriverGraph { executable, session: Arc::clone(&self.session) }))
    }

    fn mark(&self) -> Result<Box<dyn Mark>, CudaError> {
        self.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).map_err(|error| fault("no event", error))?;
        Ok(Box::new(DriverMark { event, session: Arc::clone(&self.session) }))
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.session.stream) }
            .map_err(|error| fault("the device", error))
    }

    fn time_us(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.bind()?;
        let event = || {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            result::event::create(flags).map_err(|error| fault("no event", error))
        };
        let (begin, end) = (event()?, event()?);
        // SAFETY: events and stream are alive; the elapsed time is asked for once both were reached.
        let elapsed = unsafe {
            let wrong = |error| fault("timing", error);
            let begun = result::event::record(begin, self.session.stream).map_err(wrong);
            let outcome = begun.and_then(|()| work()).and_then(|()| {
                result::event::record(end, self.session.stream).map_err(wrong)?;
                self.wait()?;
                result::event::elapsed(begin, end).map_err(wrong)
            });
            let _ = (result::event::destroy(begin), result::event::destroy(end));
            outcome
        };
        elapsed.map(|ms| f64::from(ms) * 1e3)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(blas) = self.blas.take() else { return };
        if self.bind().is_ok() {
            // SAFETY: nobody else has its memory; what is under way ends first.
            unsafe {
                let _ = result::stream::synchronize(self.session.stream);
                let _ = result::free_sync(blas.close());
            }
        }
    }
}

struct DriverGraph {
    executable: sys::CUgraphExec,
    session: Arc<Session>,
}

// SAFETY: used by one owner at a time, which binds the context.
unsafe impl Send for DriverGraph {}

impl Graph for DriverGraph {
    unsafe fn launch(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: the caller's promise; the session keeps its handles.
        unsafe { result::graph::launch(self.executable, self.session.stream) }
            .map_err(|error| fault("a graph of launches", error))
    }
}

impl Drop for DriverGraph {
    fn drop(&mut self) {
        if self.session.bind().is_ok() {
            // SAFETY: made by `end_recording`, used by nobody else.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

struct DriverMark {
    event: sys::CUevent,
    session: Arc<Session>,
}

// SAFETY: used by one owner at a time, which binds the context.
unsafe impl Send for DriverMark {}

impl Mark for DriverMark {
    fn set(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: the event is this one's own, the session keeps its stream.
        unsafe { result::event::record(self.event, self.session.stream) }
            .map_err(|error| fault("a mark", error))
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: as above.
        unsafe { result::event::synchronize(self.event) }.map_err(|error| fault("the device", error))
    }
}

impl Drop for DriverMark {
    fn drop(&mut self) {
        if self.session.bind().is_ok() {
            // SAFETY: made by `mark`, used by nobody else.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// What to say of a driver that may be older than the kernels' image.
fn too_old() -> Option<String> {
    let mut version = 0;
    // SAFETY: writes a number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    let (major, minor) = (version / 1_000, version % 1_000 / 10);
    let text = format!(
        "this driver is of CUDA {major}.{minor} and can't load the kernels: those that a toolkit of CUDA 13 made \
         need driver 580 or newer"
    );
    (major < 13).then_some(text)
}

fn fault(what: &str, error: DriverError) -> CudaError {
    let kind = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaErrorKind::OutOfMemory,
        sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaErrorKind::NoDevice,
        // After these every call fails with the same, until the process ends.
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | sys::CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | sys::CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | sys::CUresult::CUDA_ERROR_INVALID_PC
        | sys::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | sys::CUresult::CUDA_ERROR_ASSERT
        | sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | sys::CUresult::CUDA_ERROR_LAUNCH_FAILED
        | sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => CudaErrorKind::Lost,
        _ => CudaErrorKind::Failed,
    };
    CudaError { kind, message: format!("{what}: {error:?}") }
}
