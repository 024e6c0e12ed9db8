//! A line per check, until the device is lost: after a sticky fault every later check would fail with the same message.

use std::sync::Arc;
use std::time::Instant;

use infer_kernels::cuda::{CudaErrorKind, Device};

/// Runs checks and counts failures.
pub struct Report<'a> {
    device: &'a Arc<dyn Device>,
    say: &'a mut dyn FnMut(String),
    failed: u32,
    /// The check after which the device stopped working.
    lost_in: Option<String>,
}

impl<'a> Report<'a> {
    /// A report whose lines go to `say`.
    pub fn new(device: &'a Arc<dyn Device>, say: &'a mut dyn FnMut(String)) -> Self {
        Self { device, say, failed: 0, lost_in: None }
    }

    /// Runs a check, which returns what it covered or what was wrong. Skips it once the device is lost.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<String, String>) {
        if self.lost_in.is_some() {
            return;
        }
        let begun = Instant::now();
        let outcome = check();
        let seconds = begun.elapsed().as_secs_f32();
        match outcome {
            Ok(covered) => (self.say)(format!("ok      {name} ({covered}), {seconds:.1} s")),
            Err(wrong) => {
                self.failed += 1;
                (self.say)(format!("FAILED  {name}: {wrong}"));
                self.lost_in = is_lost(self.device.as_ref()).then(|| name.to_owned());
            }
        }
    }

    /// # Errors
    /// If a check failed.
    pub fn finish(self) -> Result<(), String> {
        match (self.failed, self.lost_in) {
            (0, _) => Ok(()),
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
