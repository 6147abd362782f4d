//! Draws a figure as SVG: medians as points and lines, and what lies between the tenth and the ninetieth percentile as
//! bars. Text stays text, so no font of this machine is used. A drawing is a few kilobytes, since pages keep it in git.

use std::fmt::Write as _;

use super::data::{Figure, Line, Scale, label};
use crate::stats::{Spread, spread};

/// Pixels of the drawing, and of the part of it in which points lie: left, right, top and bottom edge.
const SIZE: (f64, f64) = (760.0, 460.0);
const PLOT: (f64, f64, f64, f64) = (76.0, 748.0, 40.0, 400.0);
/// Room beside the points, as a share of the range.
const ROOM: f64 = 1.15;
/// Half of the width of a bar's ends.
const BAR_END: f64 = 4.0;
/// About so many marks of the value axis.
const TICKS: f64 = 6.0;
/// A logarithmic axis with fewer powers of ten than this has marks at 2 and 5 times each, too.
const DECADES_FEW: f64 = 3.0;
/// Height of a line of the legend, and about the width of a letter in it.
const LEGEND: (f64, f64) = (18.0, 7.0);
/// Colours that people without full colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The value axis.
#[derive(Debug)]
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(figure: &Figure) -> Self {
        let points = figure.lines.iter().flat_map(|line| &line.points);
        let values: Vec<Spread> = points.filter_map(|point| spread(&point.values)).collect();
        let highest = values.iter().map(|s| s.p90).fold(0.0, f64::max);
        // Without values any range does.
        let most = if highest > 0.0 { highest } else { 1.0 };
        let least = values.iter().map(|s| s.p10).filter(|v| *v > 0.0).fold(most, f64::min);
        let from = match figure.scale {
            Scale::Linear => 0.0,
            Scale::Log => least / ROOM,
        };
        Self { scale: figure.scale, from, to: most * ROOM }
    }

    /// Where a value lies, in pixels from above; what is below the axis lies on it.
    fn at(&self, value: f64) -> f64 {
        let (_, _, top, bottom) = PLOT;
        let share = match self.scale {
            Scale::Linear => value / self.to,
            Scale::Log => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        };
        bottom - share * (bottom - top)
    }

    /// Values at which it has a mark: 1, 2 and 5 times powers of ten.
    fn marks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let power = 10f64.powf((self.to / TICKS).log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
                let step = steps.into_iter().find(|step| self.to / step <= TICKS).unwrap_or(power * 10.0);
                let count = (self.to / step).floor() as u32;
                (0..=count).map(|n| f64::from(n) * step).collect()
            }
            Scale::Log => {
                let (low, high) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
                let is_short = self.to.log10() - self.from.log10() < DECADES_FEW;
                let steps: &[f64] = if is_short { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let all = (low..=high).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                all.filter(|mark| (self.from..=self.to).contains(mark)).collect()
            }
        }
    }
}

/// The SVG; `below` stands with the points.
pub(super) fn svg(figure: &Figure, below: &str) -> String {
    let (width, height) = SIZE;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let axis = Axis::of(figure);
    frame(&mut out, figure, below, &axis);
    let places = figure.places();
    for (line, colour) in figure.lines.iter().zip(COLOURS.iter().cycle()) {
        draw(&mut out, line, colour, &places, &axis);
    }
    legend(&mut out, figure);
    out += "</svg>\n";
    out
}

/// Title, axes and their marks.
fn frame(out: &mut String, figure: &Figure, below: &str, axis: &Axis) {
    let (left, right, top, bottom) = PLOT;
    let (middle, half) = ((left + right) / 2.0, (top + bottom) / 2.0);
    text(out, middle, 24.0, "middle\" font-size=\"17", &figure.heading());
    text(out, middle, SIZE.1 - 14.0, "middle", &format!("{} ({below})", figure.x));
    text(out, 0.0, 0.0, &format!("middle\" transform=\"translate(16 {half}) rotate(-90)"), &figure.y);
    let mut grid = String::new();
    for mark in axis.marks() {
        let y = pixel(axis.at(mark));
        let _ = write!(grid, "M{left} {y}H{right}");
        text(out, left - 6.0, y + 4.0, "end", &number(mark));
    }
    let _ = writeln!(out, "<path d=\"{grid}\" stroke=\"#ddd\"/>");
    let is_bytes = figure.x.contains("bytes");
    let places = figure.places();
    let mut marks = String::new();
    for (number, place) in places.iter().enumerate() {
        let x = x_of(number, places.len());
        let _ = write!(marks, "M{x} {bottom}v5");
        text(out, x, bottom + 20.0, "middle", &label(*place, is_bytes));
    }
    let _ = writeln!(out, "<path d=\"{marks}M{left} {top}V{bottom}H{right}\" stroke=\"#000\" fill=\"none\"/>");
}

