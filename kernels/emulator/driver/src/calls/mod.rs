//! The functions themselves, by what they act on.
//!
//! All take pointers from C. Each says with [`put`] what it writes, and refuses null; that other pointers point to what
//! their types say is the caller's promise, as for the real library.

mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod stream;

use crate::refusal::Refusal;

/// Writes an answer through a pointer from C.
///
/// # Safety
/// The pointer is null or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Refusal> {
    if to.is_null() {
        return Err(Refusal::value("a null pointer for an answer"));
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}
