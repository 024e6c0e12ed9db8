//! Which kernel faults the emulated device detects, and its state afterwards.

use std::sync::Arc;

use infer_cuda_emulator::{Emulator, Operation};
use infer_kernels::cuda::{Buffer, CudaError, CudaErrorKind, Device, HostBuffer, Type, fill_random};

fn device() -> Option<Arc<dyn Device>> {
    match Emulator::new(1) {
        Some(emulator) => Some(Arc::new(emulator)),
        None => {
            eprintln!("skipped: no C++ compiler");
            None
        }
    }
}

/// Launches a kernel that writes one number of two bytes at an offset from the start of a buffer.
fn write_at(device: &Arc<dyn Device>, buffer: &Buffer, bytes: isize) -> Result<(), CudaError> {
    let to = buffer.at().wrapping_add_signed(bytes as i64);
    // SAFETY: in the buffer or in its guards, 4 KiB at either end.
    unsafe { fill_random(device.as_ref(), Type::Bf16, to, 1, 3, 1.0) }
}

#[test]
fn writes_anywhere_in_the_guards_are_detected() {
    const BYTES: usize = 256;
    for at in [0, 254] {
        let Some(device) = device() else { return };
        let buffer = Buffer::new(&device, BYTES).unwrap();
        write_at(&device, &buffer, at).unwrap();
        assert_eq!(device.wait(), Ok(()), "inside, at {at}");
    }
    for at in [-4_096, -2_048, -66, -2, 256, 320, 256 + 3_840, 256 + 4_094] {
        let Some(device) = device() else { return };
        let buffer = Buffer::new(&device, BYTES).unwrap();
        write_at(&device, &buffer, at).unwrap();
        let fault = device.wait().expect_err("outside");
        assert!(fault.message.contains("outside an allocation of 256 bytes"), "at {at}: {fault}");
    }
}

#[test]
fn failed_device_refuses_further_work_with_the_first_failure() {
    let Some(device) = device() else { return };
    let [buffer, other] = [0x11, 0x22].map(|byte| Buffer::from_bytes(&device, &[byte; 16]).unwrap());
    let mut pinned = HostBuffer::new(&device, 16).unwrap();
    let mark = device.mark().unwrap();
    write_at(&device, &buffer, -2).unwrap();
    // SAFETY: the buffer has as many bytes, and `pinned` lives until the device has failed.
    unsafe { device.copy_out(buffer.at(), pinned.bytes_mut()) }.unwrap();
    mark.set().unwrap();

    // Freeing waits for work that may use the memory, and can't report its failure.
    drop(other);
    let fault = device.wait().expect_err("a guard was written");
    assert!(fault.message.contains("outside an allocation"), "{fault}");
    assert_eq!(fault.kind, CudaErrorKind::Lost);
    assert_eq!(mark.wait(), Err(fault.clone()));
    assert_eq!(buffer.read(16), Err(fault.clone()));
    assert_eq!(buffer.fill(0), Err(fault));
    assert_eq!(pinned.bytes(), [0; 16], "copied after the fault");
}

#[test]
fn requested_failure_happens_once_unless_it_loses_the_device() {
    let Some(emulator) = Emulator::new(1).map(Arc::new) else { return };
    let device: Arc<dyn Device> = emulator.clone();
    let buffer = Buffer::from_bytes(&device, &[0x11; 16]).unwrap();
    let refused = CudaError::out_of_memory("no room");
    emulator.fail_next(Operation::CopyIn, refused.clone());
    assert_eq!(buffer.write(0, &[1]), Err(refused));
    assert_eq!(buffer.write(0, &[2]), Ok(()));
    assert_eq!(buffer.read(2), Ok(vec![2, 0x11]));

    emulator.refuse_recordings();
    device.begin_recording(true).unwrap();
    assert!(device.end_recording().is_err());
    assert_eq!(buffer.fill(3), Ok(()), "the recording has ended");
    assert_eq!(buffer.read(1), Ok(vec![3]));

    let lost = CudaError { kind: CudaErrorKind::Lost, message: "gone".to_owned() };
    emulator.fail_next(Operation::Launch, lost.clone());
    assert_eq!(write_at(&device, &buffer, 0), Err(lost.clone()));
    assert_eq!(buffer.read(1), Err(lost));
}
