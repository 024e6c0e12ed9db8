//! The device: computes batches, and fails as the case says.

use infer_core::{Batch, DeviceFault, DeviceFaultKind, Executor as _, FailureCause};

use super::Machine;
use crate::fuzz::case::Trouble;

impl Machine<'_> {
    /// Computes a batch and records which sequences the device fails. A batch queued behind a lost one fails
    /// none of its own: it is void as a whole.
    pub(super) fn compute(&mut self, batch: &Batch) -> Option<DeviceFault> {
        let trouble = self.trouble.take();
        let behind = std::mem::take(&mut self.lost);
        let fault = |kind, rows| DeviceFault { kind, message: "the device failed".to_owned(), rows };
        let fault = match &trouble {
            Some(Trouble::All { memory: true }) => Some(fault(DeviceFaultKind::OutOfMemory, None)),
            Some(Trouble::All { memory: false }) => Some(fault(DeviceFaultKind::Failed, None)),
            Some(Trouble::Rows { rows }) => Some(fault(DeviceFaultKind::OutOfMemory, Some(rows.clone()))),
            _ => None,
        };
        if let Some(fault) = fault.clone() {
            self.inspector.device.fail_next(fault);
        }
        let result = self.inspector.device.execute(batch, &mut self.output);
        assert_eq!(result.as_ref().err(), fault.as_ref());
        let mut lost: Vec<usize> = match &fault {
            Some(DeviceFault { rows: Some(rows), .. }) => rows.clone(),
            Some(_) => (0..batch.rows.len()).collect(),
            None => Vec::new(),
        };
        match trouble {
            Some(Trouble::Short { missing }) => {
                self.output.sampled.truncate(batch.rows.len().saturating_sub(missing));
                lost = (0..batch.rows.len()).collect();
                self.inspector.lost(batch);
            }
            Some(Trouble::Silent { row }) if batch.rows.get(row).is_some_and(|row| row.sample) => {
                self.output.sampled[row] = None;
                lost = vec![row];
            }
            Some(Trouble::Unsure) => {
                self.output.after_guesses.iter_mut().for_each(|(_, drawn)| *drawn = None);
            }
            _ => {}
        }
        if !lost.is_empty() || fault.is_some() {
            self.clients.reached.device_faults += 1;
        }
        if fault.is_some() || behind {
            self.inspector.lost(batch);
        }
        if behind {
            self.clients.reached.lost_behind += 1;
            self.nothing_came = true;
            return fault;
        }
        self.nothing_came = fault.is_some() || self.output.sampled.len() < batch.rows.len();
        self.lost = self.nothing_came && !self.out.is_empty();
        for row in lost.iter().filter_map(|&at| batch.rows.get(at)) {
            if let Some(client) = self.clients.get_mut(row.sequence) {
                client.doomed = Some(FailureCause::Device);
            }
        }
        fault
    }
}
