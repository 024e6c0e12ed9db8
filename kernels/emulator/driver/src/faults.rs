//! Calls that are to fail, from the environment.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult;

use crate::refusal::{RESULTS, Refusal, report};

/// Failures to come, and how often each function was called.
pub(crate) struct Faults {
    planned: Vec<(String, u64, CUresult)>,
    calls: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// What a list says; parts that mean nothing are reported.
    pub(crate) fn parse(list: &str) -> Self {
        let mut planned = Vec::new();
        for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match fault(part) {
                Some(fault) => planned.push(fault),
                None => report(&format!("INFER_EMULATED_FAULTS: {part} is not CALL:NUMBER:RESULT")),
            }
        }
        Self { planned, calls: BTreeMap::new() }
    }

    /// Counts a call, and fails it if that is planned.
    pub(crate) fn count(&mut self, call: &'static str) -> Result<(), Refusal> {
        let number = self.calls.entry(call).or_default();
        *number += 1;
        let planned = self.planned.iter().find(|(name, at, _)| name == call && at == number);
        planned.map_or(Ok(()), |(_, _, code)| Err(Refusal::quiet(*code)))
    }
}

fn fault(part: &str) -> Option<(String, u64, CUresult)> {
    let mut words = part.split(':');
    let (call, number, name) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let known = RESULTS.iter().find(|known| known.name.to_bytes() == name.as_bytes())?;
    words.next().is_none().then(|| (call.to_owned(), number, known.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_call_fails_once() {
        let mut faults = Faults::parse(
            "cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY, nonsense, cuInit:1:CUDA_ERROR_NO_DEVICE",
        );
        let mut outcome = |call| faults.count(call).map_err(|refusal| refusal.code);
        assert_eq!(outcome("cuMemAlloc_v2"), Ok(()));
        assert_eq!(outcome("cuInit"), Err(CUresult::CUDA_ERROR_NO_DEVICE));
        assert_eq!(outcome("cuMemAlloc_v2"), Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(outcome("cuMemAlloc_v2"), Ok(()));
    }

    #[test]
    fn parts_that_mean_nothing_plan_nothing() {
        for part in [
            "cuInit",
            "cuInit:1",
            "cuInit:first:CUDA_ERROR_NO_DEVICE",
            "cuInit:1:BAD",
            "cuInit:1:CUDA_SUCCESS:x",
        ] {
            assert!(Faults::parse(part).planned.is_empty(), "{part}");
        }
    }
}
