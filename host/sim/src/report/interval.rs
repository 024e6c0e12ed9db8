//! What several seeds tell: means with 95 % confidence intervals, by Student's t distribution (Student 1908). These
//! hold for values, or differences of pairs, that are independent, as those of seeds are, and normally distributed, as
//! those of many requests nearly are. Nothing is corrected for the number of comparisons.

use crate::metrics::count;

/// A mean over seeds, and how exactly it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub mean: f64,
    /// Half the width of its 95 % confidence interval. `None` for a single value, and if all are equal: runs of a trace
    /// on a device whose steps don't vary are the same with every seed, and tell no more than one of them.
    pub margin: Option<f64>,
}

impl Estimate {
    /// `None` for no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let (&first, others) = values.split_first()?;
        if others.iter().all(|&other| other == first) {
            return Some(Self { mean: first, margin: None });
        }
        let number = count(values.len() as u64);
        let mean = values.iter().sum::<f64>() / number;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let error = (squares / (number - 1.0) / number).sqrt();
        Some(Self { mean, margin: Some(t_975(others.len()) * error) })
    }

    /// Whether the interval is above zero. Without an interval, nothing is known.
    pub fn is_positive(&self) -> bool {
        self.margin.is_some_and(|margin| self.mean > margin)
    }

    /// Whether all values were zero.
    pub fn is_zero(&self) -> bool {
        self.mean == 0.0 && self.margin.is_none()
    }

    /// The ends of the interval.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.margin.map(|margin| (self.mean - margin, self.mean + margin))
    }
}

/// The 97.5 % quantile of the t distribution, which leaves 2.5 % on each side; right to 0.000005. Beyond ten degrees of
/// freedom it is the first terms of its expansion around the normal distribution's (Abramowitz and Stegun 1964, 26.7.5),
/// which needs no function that differs between machines.
fn t_975(degrees: usize) -> f64 {
    const FEW: [f64; 10] = [
        12.706_204_736,
        4.302_652_730,
        3.182_446_305,
        2.776_445_105,
        2.570_581_836,
        2.446_911_851,
        2.364_624_252,
        2.306_004_135,
        2.262_157_163,
        2.228_138_852,
    ];
    if let Some(few) = degrees.checked_sub(1).and_then(|at| FEW.get(at)) {
        return *few;
    }
    let inverse = 1.0 / count(degrees as u64);
    let terms = [1.589_534_053, 2.555_849_680, 2.822_498_616, 2.372_271_230, 1.959_963_985];
    terms.into_iter().fold(0.0, |sum, term| sum * inverse + term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_published_tables() {
        for (degrees, table) in [
            (1, 12.706_2),
            (2, 4.302_7),
            (3, 3.182_4),
            (4, 2.776_4),
            (5, 2.570_6),
            (6, 2.446_9),
            (7, 2.364_6),
            (8, 2.306_0),
            (9, 2.262_2),
            (10, 2.228_1),
            (11, 2.201_0),
            (12, 2.178_8),
            (15, 2.131_4),
            (19, 2.093_0),
            (20, 2.086_0),
            (29, 2.045_2),
            (30, 2.042_3),
            (40, 2.021_1),
            (60, 2.000_3),
            (120, 1.979_9),
            (1_000_000_000, 1.960_0),
        ] {
            let computed = t_975(degrees);
            assert!((computed - table).abs() < 0.000_06, "{degrees}: {computed}");
        }
        assert!((2..1_000).all(|degrees| t_975(degrees) < t_975(degrees - 1)), "they fall, also at the seam");
    }

    #[test]
    fn interval_is_that_of_the_textbook() {
        // Mean 12, standard deviation 2; 4.3027 * 2 / sqrt(3).
        let estimate = Estimate::of(&[10.0, 12.0, 14.0]).expect("there are values");
        let (low, high) = estimate.interval().expect("they differ");
        assert!((estimate.mean - 12.0).abs() < 1e-12, "{estimate:?}");
        assert!((low - 7.031_7).abs() < 0.000_1 && (high - 16.968_3).abs() < 0.000_1, "{low} {high}");
        // Of ten differences with mean 1 and standard deviation 1: 2.2622 / sqrt(10).
        let spread = (9.0_f64 / 10.0).sqrt();
        let values: Vec<f64> = (0..10).map(|at| 1.0 + if at % 2 == 0 { spread } else { -spread }).collect();
        let margin = Estimate::of(&values).and_then(|estimate| estimate.margin).expect("they differ");
        assert!((margin - 0.715_36).abs() < 0.000_01, "{margin}");
    }

    #[test]
    fn what_does_not_vary_has_no_interval() {
        assert_eq!(Estimate::of(&[]), None);
        // A mean computed from a sum would not be exactly this.
        for values in [&[0.1][..], &[0.1; 3], &[0.1; 10]] {
            let estimate = Estimate::of(values).expect("there are values");
            assert_eq!((estimate, estimate.interval()), (Estimate { mean: 0.1, margin: None }, None));
            assert!(!estimate.is_positive() && !estimate.is_zero(), "{values:?}");
        }
        assert!(Estimate::of(&[0.0; 3]).is_some_and(|estimate| estimate.is_zero()));
        assert!(Estimate::of(&[-1.0, 1.0]).is_some_and(|estimate| !estimate.is_zero()));
    }

    #[test]
    fn few_values_must_differ_more_than_many() {
        let is_positive =
            |values: &[f64]| Estimate::of(values).is_some_and(|estimate| estimate.is_positive());
        assert!(!is_positive(&[1.0, 2.0]), "two leave an interval of 1.5 ± 6.4");
        assert!(!is_positive(&[1.0, 2.0, 3.0]), "2 ± 2.5");
        assert!(is_positive(&[1.0, 2.0, 3.0, 2.0]), "2 ± 1.3");
        assert!(!is_positive(&[-1.0, -2.0, -3.0, -2.0]));
    }
}
