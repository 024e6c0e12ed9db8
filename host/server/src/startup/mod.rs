//! What a host needs before it can serve: sockets, the checkpoint, the device, the sizes of pool and steps,
//! and the loaded model.

pub mod adapters;
pub mod checkpoint;
pub mod device;
pub mod listen;
pub mod load;
pub mod progress;
pub mod sizing;
