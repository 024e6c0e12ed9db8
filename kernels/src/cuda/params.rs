//! The parameter structs of `cuda/*.cu`, field by field. Addresses are of device memory; 0 is null.
#![allow(missing_docs, reason = "the fields are described where the kernels read them, in cuda/*.cu")]

/// No token, no slot, no row: padding that kernels skip.
pub const NONE: u32 = u32::MAX;

/// `AttentionParams` of `attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionParams {
    pub q: u64,
    pub keys: u64,
    pub values: u64,
    pub out: u64,
    pub partial: u64,
    pub tickets: u64,
    pub positions: u64,
    pub tables: u64,
    pub blocks: u64,
    pub sinks: u64,
    pub items: u64,
    pub q_stride: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub block_size: u32,
    pub window: u32,
    pub count: u32,
    pub part_tokens: u32,
    pub head_dim: u32,
    pub scale: f32,
    pub soft_cap: f32,
}

/// `KvWriteParams` of `kv_write.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvWriteParams {
    pub qkv: u64,
    pub keys: u64,
    pub values: u64,
    pub bias: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub rope: u64,
    pub positions: u64,
    pub slots: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub block_size: u32,
    pub epsilon: f32,
    pub tokens: u32,
}

/// `NormParams` of `norm.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NormParams {
    pub residual: u64,
    pub delta: u64,
    pub delta_bias: u64,
    pub delta_norm: u64,
    pub weight: u64,
    pub out: u64,
    pub select: u64,
    pub width: u32,
    pub epsilon: f32,
    pub delta_factor: f32,
    pub unused: u32,
}

/// `GatedParams` of `elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GatedParams {
    pub gate_up: u64,
    pub out: u64,
    pub bias: u64,
    pub width: u32,
    pub rows: u32,
    pub gelu: u32,
    pub unused: u32,
}

/// `EmbedParams` of `elementwise.cu`, and `EmbedIntegersParams` of `quantized.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EmbedParams {
    pub table: u64,
    pub out: u64,
    pub tokens: u64,
    pub width: u32,
    pub scale: f32,
}

/// `FollowParams` of `elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FollowParams {
    pub tokens: u64,
    pub drawn: u64,
    pub pairs: u64,
    pub count: u32,
    pub unused: u32,
}

/// `CopyParams` of `elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyParams {
    pub from: u64,
    pub to: u64,
    pub pairs: u64,
    pub from_stride: u64,
    pub to_stride: u64,
    pub block_bytes: u32,
    pub parts: u32,
}

/// `FillParams` of `elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FillParams {
    pub out: u64,
    pub count: u64,
    pub seed: u64,
    pub scale: f32,
    pub unused: u32,
}

/// `ProductParams` of `product.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductParams {
    pub x: u64,
    pub w: u64,
    pub y: u64,
    pub rows: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub out_f32: u32,
}

/// `FewParams` of `product_few.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FewParams {
    pub x: u64,
    pub w: u64,
    pub y: u64,
    pub squares: u64,
    pub bias: u64,
    pub residual: u64,
    pub norm: u64,
    pub shares_out: u64,
    pub rows: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub out_f32: u32,
    pub epsilon: f32,
    pub gelu: u32,
    pub factor: f32,
    pub unused: u32,
}

/// `RopeParams` of `product_few.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RopeParams {
    pub few: FewParams,
    pub write: KvWriteParams,
}

/// `RouteParams` of `route.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteParams {
    pub logits: u64,
    pub bias: u64,
    pub tokens: u64,
    pub chosen: u64,
    pub weights: u64,
    pub pairs: u64,
    pub squares: u64,
    pub scales: u64,
    pub tiles: u64,
    pub rows: u32,
    pub experts: u32,
    pub per_row: u32,
    pub normalized: u32,
    pub tile_rows: u32,
    pub room: u32,
    pub width: u32,
    pub epsilon: f32,
}

/// `CombineParams` of `route.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CombineParams {
    pub x: u64,
    pub chosen: u64,
    pub weights: u64,
    pub out: u64,
    pub residual: u64,
    pub norm: u64,
    pub shares_out: u64,
    pub width: u32,
    pub per_row: u32,
    pub factor: f32,
    pub unused: u32,
}

