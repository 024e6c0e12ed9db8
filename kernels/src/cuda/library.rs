//! Finding the vendor's libraries. Nothing is linked: a machine without them runs the same program.

use std::path::PathBuf;

/// Where to look: in the folder that `INFER_CUDA_LIB` names, in the loader's own paths (an empty one), then where toolkits
/// keep libraries.
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

/// Opens a library that the loader wouldn't find by itself; once open, it is found by its name. Whether it is there.
pub(super) fn open(names: &[&str]) -> bool {
    for path in directories().into_iter().flat_map(|place| names.iter().map(move |name| place.join(name))) {
        // SAFETY: loading runs the library's initializers; these are the vendor's own, from the loader's paths or
        // from where the operator says.
        if let Ok(library) = unsafe { libloading::Library::new(&path) } {
            // It stays open: closing it would take it away from who looks it up by name.
            std::mem::forget(library);
            return true;
        }
    }
    false
}
