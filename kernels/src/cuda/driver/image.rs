//! The compiled kernels: those in this program, or for an experiment those of a file, so that a kernel can be changed on a
//! machine that has nvcc and no Rust.

use std::path::Path;

use crate::cuda::error::{CudaError, CudaErrorKind};
use crate::cuda::switches::IMAGE_VARIABLE;

/// Every kernel for sm_80, sm_89 and sm_90a, and PTX for newer devices; empty if the build found no toolkit.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// The first word of an image (a fatbin), in little-endian order.
const MAGIC: u32 = 0xba55_ed50;

/// Whether this program was built with a CUDA toolkit and contains kernels.
pub fn kernels_embedded() -> bool {
    !KERNELS.is_empty()
}

/// The image as words, since the driver reads words and bytes may be unaligned. It is complete: the driver trusts the
/// length that an image records.
pub(super) fn load(file: Option<&Path>) -> Result<Vec<u64>, CudaError> {
    let Some(path) = file else { return Ok(words(KERNELS)) };
    let bytes = std::fs::read(path).map_err(|error| wrong(path, &error.to_string()))?;
    if !is_complete(&bytes) {
        return Err(wrong(path, "this is no complete image of kernels; `nvcc -fatbin` writes one"));
    }
    Ok(words(&bytes))
}

/// An error of the kernels' use, with the file and its variable if they are of one. Other failures stay: they aren't the
/// file's fault.
pub(super) fn named(file: Option<&Path>, error: CudaError) -> CudaError {
    match file {
        Some(path) if error.kind == CudaErrorKind::Failed => wrong(path, &error.message),
        _ => error,
    }
}

/// Refuses a kernel of the file that takes other parameters than the program passes: it would read past them, or mistake
/// them.
pub(super) fn check_params(file: &Path, kernel: &str, taken: usize, passed: usize) -> Result<(), CudaError> {
    if taken == passed {
        return Ok(());
    }
    Err(wrong(
        file,
        &format!(
            "{kernel} takes {taken} bytes of parameters and this program passes {passed}; compile it from the program's \
             version of the sources"
        ),
    ))
}

fn wrong(file: &Path, what: &str) -> CudaError {
    CudaError::switch(format!("{IMAGE_VARIABLE}={}: {what}", file.display()))
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

/// Whether there is a header (magic, version, its own length, the length of the rest) and all that it announces.
fn is_complete(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<16>() else { return false };
    let number = |span: std::ops::Range<usize>| {
        header[span].iter().rev().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte))
    };
    let end = number(6..8).checked_add(number(8..16));
    number(0..4) == u64::from(MAGIC) && end.is_some_and(|end| end <= bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(body_bytes: u64, there: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend(body_bytes.to_le_bytes());
        bytes.resize(16 + there, 7);
        bytes
    }

    #[test]
    fn image_is_complete_if_it_is_as_long_as_its_header_says() {
        assert!(is_complete(&image(40, 40)) && is_complete(&image(40, 41)));
        assert!(!is_complete(&image(40, 39)) && !is_complete(&image(u64::MAX, 40)));
        assert!(!is_complete(&image(0, 0)[..15]) && !is_complete(b"not an image of kernels"));
        assert!(!kernels_embedded() || is_complete(KERNELS));
    }

    #[test]
    fn words_hold_all_bytes_in_order() {
        let bytes: Vec<u8> = (0..19).collect();
        let words: Vec<u8> = words(&bytes).iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!((words.len(), &words[..19]), (24, &bytes[..]));
    }

    #[test]
    fn file_without_kernels_is_named_with_its_variable() {
        for (file, why) in [("/dev/null", "nvcc -fatbin"), ("/nowhere/kernels.fatbin", "No such file")] {
            let CudaError { kind, message } = load(Some(Path::new(file))).expect_err("no kernels");
            assert_eq!(kind, CudaErrorKind::Switch);
            assert!(message.starts_with(&format!("INFER_CUDA_IMAGE={file}: ")), "{message}");
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn failures_that_a_file_can_cause_are_named_with_it() {
        let file = Some(Path::new("a.fatbin"));
        let failed = CudaError::failed("finding kernel gated_f16");
        let named_so = CudaError::switch("INFER_CUDA_IMAGE=a.fatbin: finding kernel gated_f16");
        assert_eq!(named(file, failed.clone()), named_so);
        assert_eq!(named(None, failed.clone()), failed);
        let full = CudaError::out_of_memory("the kernels");
        assert_eq!(named(file, full.clone()), full);
    }

    #[test]
    fn kernel_with_other_parameters_is_refused_with_both_sizes() {
        let check = |taken| check_params(Path::new("a.fatbin"), "copy_blocks", taken, 40);
        assert_eq!(check(40), Ok(()));
        for taken in [32, 48] {
            let CudaError { kind, message } = check(taken).expect_err("other parameters");
            assert_eq!(kind, CudaErrorKind::Switch);
            let start = format!("INFER_CUDA_IMAGE=a.fatbin: copy_blocks takes {taken} bytes");
            assert!(message.starts_with(&start) && message.contains("passes 40;"), "{message}");
        }
    }
}
