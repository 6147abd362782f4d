//! Draws a figure as SVG: medians as points and lines, and what lies between the tenth and the ninetieth percentile as
//! bars. Text stays text, so no font of this machine is used.

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::data::{Figure, Scale, label};
use crate::stats::{Spread, spread};

/// Pixels.
const SIZE: (u32, u32) = (760, 460);
/// Room beside the points, as a share of the range.
const ROOM: f64 = 1.15;
/// Half of the width of a bar's ends, in pixels.
const BAR_END: i32 = 4;
/// Colours that people without full colour vision tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Area<'b> = DrawingArea<SVGBackend<'b>, Shift>;

/// The SVG.
pub(super) fn svg(figure: &Figure, below: &str) -> Result<String> {
    let values: Vec<Spread> =
        figure.lines.iter().flat_map(|line| line.points.iter().filter_map(|point| spread(&point.values))).collect();
    let highest = values.iter().map(|s| s.p90).fold(0.0, f64::max);
    // Without values any range does.
    let most = if highest > 0.0 { highest } else { 1.0 };
    let least = values.iter().map(|s| s.p10).filter(|v| *v > 0.0).fold(most, f64::min);
    let mut out = String::new();
    {
        let area = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        let drawn = match figure.scale {
            Scale::Linear => draw(&area, figure, below, 0.0..most * ROOM),
            Scale::Log => draw(&area, figure, below, (least / ROOM..most * ROOM).log_scale()),
        };
        drawn.with_context(|| format!("drawing \"{}\"", figure.heading()))?;
    }
    Ok(out)
}

fn draw<Y>(area: &Area<'_>, figure: &Figure, below: &str, range: Y) -> Result<()>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let places = figure.places();
    let last = i32::try_from(places.len().max(2) - 1)?;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .caption(figure.heading(), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(60)
        .y_label_area_size(72)
        .build_cartesian_2d(0..last, range)?;
    let is_bytes = figure.x.contains("bytes");
    let name = |place: &i32| {
        let x = usize::try_from(*place).ok().and_then(|place| places.get(place));
        x.map(|x| label(*x, is_bytes)).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .x_labels(places.len().max(2))
        .x_label_formatter(&name)
        .x_desc(format!("{} ({below})", figure.x))
        .y_desc(figure.y.as_str())
        .light_line_style(WHITE)
        .draw()?;
    for (number, line) in figure.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<(i32, Spread)> = line
            .points
            .iter()
            .filter_map(|point| {
                let place = places.iter().position(|x| *x == point.x)?;
                Some((i32::try_from(place).ok()?, spread(&point.values)?))
            })
            .collect();
        chart
            .draw_series(LineSeries::new(points.iter().map(|(x, s)| (*x, s.median)), colour.stroke_width(2)))?
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|(x, s)| Circle::new((*x, s.median), 3, colour.filled())))?;
        let bar = |x: i32, s: Spread| {
            let ends = [(x, s.p10), (x, s.p90)];
            ends.into_iter().map(move |end| {
                EmptyElement::at(end) + PathElement::new([(-BAR_END, 0), (BAR_END, 0)], colour.stroke_width(1))
            })
        };
        chart.draw_series(points.iter().flat_map(|(x, s)| bar(*x, *s)))?;
        chart.draw_series(
            points.iter().map(|(x, s)| PathElement::new([(*x, s.p10), (*x, s.p90)], colour.stroke_width(1))),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::example;
    use super::*;

    #[test]
    fn both_scales_are_drawn_with_title_lines_and_axes() {
        for scale in [Scale::Linear, Scale::Log] {
            let text = svg(&example(scale), "softnic").expect("it is drawn");
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
            for words in ["Figure 6: An example", "RaaS", "native verbs", "Gbit/s", "64 Ki", "softnic"] {
                assert!(text.contains(words), "{words} is missing");
            }
        }
    }

    #[test]
    fn a_figure_without_values_is_drawn_empty() {
        let mut figure = example(Scale::Log);
        figure.lines.clear();
        assert!(svg(&figure, "softnic").is_ok());
    }
}