/// A line: a polyline through its medians, a point at each (a stroke without length), and a bar through it.
fn draw(out: &mut String, line: &Line, colour: &str, places: &[f64], axis: &Axis) {
    let (mut medians, mut bars, mut points) = (String::new(), String::new(), String::new());
    for point in &line.points {
        let place = places.iter().position(|x| *x == point.x);
        let Some((place, spread)) = place.zip(spread(&point.values)) else { continue };
        let x = x_of(place, places.len());
        let [median, low, high] = [spread.median, spread.p10, spread.p90].map(|value| pixel(axis.at(value)));
        let _ = write!(medians, "{x},{median} ");
        let (from, width) = (x - BAR_END, 2.0 * BAR_END);
        let _ = write!(bars, "M{x} {low}V{high}M{from} {low}h{width}M{from} {high}h{width}");
        let _ = write!(points, "M{x} {median}h0");
    }
    let medians = medians.trim_end();
    let _ = writeln!(
        out,
        "<g stroke=\"{colour}\" fill=\"{colour}\">\n<polyline points=\"{medians}\" stroke-width=\"2\" fill=\"none\"/>\n\
         <path d=\"{bars}\"/>\n<path d=\"{points}\" stroke-width=\"6\" stroke-linecap=\"round\"/>\n</g>"
    );
}

/// The lines' names, in the upper left corner.
fn legend(out: &mut String, figure: &Figure) {
    let (row, letter) = LEGEND;
    let longest = figure.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or_default();
    let (x, y) = (PLOT.0 + 10.0, PLOT.2 + 6.0);
    let (width, height) = (longest as f64 * letter + 44.0, figure.lines.len() as f64 * row + 8.0);
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#fff\" fill-opacity=\".8\" stroke=\"#bbb\"/>"
    );
    for (number, (line, colour)) in figure.lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let middle = y + 4.0 + row * (number as f64 + 0.5);
        let _ = writeln!(out, "<path d=\"M{} {middle}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>", x + 8.0);
        text(out, x + 34.0, middle + 4.0, "start", &line.name);
    }
}

/// Where the n-th of so many points lies.
fn x_of(number: usize, count: usize) -> f64 {
    let (left, right, ..) = PLOT;
    let room = (right - left) / count.max(1) as f64;
    pixel(left + room * (number as f64 + 0.5))
}

/// A tenth of a pixel is finer than anybody sees.
fn pixel(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Words whose anchor is at this place.
fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let place = if x == 0.0 && y == 0.0 { String::new() } else { format!("x=\"{x}\" y=\"{y}\" ") };
    let _ = writeln!(out, "<text {place}text-anchor=\"{anchor}\">{words}</text>");
}

/// A mark's value: 1500000 is 1.5 M, 20000 is 20 k.
fn number(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // Steps of a tenth are not exact.
    format!("{}{unit}", (scaled * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::example;
    use super::*;

    #[test]
    fn both_scales_are_drawn_with_title_lines_and_axes() {
        for scale in [Scale::Linear, Scale::Log] {
            let text = svg(&example(scale), "softnic");
            assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{text}");
            for words in ["Figure 6: An example", "RaaS", "native verbs", "Gbit/s", "64 Ki", "softnic"] {
                assert!(text.contains(words), "{words} is missing");
            }
            assert_eq!(text.matches("h0").count(), 4, "a point for each value of each line");
        }
    }

    #[test]
    fn a_figure_without_values_is_drawn_empty() {
        let mut figure = example(Scale::Log);
        figure.lines.clear();
        let text = svg(&figure, "softnic");
        assert!(!text.contains("h0") && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn larger_values_lie_higher_and_all_lie_within_the_drawing() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::of(&example(scale));
            let (_, _, top, bottom) = PLOT;
            let marks = axis.marks();
            assert!(marks.len() >= 3, "{marks:?}");
            let heights: Vec<f64> = marks.iter().map(|mark| axis.at(*mark)).collect();
            assert!(heights.windows(2).all(|pair| pair[1] < pair[0]), "{heights:?}");
            assert!(heights.iter().all(|y| (top..=bottom).contains(y)), "{heights:?}");
        }
    }

    #[test]
    fn words_are_no_markup_and_marks_are_short() {
        let mut figure = example(Scale::Linear);
        figure.lines[0].name = "a < b & c".to_owned();
        assert!(svg(&figure, "softnic").contains("a &lt; b &amp; c"));
        assert_eq!([number(1_500_000.0), number(20_000.0), number(0.1 + 0.2)], ["1.5 M", "20 k", "0.3"]);
    }
}
