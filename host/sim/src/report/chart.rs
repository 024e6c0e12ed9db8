//! SVG charts with round axis ticks, lines or dots, and a colour-blind-safe palette.

use std::fmt::Write as _;

/// Okabe and Ito's palette (2008), with grey instead of black and without yellow.
pub const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#808891"];

/// Larger numbers stay at the edge: beyond, distances have no number.
const LARGEST: f64 = 1e300;
/// Dots closer than this share a label.
const NEAR: f64 = 7.0;
/// Maximum number of names in a label.
const NAMES: usize = 3;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, with zero.
    Linear,
    /// Logarithmic.
    Log,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub label: &'static str,
    /// Its scale.
    pub scale: Scale,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// Dots labelled with the series' name.
    Dots,
    /// A thin grey line: the Pareto front.
    Front,
}

/// Points of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    /// Label of dots, and tooltip.
    pub name: String,
    /// Index into `COLOURS`, modulo its length.
    pub colour: usize,
    /// How its points are drawn.
    pub mark: Mark,
    /// Points as (x, y).
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Its series.
    pub series: Vec<Series>,
}

/// The range of an axis.
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Chart {
    /// Renders the chart as an SVG element.
    pub fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let x = Span::of(self.x.scale, all().map(|point| point.0));
        let y = Span::of(self.y.scale, all().map(|point| point.1));
        let place_x = |value: f64| LEFT + x.part(value) * (WIDTH - LEFT - RIGHT);
        let place_y = |value: f64| HEIGHT - BOTTOM - y.part(value) * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">"#);
        for tick in x.ticks() {
            let at = place_x(tick);
            let (top, bottom, under) = (TOP, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 16.0);
            let _ = write!(svg, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{top}" y2="{bottom}"/>"#);
            let _ =
                write!(svg, r#"<text x="{at:.1}" y="{under}" text-anchor="middle">{}</text>"#, x.label(tick));
        }
        for tick in y.ticks() {
            let at = place_y(tick);
            let (right, before, base) = (WIDTH - RIGHT, LEFT - 6.0, at + 4.0);
            let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/>"#);
            let _ =
                write!(svg, r#"<text x="{before}" y="{base:.1}" text-anchor="end">{}</text>"#, y.label(tick));
        }
        let (middle, foot, centre) =
            ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, (TOP + HEIGHT - BOTTOM) / 2.0);
        let _ = write!(svg, r#"<text x="{middle}" y="{foot}" text-anchor="middle">{}</text>"#, self.x.label);
        let _ = write!(
            svg,
            r#"<text transform="translate(14 {centre}) rotate(-90)" text-anchor="middle">{}</text>"#,
            self.y.label
        );
        let mut labels: Vec<Label> = Vec::new();
        for series in &self.series {
            let colour = COLOURS[series.colour % COLOURS.len()];
            let name = escape(&series.name);
            let places = series.points.iter().map(|&(x, y)| (place_x(x), place_y(y)));
            if series.mark == Mark::Dots {
                for (cx, cy) in places {
                    let _ = write!(
                        svg,
                        r#"<circle cx="{cx:.1}" cy="{cy:.1}" r="5" fill="{colour}"><title>{name}</title></circle>"#
                    );
                    Label::put(&mut labels, (cx, cy), &name);
                }
                continue;
            }
            let mut path = String::new();
            for (nth, (x, y)) in places.enumerate() {
                let letter = if nth == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{letter}{x:.1} {y:.1}");
            }
            let style = match series.mark {
                Mark::Front => r#"class="front""#.to_owned(),
                Mark::Dashed => format!(r#"stroke="{colour}" stroke-width="2" stroke-dasharray="5 4""#),
                Mark::Line | Mark::Dots => format!(r#"stroke="{colour}" stroke-width="2""#),
            };
            let _ = write!(svg, r#"<path d="{path}" fill="none" {style}><title>{name}</title></path>"#);
        }
        for label in &labels {
            label.write(&mut svg);
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Label of a dot, or of several close together.
struct Label {
    at: (f64, f64),
    names: Vec<String>,
}

impl Label {
    fn put(labels: &mut Vec<Self>, at: (f64, f64), name: &str) {
        let near = |label: &&mut Self| (label.at.0 - at.0).abs() < NEAR && (label.at.1 - at.1).abs() < NEAR;
        match labels.iter_mut().find(near) {
            Some(label) => label.names.push(name.to_owned()),
            None => labels.push(Self { at, names: vec![name.to_owned()] }),
        }
    }

    fn write(&self, svg: &mut String) {
        let (cx, cy) = self.at;
        let (beside, anchor) = if cx > WIDTH * 0.6 { (cx - 9.0, "end") } else { (cx + 9.0, "start") };
        let more = self.names.len().saturating_sub(NAMES);
        let shown = self.names.iter().take(NAMES).cloned().collect::<Vec<_>>().join(", ");
        let shown = if more > 0 { format!("{shown} and {more} more") } else { shown };
        let base = cy + 4.0;
        let _ = write!(svg, r#"<text x="{beside:.1}" y="{base:.1}" text-anchor="{anchor}">{shown}</text>"#);
    }
}

impl Span {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let is_drawn = |value: &f64| value.abs() <= LARGEST && (scale == Scale::Linear || *value > 0.0);
        for value in values.filter(is_drawn) {
            low = low.min(value);
            high = high.max(value);
        }
        match scale {
            _ if low > high => Self { scale, low: if scale == Scale::Log { 1.0 } else { 0.0 }, high: 10.0 },
            Scale::Linear if low.abs().max(high.abs()) < 1.0 / LARGEST => Self { scale, low: 0.0, high: 1.0 },
            Scale::Linear => Self { scale, low: 1.05 * low.min(0.0), high: 1.05 * high.max(0.0) },
            Scale::Log => {
                let (low, high) = (round_down(low), round_step(high));
                Self { scale, low, high: if high > low { high } else { 10.0 * low } }
            }
        }
    }

    /// Position of a value within the range, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => libm::log10(value.max(self.low) / self.low) / libm::log10(self.high / self.low),
        };
        part.clamp(0.0, 1.0)
    }

    /// Distance between the ticks of a linear axis.
    fn step(&self) -> f64 {
        round_step((self.high - self.low) / 5.0)
    }

    /// Label of a tick.
    fn label(&self, tick: f64) -> String {
        match self.scale {
            Scale::Linear => short(tick, self.step()),
            // Ticks are 1, 2 and 5 times a power of ten.
            Scale::Log => short(tick, tick),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.scale == Scale::Log {
            return self.log_ticks();
        }
        let step = self.step();
        let first = libm::ceil(self.low / step);
        let ticks = (0..12).map(|nth| (first + f64::from(nth)) * step);
        ticks.take_while(|tick| *tick <= self.high + step * 1e-6).collect()
    }

    /// Powers of ten, and 2 and 5 times those if there are only a few.
    fn log_ticks(&self) -> Vec<f64> {
        let decades = libm::log10(self.high / self.low);
        let rounds: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        let mut decade = libm::exp10(libm::floor(libm::log10(self.low) + 1e-9));
        while decade <= self.high * 1.000_001 {
            let within = |tick: &f64| (self.low * 0.999_999..=self.high * 1.000_001).contains(tick);
            ticks.extend(rounds.iter().map(|round| round * decade).filter(within));
            decade *= 10.0;
        }
        ticks
    }
}

/// The largest of .., 1, 2, 5, 10, 20, .. not above `value`.
fn round_down(value: f64) -> f64 {
    let decade = libm::exp10(libm::floor(libm::log10(value) + 1e-9));
    let rounds = [5.0, 2.0, 1.0].map(|times| times * decade);
    rounds.into_iter().find(|round| *round <= value * 1.000_001).unwrap_or(decade)
}

/// The smallest of .., 1, 2, 5, 10, 20, .. not below `step`.
fn round_step(step: f64) -> f64 {
    let decade = libm::exp10(libm::floor(libm::log10(step)));
    let rounds = [1.0, 2.0, 5.0].map(|times| times * decade);
    rounds.into_iter().find(|round| *round >= step * 0.999_999).unwrap_or(10.0 * decade)
}

/// Formats a tick with as many digits as distinguish it from one at distance `step`.
fn short(value: f64, step: f64) -> String {
    if value.abs() >= 1e10 || (value != 0.0 && step < 1e-9) {
        return format!("{value:.1e}");
    }
    let (unit, letter) = match value.abs() {
        huge if huge >= 999_999.0 => (1e6, "M"),
        large if large >= 9_999.0 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = -libm::floor(libm::log10(step / unit) + 1e-9);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let digits = digits.clamp(0.0, 12.0) as usize;
    let shown = format!("{:.digits$}", value / unit);
    let shown = if digits > 0 { shown.trim_end_matches('0').trim_end_matches('.') } else { &shown };
    format!("{shown}{letter}")
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks_and_contain_their_values() {
        let linear = Span::of(Scale::Linear, [3.0, 87.0].into_iter());
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        let shown =
            |span: &Span| span.ticks().iter().map(|tick| span.label(*tick)).collect::<Vec<_>>().join(" ");
        let log = Span::of(Scale::Log, [12.0, 40_000.0].into_iter());
        assert_eq!((shown(&log), log.high), ("10 100 1000 10k".to_owned(), 50_000.0));
        let narrow = Span::of(Scale::Log, [6.2, 16.0].into_iter());
        assert_eq!(shown(&narrow), "5 10 20");
        assert_eq!(shown(&Span::of(Scale::Log, [7.0].into_iter())), "5 10");
        for span in [
            linear,
            log,
            Span::of(Scale::Log, std::iter::empty()),
            Span::of(Scale::Linear, [0.0].into_iter()),
        ] {
            assert!(span.ticks().len() < 12 && (0.0..=1.0).contains(&span.part(50.0)));
        }
    }

    #[test]
    fn ticks_have_enough_digits_to_differ() {
        for (scale, values, labels) in [
            (Scale::Linear, [0.5, 2.0], "0 0.5 1 1.5 2"),
            (Scale::Linear, [0.0, 0.011], "0 0.005 0.01"),
            (Scale::Linear, [0.0, 0.28], "0 0.1 0.2"),
            (Scale::Linear, [0.0, 40.0], "0 10 20 30 40"),
            (Scale::Linear, [0.0, 12_000.0], "0 5000 10k"),
            (Scale::Linear, [0.0, 60_000.0], "0 20k 40k 60k"),
            (Scale::Linear, [0.0, 2_000_000.0], "0 500k 1M 1.5M 2M"),
            (Scale::Linear, [-3.0, 2.0], "-2 0 2"),
            (Scale::Linear, [-0.5, -0.2], "-0.4 -0.2 0"),
            (Scale::Linear, [-1e300, f64::MAX], "-1.0e300 -5.0e299 0"),
            (Scale::Linear, [0.0, 5e-12], "0 2.0e-12 4.0e-12"),
            (Scale::Linear, [0.0, 5e-324], "0 0.2 0.4 0.6 0.8 1"),
            (Scale::Log, [0.001, 0.01], "0.001 0.002 0.005 0.01"),
            (Scale::Log, [900_000.0, 4_000_000.0], "500k 1M 2M 5M"),
        ] {
            let span = Span::of(scale, values.into_iter());
            let shown: Vec<String> = span.ticks().into_iter().map(|tick| span.label(tick)).collect();
            assert_eq!(shown.join(" "), labels);
        }
    }

    #[test]
    fn close_dots_share_a_label() {
        let dot = |name: &str, x| Series {
            name: name.to_owned(),
            colour: 0,
            mark: Mark::Dots,
            points: vec![(x, 50.0)],
        };
        let axis = || Axis { label: "ms", scale: Scale::Linear };
        let series = vec![dot("a", 10.0), dot("b", 10.1), dot("c", 90.0)];
        let svg = Chart { x: axis(), y: axis(), series }.svg();
        assert!(svg.contains(">a, b</text>") && svg.contains(">c</text>"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape(r#"<a href="x">&"#), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
