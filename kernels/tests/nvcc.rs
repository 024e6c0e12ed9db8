//! Which CUDA compiler a build uses, and when it refuses to go without one.

#[path = "../build/nvcc.rs"]
mod nvcc;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

type Variables<'a> = &'a [(&'a str, &'a str)];

/// The result where the variables have these values and these compilers exist.
fn found(variables: Variables<'_>, compilers: &[&str]) -> Result<Option<PathBuf>, String> {
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    nvcc::find(&variable, &|path| compilers.iter().any(|compiler| path == Path::new(compiler)))
}

#[test]
fn compiler_is_that_of_the_first_toolkit_that_has_one() {
    let usual = "/usr/local/cuda/bin/nvcc";
    let all = ["/a/bin/nvcc", "/b/bin/nvcc", usual];
    let (home, path) = (("CUDA_HOME", "/a"), ("CUDA_PATH", "/b"));
    let cases: [(Variables<'_>, &[&str], Option<&str>); 8] = [
        (&[], &all, Some(usual)),
        (&[], &all[..2], None),
        (&[path, home], &all, Some("/a/bin/nvcc")),
        (&[path, home], &all[1..], Some("/b/bin/nvcc")),
        (&[path], &all, Some("/b/bin/nvcc")),
        (&[home, ("INFER_NVCC", "nvcc-13")], &all, Some("nvcc-13")),
        (&[home, ("INFER_NVCC", "none")], &[], Some("none")),
        (&[home, ("INFER_NVCC", "")], &all, Some("/a/bin/nvcc")),
    ];
    for (variables, compilers, wanted) in cases {
        assert_eq!(found(variables, compilers), Ok(wanted.map(PathBuf::from)), "{variables:?}");
    }
}

/// `CUDA_HOME=$(cargo xtask cuda-toolkit) cargo build` builds although the first command failed.
#[test]
fn variable_that_leads_to_no_compiler_is_an_error() {
    let there = ["/usr/local/cuda/bin/nvcc", "bin/nvcc", "relative/bin/nvcc"];
    let cases: [(Variables<'_>, &str); 4] = [
        (&[("CUDA_HOME", "")], "CUDA_HOME=: "),
        (&[("CUDA_HOME", "/nowhere")], "CUDA_HOME=/nowhere: "),
        (&[("CUDA_PATH", "relative")], "CUDA_PATH=relative: "),
        (&[("CUDA_PATH", "/b"), ("CUDA_HOME", "/a")], "CUDA_HOME=/a, CUDA_PATH=/b: "),
    ];
    for (variables, named) in cases {
        let wrong = found(variables, &there).expect_err(named);
        assert!(wrong.starts_with(named), "{wrong}");
        for advice in ["`cargo xtask cuda-toolkit`", "INFER_NVCC=none"] {
            assert!(wrong.contains(advice), "{wrong}");
        }
    }
}
