//! GPU kernels (`cuda/*.cu`), their launches, and checks of each against [`crate::reference`].
//!
//! Kernels run on a [`Device`], of which there are two: [`Driver`], an NVIDIA GPU, whose libraries are opened at run time so
//! that this builds, links and starts without them; and the emulator crate, which runs the same `.cu` sources on the host
//! for tests. Everything above the trait (launch shapes, parameters, the decoder) is shared. Memory is allocated once at
//! start; nothing here allocates within a step.

mod adapters;
mod attention;
pub mod bench;
mod blas;
mod buffer;
pub mod checks;
mod device;
mod driver;
mod error;
mod experts;
mod few;
mod library;
mod ops;
mod params;
mod product;
mod quantized;
mod switches;

pub use adapters::{ADAPTER_PARTS, AdapterLists, AdapterRows, AdapterShape, add_adapters, padded_rank};
pub use attention::{
    AttentionShape, Partition, PrefillForm, decode, decode_blocks, partial_numbers, prefill, tickets,
};
pub use buffer::{Buffer, HostBuffer};
pub use device::{Device, Graph, Launch, Mark, Memory, Properties, Type, VendorLibrary};
pub use driver::{Driver, kernels_embedded};
pub use error::{CudaError, CudaErrorKind};
pub use experts::{
    ExpertForm, ExpertProduct, ExpertShape, MOST_EXPERTS, combine, combine_add, product_experts, route,
};
pub use few::{
    FEW, fuses, fuses_norms, fuses_rope, product_add, product_gated, product_rope, product_scaled, shares,
};
pub use ops::{
    add_norm, copy_blocks, embed, fill_random, follow_draws, gated, kv_write, kv_write_whole, sample,
};
pub use params::{
    AdapterDelta, AdapterPart, AdaptersParams, AttentionParams, CombineParams, CopyParams, ExpertsParams,
    FewParams, KvWriteParams, NONE, NormParams, ProductParams, RouteParams, SampleParams, SampleRow,
};
pub use product::{ProductKind, product};
pub use quantized::{Factors, Quantized, embed_integers, fill_integers, widen};
pub use switches::Switches;
