//! Attention, matrix and sampling kernels.
