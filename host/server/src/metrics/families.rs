//! Metric families with their values, collected from the host's own counts before they are encoded.

use std::fmt;

use infer_core::Durations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Names and values.
pub type Labels = Vec<(&'static str, String)>;

/// What a number is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Gauge,
    Counter,
    RealCounter,
}

/// Families, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Families(Vec<Family>);

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Numbers(Kind, Vec<(Labels, f64)>),
    Histograms(Vec<(Labels, Durations)>),
}

impl Families {
    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.family(name, help, Kind::Gauge, vec![(Vec::new(), value)]);
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.family(name, help, Kind::Counter, vec![(Vec::new(), value as f64)]);
    }

    /// Adds a counter of something that is no whole number.
    pub fn real_counter(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.family(name, help, Kind::RealCounter, vec![(Vec::new(), value)]);
    }

    /// Adds a number for each set of labels.
    pub fn family(&mut self, name: &'static str, help: &'static str, kind: Kind, rows: Vec<(Labels, f64)>) {
        self.0.push(Family { name, help, rows: Rows::Numbers(kind, rows) });
    }

    /// Adds a histogram for each set of labels, in seconds.
    pub fn histograms(&mut self, name: &'static str, help: &'static str, rows: Vec<(Labels, Durations)>) {
        self.0.push(Family { name, help, rows: Rows::Histograms(rows) });
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Family { name, help, rows } in &self.0 {
            let metric_type = match rows {
                Rows::Numbers(Kind::Gauge, _) => MetricType::Gauge,
                Rows::Numbers(Kind::Counter | Kind::RealCounter, _) => MetricType::Counter,
                Rows::Histograms(_) => MetricType::Histogram,
            };
            let metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            match rows {
                Rows::Numbers(kind, rows) => write(metric, rows, |row, value| number(row, *kind, *value))?,
                Rows::Histograms(rows) => write(metric, rows, histogram)?,
            }
        }
        Ok(())
    }
}

fn write<T>(
    mut metric: MetricEncoder<'_>,
    rows: &[(Labels, T)],
    value_of: impl Fn(&mut MetricEncoder<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (labels, value) in rows {
        if labels.is_empty() {
            value_of(&mut metric, value)?;
        } else {
            value_of(&mut metric.encode_family(labels)?, value)?;
        }
    }
    Ok(())
}

fn number(row: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Gauge => row.encode_gauge(&value),
        Kind::RealCounter => row.encode_counter::<NoLabelSet, _, u64>(&value, None),
        Kind::Counter => row.encode_counter::<NoLabelSet, _, u64>(&(value as u64), None),
    }
}

fn histogram(row: &mut MetricEncoder<'_>, durations: &Durations) -> fmt::Result {
    let buckets: Vec<_> = durations.buckets().collect();
    row.encode_histogram::<NoLabelSet>(durations.sum_s(), durations.count(), &buckets, None)
}
