//! Finding the vendor's libraries. Nothing is linked: a machine without them runs the same program.

use std::path::PathBuf;

/// Where toolkits keep libraries, besides the loader's own paths. `INFER_CUDA_LIB` comes first.
fn directories() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places: Vec<PathBuf> = variable("INFER_CUDA_LIB").into_iter().collect();
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        places.extend([root.join("lib64"), root.join("lib")]);
    }
    places.push(PathBuf::from("/usr/local/cuda/lib64"));
    places
}

/// Opens a library that the loader wouldn't find by itself; once open, it is found by its name. Whether it is there.
pub(super) fn open(names: &[&str]) -> bool {
    let known = names.iter().map(PathBuf::from);
    let placed = directories().into_iter().flat_map(|place| names.iter().map(move |name| place.join(name)));
    for path in known.chain(placed) {
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
