//! Handles of the driver API with owners: context, stream, module, graphs and events.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::error::fault;
use crate::cuda::device::{Graph, Mark};
use crate::cuda::error::CudaError;

/// The stream and the loaded kernels of a driver. Graphs and marks share ownership, so the session outlives them in
/// whatever order things are dropped.
pub(super) struct Session {
    pub(super) stream: sys::CUstream,
    pub(super) module: sys::CUmodule,
    // Declared last, so it is released last.
    context: Context,
}

/// A device's primary context. Releasing it frees everything still in it.
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: any thread that binds the context may use the handles; the driver orders calls on a stream.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    pub(super) fn new(stream: sys::CUstream, module: sys::CUmodule, context: Context) -> Self {
        Self { stream, module, context }
    }

    /// Makes the context current on the calling thread.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind().map_err(|error| fault("no context", error))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: the last owner of these handles is being dropped.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::module::unload(self.module);
            let _ = result::stream::destroy(self.stream);
        }
    }
}

impl Context {
    pub(super) fn retain(device: sys::CUdevice) -> Result<Self, DriverError> {
        // SAFETY: the device handle came from the driver.
        let handle = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Self { device, handle })
    }

    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: retained until drop.
        unsafe { result::ctx::set_current(self.handle) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// An executable graph.
pub(super) struct DriverGraph {
    pub(super) executable: sys::CUgraphExec,
    pub(super) session: Arc<Session>,
}

// SAFETY: one owner uses it at a time, and binds the context first.
unsafe impl Send for DriverGraph {}

impl Graph for DriverGraph {
    unsafe fn launch(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: the caller's promise; the session keeps the stream alive.
        unsafe { result::graph::launch(self.executable, self.session.stream) }
            .map_err(|error| fault("a graph of launches", error))
    }
}

impl Drop for DriverGraph {
    fn drop(&mut self) {
        if self.session.bind().is_ok() {
            // SAFETY: created by `end_recording`; this is its only owner.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// An event on the session's stream.
pub(super) struct DriverMark {
    pub(super) event: sys::CUevent,
    pub(super) session: Arc<Session>,
}

// SAFETY: one owner uses it at a time, and binds the context first.
unsafe impl Send for DriverMark {}

impl Mark for DriverMark {
    fn set(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: this owns the event, and the session keeps the stream alive.
        unsafe { result::event::record(self.event, self.session.stream) }
            .map_err(|error| fault("a mark", error))
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.session.bind()?;
        // SAFETY: as above.
        unsafe { result::event::synchronize(self.event) }
            .map_err(|error| fault("waiting for its work", error))
    }
}

impl Drop for DriverMark {
    fn drop(&mut self) {
        if self.session.bind().is_ok() {
            // SAFETY: created by `mark`; this is its only owner.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
