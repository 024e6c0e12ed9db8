//! An NVIDIA GPU as a [`Device`], through the driver API: one stream, kernels from the image embedded by the build.
//!
//! Driver calls act on the calling thread's current context, so every method binds it first: weights may be loaded on
//! another thread than the engine's.

mod error;
mod image;
mod session;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use cudarc::driver::sys;

use super::attention::WARPGROUP_KERNEL;
use super::blas::Blas;
use super::device::{Device, Graph, Launch, Mark, Memory, Properties, Type, VendorLibrary};
use super::error::{CudaError, CudaErrorKind};
use super::library;
use super::params::ProductParams;
use super::switches::Switches;
use error::{fault, no_gpu, unloadable};
pub use image::kernels_embedded;
use session::{Context, DriverGraph, DriverMark, Session};

/// PTX of this architecture and newer ones waits in `take_turn` of `device.cuh`, which asks for the same.
const WAITING_PTX: i32 = 90;

/// Dynamic shared memory that a block surely may use without opting in. The 48 KiB that it has by default may also have to
/// hold the kernel's static shared memory and the 1 KiB that the system reserves.
const COMMON_SHARED: u32 = 47 << 10;

/// A GPU.
pub struct Driver {
    session: Arc<Session>,
    functions: Mutex<HashMap<&'static str, Function>>,
    blas: Option<Blas>,
    /// Whether kernels launched now may start early.
    early: AtomicBool,
    properties: Properties,
}

/// A kernel and the shared memory it may use.
#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    shared_bytes: u32,
}

impl Function {
    /// Sets an attribute that has to do with shared memory.
    fn set(&self, kind: sys::CUfunction_attribute, value: u32, kernel: &str) -> Result<(), CudaError> {
        // SAFETY: a function of the session's module, which is loaded as long as the driver is in use.
        unsafe { result::function::set_function_attribute(self.handle, kind, value as i32) }
            .map_err(|error| fault(&format!("shared memory for {kernel}"), error))
    }
}

