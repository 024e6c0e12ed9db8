//! The last steps from a hidden state to an embedding: fewer dimensions, and a length of 1.

/// The first `dimensions` numbers, scaled to a length of 1 if `normalized`. Zeros have no length to scale and stay.
///
/// Sums have one order and are in f64, so equal hidden states give equal bits.
pub fn finish(mut vector: Vec<f32>, dimensions: usize, normalized: bool) -> Vec<f32> {
    vector.truncate(dimensions);
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if normalized && length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_shortened_before_they_are_scaled() {
        let vector = || vec![3.0, -4.0, 12.0];
        assert_eq!(finish(vector(), 2, true), [0.6, -0.8]);
        assert_eq!(finish(vector(), 2, false), [3.0, -4.0]);
        assert_eq!(finish(vector(), 3, true), [3.0 / 13.0, -4.0 / 13.0, 12.0 / 13.0]);
        assert_eq!(finish(vec![0.0; 2], 2, true), [0.0, 0.0]);
        // Squares that f32 can't hold.
        let large = 2.0_f32.powi(100);
        assert_eq!(finish(vec![3.0 * large, 4.0 * large], 2, true), [0.6, 0.8]);
    }
}
