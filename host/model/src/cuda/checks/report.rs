//! A line per check, until the device is lost: after a sticky fault every later check would fail with the same message.

use std::sync::Arc;
use std::time::Instant;

use infer_kernels::cuda::{CudaErrorKind, Device};

/// Runs checks and counts them.
pub struct Report<'a> {
    device: &'a Arc<dyn Device>,
    /// Words of which a check's name must have one; without words, all are run.
    only: &'a [String],
    say: &'a mut dyn FnMut(String),
    passed: u32,
    failed: u32,
    /// The check after which the device stopped working.
    lost_in: Option<String>,
}

impl<'a> Report<'a> {
    /// A report on the checks whose names have one of these words, or on all if there are none. Its lines go to `say`.
    pub fn new(device: &'a Arc<dyn Device>, only: &'a [String], say: &'a mut dyn FnMut(String)) -> Self {
        Self { device, only, say, passed: 0, failed: 0, lost_in: None }
    }

    /// Runs a check, which returns what it covered or what was wrong. Skips it once the device is lost.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<String, String>) {
        let unwanted = !self.only.is_empty() && !self.only.iter().any(|word| name.contains(word.as_str()));
        if unwanted || self.lost_in.is_some() {
            return;
        }
        let begun = Instant::now();
        let outcome = check();
        let seconds = begun.elapsed().as_secs_f32();
        match outcome {
            Ok(covered) => {
                self.passed += 1;
                (self.say)(format!("ok      {name} ({covered}), {seconds:.1} s"));
            }
            Err(wrong) => {
                self.failed += 1;
                (self.say)(format!("FAILED  {name}: {wrong}"));
                self.lost_in = is_lost(self.device.as_ref()).then(|| name.to_owned());
            }
        }
    }

    /// Says how many checks passed.
    ///
    /// # Errors
    /// If a check failed, or none was run.
    pub fn finish(self) -> Result<(), String> {
        match (self.failed, self.lost_in) {
            (0, _) if self.passed == 0 => Err("no check has such a name".to_owned()),
            (0, _) => {
                (self.say)(format!("{} checks passed.", self.passed));
                Ok(())
            }
            (_, Some(name)) => Err(format!(
                "the device stopped working in `{name}`; later checks were skipped. Rerun with CUDA_LAUNCH_BLOCKING=1 \
                 and `--seeds 1` to see which kernel failed: seeds that run at the same time all fail"
            )),
            (failed, None) => Err(format!("{failed} checks failed on this device")),
        }
    }
}

/// Whether the device rejects all further work.
pub(super) fn is_lost(device: &dyn Device) -> bool {
    device.wait().is_err_and(|error| error.kind == CudaErrorKind::Lost)
}