// SAFETY: functions are handles of the session's module, mutable state is behind a mutex, and any thread may use
// cuBLASLt's handle.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens the `index`-th GPU. `warn` is told when the vendor's library doesn't start or fails at a shape of products,
    /// which our own kernels then compute.
    ///
    /// # Errors
    /// If a switch is out of range, or if kernels, driver or device are missing; the message says which. Missing kernels
    /// come before missing devices, so a machine without a GPU can tell whether a binary has them.
    pub fn open(index: u32, warn: fn(&str)) -> Result<Self, CudaError> {
        let refuse = |kind, message: String| Err(CudaError { kind, message });
        let switches = Switches::from_environment()?;
        if switches.image.is_none() && !kernels_embedded() {
            let message = "this program was built without a CUDA toolkit and contains no GPU kernels; see \
                           `cargo xtask cuda-toolkit`";
            return refuse(CudaErrorKind::NoKernels, message.to_owned());
        }
        let image = image::load(switches.image.as_deref())?;
        if library::open(&["libcuda.so.1", "libcuda.so"]).is_none() {
            return refuse(CudaErrorKind::NoDevice, "no NVIDIA driver (libcuda.so.1) was found".to_owned());
        }
        let count = result::init().and_then(|()| result::device::get_count());
        let count = match count {
            Ok(count) if count > 0 => count,
            Ok(_) => return refuse(CudaErrorKind::NoDevice, "the NVIDIA driver reports no GPU".to_owned()),
            Err(error) => return Err(no_gpu(error)),
        };
        if i64::from(index) >= i64::from(count) {
            let message = format!("there is no GPU {index}: the driver reports {count}, numbered from 0");
            return refuse(CudaErrorKind::NoDevice, message);
        }
        Self::start(index as i32, &image, switches, warn)
    }

    fn start(index: i32, image: &[u64], switches: Switches, warn: fn(&str)) -> Result<Self, CudaError> {
        let wrong = |what: &'static str| move |error| fault(what, error);
        let device = result::device::get(index).map_err(wrong("no such device"))?;
        let attribute = |attribute| {
            // SAFETY: the device handle just came from the driver.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            value.map(|value| value as u32).map_err(wrong("the device's attributes"))
        };
        let capability = (
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let name = result::device::get_name(device).map_err(wrong("the device's name"))?;
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(CudaError::failed(format!(
                "{name} has compute capability {major}.{minor}; kernels need 8.0 or newer"
            )));
        }
        let multiprocessors = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        let shared_bytes = attribute(shared)?;
        let context = Context::retain(device).map_err(wrong("no context"))?;
        context.bind().map_err(wrong("no context"))?;
        // SAFETY: the image is as long as it records, and the driver copies it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(|error| unloadable(switches.image.as_deref(), error))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(|error| {
            // SAFETY: loaded above and not used by anything.
            let _ = unsafe { result::module::unload(module) };
            fault("no stream", error)
        })?;
        let mut driver = Self {
            session: Arc::new(Session::new(stream, module, context)),
            functions: Mutex::default(),
            blas: None,
            early: AtomicBool::new(false),
            properties: Properties {
                name,
                capability,
                multiprocessors,
                shared_bytes,
                early: false,
                warpgroups: false,
                vendor_products: None,
                switches,
            },
        };
        driver.properties.early =
            capability.0 == 9 && driver.properties.switches.early && driver.kernels_wait()?;
        driver.early = AtomicBool::new(driver.properties.early);
        // An image for other architectures lacks these kernels.
        driver.properties.warpgroups = capability == (9, 0) && driver.find(WARPGROUP_KERNEL).is_ok();
        let names = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
        if let Some(opened) = library::open_packaged(&names) {
            driver.use_vendor(opened, if capability.0 >= 9 { 32 << 20 } else { 4 << 20 }, warn);
        }
        Ok(driver)
    }

    /// Uses the vendor's library for large products. If it doesn't start, our kernels compute them.
    fn use_vendor(&mut self, opened: PathBuf, workspace_bytes: usize, warn: fn(&str)) {
        let workspace = match self.allocate(workspace_bytes) {
            Ok(workspace) => workspace,
            Err(error) => return warn(&format!("{} is not used, for want of {error}", opened.display())),
        };
        match Blas::new(workspace, workspace_bytes, warn) {
            Ok(blas) => {
                self.blas = Some(blas);
                let file = Blas::file().unwrap_or_else(|| opened.clone());
                let passed_over = library::is_other(&opened, &file).then_some(opened);
                self.properties.vendor_products =
                    Some(VendorLibrary { version: Blas::version(), file, passed_over });
            }
            Err(error) => {
                warn(&format!("{} doesn't start: {error}", opened.display()));
                // SAFETY: allocated above and not used by anything.
                unsafe { self.free(workspace, workspace_bytes) };
            }
        }
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.session.bind()
    }

    fn tell_recording(&self, recording: bool) {
        if let Some(blas) = &self.blas {
            blas.set_recording(recording);
        }
    }

    /// The file that the kernels are from, if not the program itself.
    fn image_file(&self) -> Option<&Path> {
        self.properties.switches.image.as_deref()
    }

    /// Whether kernels wait for those ahead of them, without which none may start early. The architecture that their PTX was
    /// compiled for says so, also that of machine code made from it. The machine code's own doesn't: the driver compiles
    /// PTX without waits for the device's architecture. One kernel tells, as an image's kernels are compiled at once. If the
    /// driver doesn't tell, none starts early.
    fn kernels_wait(&self) -> Result<bool, CudaError> {
        let kind = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: a function of the session's module.
        let version = unsafe { result::function::get_function_attribute(self.find("copy_blocks")?, kind) };
        Ok(version.is_ok_and(|version| version >= WAITING_PTX))
    }

    fn find(&self, kernel: &str) -> Result<sys::CUfunction, CudaError> {
        let name = CString::new(kernel).expect("kernel names hold no zero");
        // SAFETY: the module lives as long as this.
        unsafe { result::module::get_function(self.session.module, name) }.map_err(|error| {
            image::named(self.image_file(), fault(&format!("finding kernel {kernel}"), error))
        })
    }

    fn function(&self, launch: &Launch<'_>) -> Result<sys::CUfunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = functions.get(launch.kernel).copied();
        let mut function = match known {
            Some(function) => function,
            None => {
                let handle = self.find(launch.kernel)?;
                if let (Some(file), Some(bytes)) = (self.image_file(), params_bytes(handle)) {
                    image::check_params(file, launch.kernel, bytes, launch.params.len())?;
                }
                let function = Function { handle, shared_bytes: COMMON_SHARED };
                if let Some(percent) = self.properties.switches.carveout {
                    let kind = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                    function.set(kind, percent, launch.kernel)?;
                }
                function
            }
        };
        if launch.shared_bytes > function.shared_bytes {
            let kind = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set(kind, launch.shared_bytes, launch.kernel)?;
            function.shared_bytes = launch.shared_bytes;
        }
        functions.insert(launch.kernel, function);
        Ok(function.handle)
    }
}

