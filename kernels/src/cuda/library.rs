//! Finds the vendor's libraries at run time. Nothing is linked, so the same program runs on a machine without them.

use std::ffi::{OsStr, c_void};
use std::path::{Path, PathBuf};

/// Opens a library from outside the loader's paths, after which it is found by name. Returns what was opened: a file, or a
/// mere name if the loader found it.
pub(super) fn open(names: &[&str]) -> Option<PathBuf> {
    let paths = toolkits().into_iter().flat_map(|place| names.iter().map(move |name| place.join(name)));
    first_opened(paths)
}

/// Opens a library that also comes with conda and in Python packages, as PyTorch installs them. Earlier names are preferred.
pub(super) fn open_packaged(names: &[&str]) -> Option<PathBuf> {
    open(names).or_else(|| {
        let folders = folders(&python_prefixes());
        let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        first_opened(paths.filter(|path| path.exists()))
    })
}

fn first_opened(mut paths: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    paths.find(|path| {
        // SAFETY: loading runs the library's initializers; these are the vendor's, from the loader's paths or from a folder
        // that the operator named, installed a toolkit in, or runs Python from.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => {
                // Keep it open: later lookups by name need it.
                std::mem::forget(library);
                true
            }
            Err(_) => false,
        }
    })
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Search order: `INFER_CUDA_LIB`, the loader's own paths (an empty path), then the usual places of toolkits.
fn toolkits() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = variable("INFER_CUDA_LIB").into_iter().collect();
    places.push(PathBuf::new());
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        places.extend([root.join("lib64"), root.join("lib")]);
    }
    places.push(PathBuf::from("/usr/local/cuda/lib64"));
    places
}

/// Folders that a Python may be installed in: active environments, those of the interpreters on `PATH`, the usual ones.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    prefixes.extend(interpreters(&std::env::var_os("PATH").unwrap_or_default()));
    prefixes.extend(variable("HOME").map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes.extend(entries(Path::new("/opt")).into_iter().flat_map(|place| [place.join(".venv"), place]));
    prefixes.retain(|prefix| prefix.is_absolute());
    prefixes
}

/// Prefixes of the interpreters in folders of a search path, but not in relative ones, whose contents depend on where the
/// program is started.
fn interpreters(path: &OsStr) -> Vec<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    // An environment's interpreter is a link to that of the installation it is based on.
    let pythons = folders.map(|folder| folder.join("python3")).filter_map(|python| {
        let original = python.canonicalize().ok()?;
        Some([python, original])
    });
    pythons.flatten().filter_map(|file| Some(file.parent()?.parent()?.to_owned())).collect()
}

/// Folders of libraries below prefixes: `PREFIX/lib`, which conda installs them in, and those of NVIDIA's Python packages.
/// A `lib` of several prefixes counts once.
fn folders(prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let mut libs: Vec<PathBuf> = Vec::new();
    for lib in prefixes.iter().filter_map(|prefix| prefix.join("lib").canonicalize().ok()) {
        if !libs.contains(&lib) {
            libs.push(lib);
        }
    }
    libs.into_iter().flat_map(|lib| std::iter::once(lib.clone()).chain(packages(&lib))).collect()
}

/// `LIB/python3*/site-packages/nvidia/*/lib`.
fn packages(lib: &Path) -> Vec<PathBuf> {
    let is_python = |folder: &PathBuf| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    };
    let pythons = entries(lib).into_iter().filter(is_python);
    let sites = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|site| python.join(site)));
    sites.flat_map(|site| entries(&site.join("nvidia"))).map(|package| package.join("lib")).collect()
}

/// What a folder has, in order; nothing if it can't be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The file that a loaded function is in, if the loader tells.
pub(super) fn file_of(function: *const c_void) -> Option<PathBuf> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;

        // SAFETY: the loader only looks the address up, and sets plain pointers, which may be zero. The name is text that lives
        // as long as the library, which stays open.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(function, &raw mut info) == 0 || info.dli_fname.is_null() {
                return None;
            }
            let name = std::ffi::CStr::from_ptr(info.dli_fname);
            Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = function;
        None
    }
}

/// Whether an opened path is another file than `used`. A mere name, which the loader looked up, is no particular file.
pub(super) fn is_other(opened: &Path, used: &Path) -> bool {
    let is_name = opened.file_name() == Some(opened.as_os_str());
    !is_name && opened.canonicalize().ok() != used.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for one test, with folders in it.
    fn root(test: &str, folders: &[&str]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("infer-library-{test}-{}", std::process::id()));
        for folder in folders {
            std::fs::create_dir_all(root.join(folder)).expect("a folder for temporary files");
        }
        root.canonicalize().expect("it was created")
    }

    #[test]
    fn libraries_are_found_below_a_prefix_once() {
        let wanted = [
            "opt/lib",
            "opt/lib/python3.11/site-packages/nvidia/cu13/lib",
            "opt/lib/python3.12/site-packages/nvidia/cublas/lib",
            "usr/lib",
            "usr/lib/python3/dist-packages/nvidia/cu12/lib",
        ];
        let others =
            ["opt/lib/perl5/site-packages/nvidia/cu13/lib", "opt/lib/python3.12/site-packages/torch/lib"];
        let root = root("prefixes", &[&wanted[..], &others].concat());
        let prefixes = ["opt", "nowhere", "usr", "opt/../opt", "usr"].map(|prefix| root.join(prefix));
        let found = folders(&prefixes);
        std::fs::remove_dir_all(&root).expect("created above");
        assert_eq!(found, wanted.map(|folder| root.join(folder)));
    }

    #[test]
    fn prefixes_of_python_are_absolute_and_include_the_systems() {
        let prefixes = python_prefixes();
        assert!(prefixes.iter().all(|prefix| prefix.is_absolute()), "{prefixes:?}");
        assert!(prefixes.contains(&PathBuf::from("/usr")), "{prefixes:?}");
    }

    #[test]
    fn interpreters_count_in_absolute_folders_only() {
        let root = root("interpreters", &["environment/bin"]);
        let bin = root.join("environment/bin");
        std::fs::write(bin.join("python3"), []).expect("a file");
        let here = std::env::current_dir().expect("there is one");
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(bin.strip_prefix("/").expect("it is absolute"));
        assert!(relative.is_relative() && relative.join("python3").exists(), "{}", relative.display());
        let found = [bin.as_os_str(), relative.as_os_str()].map(interpreters);
        std::fs::remove_dir_all(&root).expect("created above");
        assert_eq!(found, [vec![root.join("environment"); 2], vec![]]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn functions_are_located_by_file() {
        let file = file_of(libc::dladdr as *const c_void).expect("the C library is loaded");
        assert!(file.is_file(), "{}", file.display());
        assert_eq!(file_of(std::ptr::null()), None);
    }

    #[test]
    fn files_are_compared_but_not_names() {
        let root = root("files", &["cu12", "cu13"]);
        let file = |place: &str| root.join(place).join("libcublasLt.so");
        for place in ["cu12", "cu13"] {
            std::fs::write(file(place), []).expect("a file");
        }
        let name = Path::new("libcublasLt.so");
        let others = [file("cu12"), file("cu12/../cu13"), name.to_owned()]
            .map(|opened| is_other(&opened, &file("cu13")));
        std::fs::remove_dir_all(&root).expect("created above");
        assert_eq!(others, [true, false, false]);
    }
}
