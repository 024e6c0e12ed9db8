//! Modules and their functions. An image is only recognized: the functions are the emulator's.

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule, CUresult};
use infer_cuda_emulator::Kernel;

use super::put;
use crate::object::{Function, Object};
use crate::refusal::Refusal;
use crate::state::{Needs, State, call};

/// The first word of a fatbin.
const MAGIC: u32 = 0xba55_ed50;
/// Dynamic shared memory of a block without opting in.
const COMMON_SHARED: u32 = 48 << 10;
/// The architecture of the PTX in the program's image.
const PTX: c_int = 90;

impl State {
    pub(super) fn function(&mut self, handle: usize) -> Result<&mut Function, Refusal> {
        self.objects.get(handle, "function", |object| match object {
            Object::Function(function) => Some(function),
            _ => None,
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    call("cuModuleLoadData", Needs::Context, |state| {
        if !(image as usize).is_multiple_of(8) {
            return Err(Refusal::value("the image isn't aligned to words"));
        }
        // SAFETY: an image has at least this word, by the caller's promise.
        if image.is_null() || unsafe { image.cast::<u32>().read() } != MAGIC {
            return Err(Refusal::new(CUresult::CUDA_ERROR_INVALID_IMAGE, "this is no image"));
        }
        // SAFETY: the caller's promise.
        unsafe { put(module, state.objects.add(Object::Module) as CUmodule) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    call("cuModuleUnload", Needs::Context, |state| {
        state.objects.remove(module as usize, "module", |object| matches!(object, Object::Module))?;
        state.objects.remove_functions(module as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call("cuModuleGetFunction", Needs::ContextOrCapture, |state| {
        let module = module as usize;
        state.objects.get(module, "module", |object| matches!(object, Object::Module).then_some(object))?;
        // SAFETY: ends with a zero, by the caller's promise.
        let name = unsafe { CStr::from_ptr(name) };
        let missing = || Refusal::new(CUresult::CUDA_ERROR_NOT_FOUND, format!("{name:?} is no kernel"));
        let kernel = Kernel::find(name).ok_or_else(missing)?;
        let found = Function { kernel, module, shared_bytes: COMMON_SHARED, loaded: false };
        // SAFETY: the caller's promise.
        unsafe { put(function, state.objects.add(Object::Function(found)) as CUfunction) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    function: CUfunction,
) -> CUresult {
    call("cuFuncGetAttribute", Needs::ContextOrCapture, |state| {
        state.function(function as usize)?;
        if attribute != CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION as c_int {
            return Err(Refusal::value(format!("attribute {attribute} isn't emulated")));
        }
        // SAFETY: the caller's promise.
        unsafe { put(value, PTX) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: c_int,
    value: c_int,
) -> CUresult {
    const SHARED: c_int = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_int;
    const CARVEOUT: c_int = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as c_int;
    call("cuFuncSetAttribute", Needs::ContextOrCapture, |state| {
        let most = most_shared(state.capability);
        let function = state.function(function as usize)?;
        match (attribute, u32::try_from(value)) {
            (SHARED, Ok(bytes)) if bytes <= most => function.shared_bytes = bytes,
            (CARVEOUT, Ok(percent)) if percent <= 100 => {}
            _ => {
                return Err(Refusal::value(format!(
                    "attribute {attribute} can't be {value} here (most: {most})"
                )));
            }
        }
        Ok(())
    })
}

/// Shared memory that a block may opt in to (CUDA programming guide, technical specifications per compute capability).
fn most_shared(capability: (i32, i32)) -> u32 {
    match capability {
        (8, 0) => 163 << 10,
        (8, _) => 99 << 10,
        _ => 227 << 10,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> CUresult {
    call("cuFuncGetParamInfo", Needs::ContextOrCapture, |state| {
        let len = state.function(function as usize)?.kernel.params_bytes;
        if index != 0 {
            return Err(Refusal::value("kernels have one parameter"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            put(offset, 0)?;
            put(bytes, len)
        }
    })
}
