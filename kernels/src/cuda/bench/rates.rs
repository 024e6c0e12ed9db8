//! The device's own rates, of copies and of products, which figures are relative to. They are measured on a device at work.

use std::sync::Arc;

use super::products::Product;
use super::{random, time_us};
use crate::cuda::{Buffer, CudaError, Device, ProductKind, Type};

/// Device time after which an idle device's clocks have risen.
const WARM_UP_US: f64 = 400_000.0;

/// Bytes per second of a copy within the device, counting bytes read and bytes written. It copies fewer bytes than these if
/// they are more than a quarter of the free memory.
///
/// # Errors
/// If the device fails.
pub fn copy_rate(device: &Arc<dyn Device>, bytes: usize) -> Result<f64, CudaError> {
    let bytes = bytes.min(device.memory()?.free as usize / 4).next_multiple_of(4);
    let (from, to) = (random(device, Type::F32, bytes.div_ceil(4))?, Buffer::new(device, bytes)?);
    // SAFETY: both buffers have this size.
    let us = warm_time_us(device.as_ref(), &mut || unsafe { device.copy(to.at(), from.at(), bytes) })?;
    Ok(2.0 * bytes as f64 / us * 1e6)
}

/// How fast products are.
#[derive(Clone, Copy, Debug)]
pub struct ProductRate {
    /// Operations per second.
    pub operations_per_s: f64,
    /// Whether the vendor's library computed them, and not our own kernel.
    pub by_vendor: bool,
}

/// The rate of a bf16 product of square matrices: the vendor's library's, or our own kernel's if it is missing or refuses.
///
/// # Errors
/// If the device fails.
pub fn product_rate(device: &Arc<dyn Device>, width: u32) -> Result<ProductRate, CudaError> {
    let square = Product::new(device, [width; 3], 0)?;
    let by_vendor = square.us(ProductKind::Vendor, warm_time_us)?;
    let us = match by_vendor {
        Some(us) => us,
        None => square.us(ProductKind::Own, warm_time_us)?.expect("our kernels compute every shape"),
    };
    let operations_per_s = 2.0 * f64::from(width).powi(3) / us * 1e6;
    Ok(ProductRate { operations_per_s, by_vendor: by_vendor.is_some() })
}

/// Text with both rates, the first one in bytes per second. If that of products is only our own kernel's, it says so.
pub fn rates_say(device: &dyn Device, bytes_per_s: f64, products: ProductRate) -> String {
    let ours = match device.properties().vendor_products {
        _ if products.by_vendor => "",
        Some(_) => " (by our own kernel: cuBLASLt refused)",
        None => " (by our own kernel: cuBLASLt was not found)",
    };
    format!(
        "copies {:.0} GB/s (read and written), bf16 products {:.0} TFLOP/s{ours}",
        bytes_per_s / 1e9,
        products.operations_per_s / 1e12
    )
}

/// Measures the copy rate again: text with it and the rate at the start.
///
/// # Errors
/// If the device fails.
pub fn copies_say(device: &Arc<dyn Device>, bytes: usize, at_start: f64) -> Result<String, CudaError> {
    let at_end = copy_rate(device, bytes)? / 1e9;
    Ok(format!("copies at the end {at_end:.0} GB/s, at the start {:.0}", at_start / 1e9))
}

/// As [`time_us`], on a device that has been at work for a while.
fn warm_time_us(
    device: &dyn Device,
    work: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut us = 0.0;
    while us < WARM_UP_US {
        us += device.time_us(work)?.max(1.0);
    }
    time_us(device, work)
}
