//! What the compiler made of the kernels.

/// A kernel is compiled for an instruction set by inlining everything it calls. Code that isn't inlined (a closure, say) is
/// compiled without the set, and each of its intrinsics becomes a call with operands in memory: correct, but many times
/// slower. This executable contains all kernels, so no intrinsic may be a function in it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn every_vector_intrinsic_is_inlined() {
    use object::{Object, ObjectSymbol};
    let own = std::env::current_exe().expect("tests have a file");
    let bytes = std::fs::read(own).expect("it can be read");
    let file = object::File::parse(&*bytes).expect("it is an executable");
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    assert!(names.iter().any(|name| name.contains("infer_kernels")), "symbols are there");
    // Names are mangled in two ways: `15__mm512_add_ps` and `14_mm512_add_ps17h`.
    let is_instruction = |name: &str| name.contains("core_arch") && name.contains("_mm");
    let left: Vec<_> = names.into_iter().filter(|name| is_instruction(name)).collect();
    assert!(left.is_empty(), "called from somewhere in kernels/src: {left:#?}");
}