/// `ExpertsParams` of `product_experts.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpertsParams {
    pub x: u64,
    pub w: u64,
    pub bias: u64,
    pub y: u64,
    pub scales: u64,
    pub pairs: u64,
    pub tiles: u64,
    pub inputs: u32,
    pub outputs: u32,
    pub sharing: u32,
    pub activation: u32,
    pub alpha: f32,
    pub limit: f32,
}

/// `WidenParams` of `quantized.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WidenParams {
    pub w: u64,
    pub out: u64,
    pub outputs: u32,
    pub inputs: u32,
}

/// `FillIntegersParams` of `quantized.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FillIntegersParams {
    pub out: u64,
    pub tiles: u64,
    pub seed: u64,
    pub scale: f32,
    pub unused: u32,
}

/// `AdapterPart` of `adapters.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterPart {
    pub wide: u64,
    pub first: u32,
    pub outputs: u32,
    pub rank: u32,
    pub scale: f32,
}

/// `AdapterDelta` of `adapters.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterDelta {
    pub narrow: u64,
    pub ranks: u32,
    pub unused: u32,
    pub parts: [AdapterPart; 3],
}

/// `AdaptersParams` of `adapters.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptersParams {
    pub x: u64,
    pub y: u64,
    pub deltas: u64,
    pub narrow: u64,
    pub places: u64,
    pub tiles: u64,
    pub inputs: u32,
    pub outputs: u32,
    pub stride: u32,
    pub room: u32,
    pub slice: u32,
    pub slices: u32,
}

/// `SampleRow` of `sample.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleRow {
    pub row: u32,
    pub history_start: u32,
    pub history_len: u32,
    pub forbidden_start: u32,
    pub forbidden_len: u32,
    pub bias_start: u32,
    pub bias_len: u32,
    pub less_start: u32,
    pub less_len: u32,
    pub top_k: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub penalty: f32,
    pub uniform: f32,
}

/// `SampleParams` of `sample.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleParams {
    pub logits: u64,
    pub rows: u64,
    pub tokens: u64,
    pub seen: u64,
    pub out: u64,
    pub vocab: u32,
    pub soft_cap: f32,
}

/// Structs without padding that kernels take.
///
/// # Safety
/// Every byte of the struct is a byte of a field.
pub(super) unsafe trait Params: Copy {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding, as promised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

macro_rules! params {
    ($($name:ident = $bytes:expr),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes, "fields and padding");
        // SAFETY: the fields' sizes add up to the struct's, as just checked.
        unsafe impl Params for $name {}
    )*};
}

params!(
    AttentionParams = 11 * 8 + 10 * 4,
    KvWriteParams = 9 * 8 + 6 * 4,
    NormParams = 7 * 8 + 4 * 4,
    GatedParams = 3 * 8 + 4 * 4,
    EmbedParams = 3 * 8 + 2 * 4,
    FollowParams = 3 * 8 + 2 * 4,
    CopyParams = 5 * 8 + 2 * 4,
    FillParams = 3 * 8 + 2 * 4,
    ProductParams = 3 * 8 + 4 * 4,
    FewParams = 8 * 8 + 8 * 4,
    RopeParams = 8 * 8 + 8 * 4 + 9 * 8 + 6 * 4,
    RouteParams = 9 * 8 + 8 * 4,
    CombineParams = 7 * 8 + 4 * 4,
    ExpertsParams = 7 * 8 + 6 * 4,
    WidenParams = 2 * 8 + 2 * 4,
    FillIntegersParams = 3 * 8 + 2 * 4,
    AdapterDelta = 8 + 2 * 4 + 3 * (8 + 4 * 4),
    AdaptersParams = 6 * 8 + 6 * 4,
    SampleParams = 5 * 8 + 2 * 4,
    SampleRow = 15 * 4,
);

impl AdapterDelta {
    /// Its bytes, as kernels read them.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes()
    }
}

impl SampleRow {
    /// A row that samples nothing.
    pub const NOTHING: Self = Self {
        row: NONE,
        history_start: 0,
        history_len: 0,
        forbidden_start: 0,
        forbidden_len: 0,
        bias_start: 0,
        bias_len: 0,
        less_start: 0,
        less_len: 0,
        top_k: 0,
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        penalty: 1.0,
        uniform: 0.0,
    };

    /// Its bytes, as the kernel reads them.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes()
    }
}