/// Bytes of a kernel's parameters. `None` if the driver, older than CUDA 12.4, doesn't tell.
fn params_bytes(function: sys::CUfunction) -> Option<usize> {
    let name = "cuFuncGetParamInfo";
    let (mut at, mut bytes) = (0, 0);
    // The call panics if the driver lacks it.
    // SAFETY: a function of the session's module; two numbers are written.
    unsafe {
        sys::culib().get::<unsafe extern "C" fn()>(name).ok()?;
        sys::cuFuncGetParamInfo(function, 0, &raw mut at, &raw mut bytes).result().ok()?;
    }
    Some(bytes)
}

/// Milliseconds between two events, both completed. cudarc calls this function's second version, which drivers older than
/// CUDA 12.8 lack, and panics without it; every driver has the first.
///
/// # Safety
/// Both events are alive.
unsafe fn elapsed_ms(begin: sys::CUevent, end: sys::CUevent) -> Result<f32, CudaError> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    let name = "cuEventElapsedTime";
    let mut ms = 0.0;
    // SAFETY: the function has this type; the caller's promise; a number is written.
    unsafe {
        let elapsed = sys::culib().get::<Elapsed>(name);
        let elapsed = elapsed.map_err(|_| CudaError::failed(format!("timing: the driver lacks {name}")))?;
        elapsed(&raw mut ms, begin, end).result().map_err(|error| fault("timing", error))?;
    }
    Ok(ms)
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
            // SAFETY: the caller's promise. The call waits for the device, so earlier launches are done.
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
        // Each kernel itself waits for those ahead of it (`take_turn` of `device.cuh`), so it may start early.
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
            numAttrs: u32::from(self.early.load(Ordering::Relaxed)),
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

    fn begin_recording(&self, early: bool) -> Result<(), CudaError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::begin_capture(self.session.stream, mode) }
            .map_err(|error| fault("recording", error))?;
        self.tell_recording(true);
        self.early.store(early && self.properties.early, Ordering::Relaxed);
        Ok(())
    }

    fn end_recording(&self) -> Result<Box<dyn Graph>, CudaError> {
        self.tell_recording(false);
        self.early.store(self.properties.early, Ordering::Relaxed);
        self.bind()?;
        // SAFETY: the stream lives as long as this.
        let graph = unsafe { result::stream::end_capture(self.session.stream) }
            .map_err(|error| fault("recording", error))?;
        if graph.is_null() {
            return Err(CudaError::failed("the recording was aborted"));
        }
        // SAFETY: the graph was just created, and its executable form doesn't need it.
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
            .map_err(|error| fault("waiting for its work", error))
    }

    fn time_us(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.bind()?;
        let event = || {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            result::event::create(flags).map_err(|error| fault("no event", error))
        };
        let (begin, end) = (event()?, event()?);
        // SAFETY: events and stream are alive; both events have completed when the elapsed time is read.
        let elapsed = unsafe {
            let wrong = |error| fault("timing", error);
            let begun = result::event::record(begin, self.session.stream).map_err(wrong);
            let outcome = begun.and_then(|()| work()).and_then(|()| {
                result::event::record(end, self.session.stream).map_err(wrong)?;
                self.wait()?;
                elapsed_ms(begin, end)
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
            // SAFETY: only cuBLASLt uses this memory, and all work on it is done after the wait.
            unsafe {
                let _ = result::stream::synchronize(self.session.stream);
                let _ = result::free_sync(blas.close());
            }
        }
    }
}
