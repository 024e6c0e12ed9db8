//! Finds the vendor's libraries at run time. Nothing is linked, so the same program runs on a machine without them.

use std::path::PathBuf;

/// Search order: `INFER_CUDA_LIB`, the loader's own paths (an empty path), then the usual places of toolkits.
fn directories() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places: Vec<PathBuf> = variable("INFER_CUDA_LIB").into_iter().collect();
    places.push(PathBuf::new());
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        places.extend([root.join("lib64"), root.join("lib")]);
    }
    places.push(PathBuf::from("/usr/local/cuda/lib64"));
    places
}

/// Opens a library from outside the loader's paths, after which it is found by name. Returns whether it exists.
pub(super) fn open(names: &[&str]) -> bool {
    for path in directories().into_iter().flat_map(|place| names.iter().map(move |name| place.join(name))) {
        // SAFETY: loading runs the library's initializers; these are the vendor's, from the loader's paths or from a
        // folder that the operator named.
        if let Ok(library) = unsafe { libloading::Library::new(&path) } {
            // Keep it open: later lookups by name need it.
            std::mem::forget(library);
            return true;
        }
    }
    false
}
