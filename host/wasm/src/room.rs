//! What a call may pass to the host through its imports, cut or dropped or not: the host copies and reads it all.

const MAX_CALL_BYTES: usize = 1 << 20;
/// What a text counts besides its length, so that empty ones have a bound too.
const TEXT_COST_BYTES: usize = 64;

pub(crate) struct Room {
    bytes: usize,
}

/// A call passed more than it may.
#[derive(Debug, thiserror::Error)]
#[error("passed more than {MAX_CALL_BYTES} bytes of log and gauges to the host in one call")]
pub(crate) struct Full;

impl Room {
    pub(crate) fn of_a_call() -> Self {
        Self { bytes: MAX_CALL_BYTES }
    }

    pub(crate) fn take(&mut self, text: &str) -> Result<(), Full> {
        self.bytes = self.bytes.checked_sub(text.len() + TEXT_COST_BYTES).ok_or(Full)?;
        Ok(())
    }
}
