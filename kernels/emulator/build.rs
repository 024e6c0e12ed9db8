//! Compiles the kernels' sources with the host's C++ compiler. Without one the crate builds, but reports that it can't run.

use std::process::Stdio;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(compiled)");
    println!("cargo::rerun-if-changed=cpp");
    // Documents and scripts in that folder change nothing.
    for file in std::fs::read_dir("../cuda").expect("the kernels are there").flatten() {
        if file.path().extension().is_some_and(|kind| kind == "cu" || kind == "cuh") {
            println!("cargo::rerun-if-changed={}", file.path().display());
        }
    }
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).cpp_link_stdlib(None).cargo_warnings(true);
    build.flag("-fno-exceptions").flag("-fno-rtti").flag("-fno-strict-aliasing").flag("-Wno-unknown-pragmas");
    build.warnings(true).extra_warnings(true);
    // Round products and sums separately, as written.
    build.flag("-ffp-contract=off");
    build.include("cpp").include("../cuda").file("cpp/kernels.cpp");
    let compiler = match build.try_get_compiler().map_err(|error| error.to_string()).and_then(answers) {
        Ok(compiler) => compiler,
        Err(why) => {
            println!("cargo::warning=no C++ compiler, so tests of CUDA kernels are skipped: {why}");
            // A file that never exists makes cargo rerun this at every build, since a compiler may be installed later.
            println!("cargo::rerun-if-changed=no-compiler-yet");
            return;
        }
    };
    // A device refuses unaligned accesses; make them trap here.
    let trap = match compiler.is_like_clang() {
        true => "-fsanitize-trap=alignment",
        false => "-fsanitize-undefined-trap-on-error",
    };
    build.flag("-fsanitize=alignment").flag(trap);
    build.compile("infer_cuda_emulator");
    println!("cargo::rustc-link-lib=m");
    println!("cargo::rustc-cfg=compiled");
}

/// Whether the compiler runs: `cc` names the default one even if there is none.
fn answers(compiler: cc::Tool) -> Result<cc::Tool, String> {
    let mut version = compiler.to_command();
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    match version.status() {
        Ok(_) => Ok(compiler),
        Err(error) => Err(format!("{}: {error}", compiler.path().display())),
    }
}
