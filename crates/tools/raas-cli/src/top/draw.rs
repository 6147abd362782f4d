//! The picture of `raas top`: a head, a curve, a table as wide as the terminal, a line of keys. It changes nothing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Sparkline, Table};
use terminal::table;

use super::view::{Column, Tab, Value, View};

#[cfg(test)]
mod tests;

/// Lines of the curve.
const CURVE_LINES: u16 = 3;
/// Below this height the curve gives way to rows.
const CURVE_HEIGHT_MIN: u16 = 16;
/// Columns are this far apart.
const GAP: u16 = 1;
/// No cell of text is narrower than this, unless its text is.
const TEXT_MIN: u16 = 12;

/// Bars of a histogram, from nothing to most.
const BARS: [char; 9] =
    [' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
/// Powers of two of nanoseconds that have a bar each: 128 ns to 1 s.
const BAR_POWERS: std::ops::Range<u32> = 7..30;

/// Draws the view as large as there is room.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let curve = if area.height >= CURVE_HEIGHT_MIN { CURVE_LINES } else { 0 };
    let heights = [2, curve, 1].map(Constraint::Length);
    let [head, plot, tabs, body, keys] =
        Layout::vertical([heights[0], heights[1], heights[2], Constraint::Min(0), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(head_lines(view)), head);
    if curve > 0 {
        draw_curve(frame, view, plot);
    }
    frame.render_widget(Paragraph::new(tab_line(view)), tabs);
    let stages = if view.tab == Tab::Latency { stage_lines(view) } else { Vec::new() };
    let lines = u16::try_from(stages.len()).unwrap_or(u16::MAX);
    let [latency, rows] = Layout::vertical([Constraint::Length(lines), Constraint::Min(0)]).areas(body);
    frame.render_widget(Paragraph::new(stages), latency);
    draw_table(frame, view, rows);
    frame.render_widget(Paragraph::new(key_line(view)), keys);
}

fn head_lines(view: &View) -> Vec<Line<'static>> {
    let Some(sample) = &view.sample else { return vec!["asking the daemon".into()] };
    let s = &sample.stat;
    let up = s.lanes.iter().filter(|lane| lane.state == "up").count();
    let scope = if s.all_users { "" } else { " (your own)" };
    let state = format!(
        "raas top: {}, up {} s, {} applications, {} connections{scope}, {up} of {} lanes up",
        s.device,
        table::grouped(s.uptime_seconds),
        table::grouped(s.apps.len() as u64),
        table::grouped(sample.connections.len() as u64),
        s.lanes.len()
    );
    let flow = match &view.rates {
        None => "waiting for a second look".to_owned(),
        Some(rates) => format!(
            "{}/s out, {}/s in, {} work requests/s, {:.1} drops/s, {} sent again",
            table::bytes(rates.lanes_total.tx_bytes_per_s as u64),
            table::bytes(rates.lanes_total.rx_bytes_per_s as u64),
            table::grouped(rates.work_requests_per_s as u64),
            rates.drops_per_s.iter().map(|(_, n)| n).sum::<f64>(),
            table::grouped(rates.retransmits)
        ),
    };
    let paused = if view.is_paused { "PAUSED  " } else { "" };
    vec![Line::from(state).style(Style::new().add_modifier(Modifier::BOLD)), Line::from(format!("{paused}{flow}"))]
}

fn draw_curve(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let width = usize::from(area.width);
    let from = view.history.len().saturating_sub(width);
    let values: Vec<u64> = view.history.iter().skip(from).map(|rate| *rate as u64).collect();
    frame.render_widget(Sparkline::default().data(&values), area);
}

/// A line for each stage, of what ended since the last look, else of all since the daemon's start.
fn stage_lines(view: &View) -> Vec<Line<'static>> {
    let Some(sample) = &view.sample else { return Vec::new() };
    let fresh = view.rates.as_ref().map(|rates| &rates.stages).filter(|stages| !stages.is_empty());
    let (stages, whose) =
        fresh.map_or((&sample.stat.stages, "since the start"), |stages| (stages, "since the last look"));
    if stages.is_empty() {
        return vec!["latency: no message was looked at (docs/operate/metrics.md)".into(), "".into()];
    }
    let head = format!("{:<15}{:>7}{:>11}{:>11}  128 ns to 1 s, {whose}", "STAGE", "COUNT", "P50", "P99");
    let line = |s: &control::StageRow| {
        let micros = |ns: u64| format!("{:.1} us", ns as f64 / 1000.0);
        let (p50, p99) = (micros(s.quantile_ns(0.5)), micros(s.quantile_ns(0.99)));
        Line::from(format!("{:<15}{:>7}{p50:>11}{p99:>11}  {}", s.name, table::grouped(s.count()), bars(s)))
    };
    [Line::from(head)].into_iter().chain(stages.iter().map(line)).chain(["".into()]).collect()
}

fn bars(stage: &control::StageRow) -> String {
    let (first, last) = (BAR_POWERS.start, BAR_POWERS.end - 1);
    let mut counts = [0_u64; BAR_POWERS.end as usize];
    for (end, n) in &stage.buckets {
        // What is too small or too large for the picture stands at its edge.
        let power = end.saturating_sub(1).max(1).ilog2().clamp(first, last);
        counts[power as usize] += n;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |power: u32| BARS[(counts[power as usize] * 8).div_ceil(most) as usize];
    BAR_POWERS.map(bar).collect()
}

fn tab_line(view: &View) -> Line<'static> {
    let spans = Tab::ALL.iter().flat_map(|tab| {
        let style = if *tab == view.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {} ", tab.title()), style), Span::raw(" ")]
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn key_line(view: &View) -> Line<'static> {
    if view.is_typing {
        return Line::from(format!("filter: {}_  (Enter keeps it, Esc ends it)", view.filter));
    }
    let filter = if view.filter.is_empty() { String::new() } else { format!("filter \"{}\"  ", view.filter) };
    Line::from(format!("{filter}q quit  1-4 table  s sort  r reverse  / filter  p pause  up/down scroll"))
}

fn draw_table(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let rows = view.rows();
    let columns = view.columns();
    let lines = usize::from(area.height).saturating_sub(1);
    let shown: Vec<&Vec<Value>> = rows.iter().skip(view.skipped).take(lines).collect();
    let (places, widths) = fit(columns, &shown, area.width);
    let sort = view.sort();
    let heading = |&at: &usize| {
        let Column { heading, is_number, .. } = columns[at];
        let mark = match (at == sort.column, sort.is_descending) {
            (false, _) => "",
            (true, true) => "v",
            (true, false) => "^",
        };
        aligned(format!("{heading}{mark}"), is_number)
    };
    let header = Row::new(places.iter().map(heading)).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let line =
        |row: &&Vec<Value>| Row::new(places.iter().map(|&at| aligned(row[at].shown.clone(), columns[at].is_number)));
    let constraints = widths.iter().copied().map(Constraint::Length);
    frame.render_widget(Table::new(shown.iter().map(line), constraints).header(header).column_spacing(GAP), area);
}

fn aligned(text: String, is_number: bool) -> Line<'static> {
    let line = Line::from(text);
    if is_number { line.right_aligned() } else { line }
}

/// Which columns there is room for, and how wide each is. Those that are spare go first; then text gets narrower.
fn fit(columns: &[Column], rows: &[&Vec<Value>], width: u16) -> (Vec<usize>, Vec<u16>) {
    let natural = |&at: &usize| {
        let cells = rows.iter().map(|row| row[at].shown.chars().count()).max().unwrap_or(0);
        // One more for the mark of the column by which is sorted.
        cells.max(columns[at].heading.len() + 1) as u16
    };
    let mut places: Vec<usize> = (0..columns.len()).collect();
    let mut spare: Vec<usize> = places.iter().copied().filter(|&at| columns[at].spare > 0).collect();
    spare.sort_by_key(|&at| columns[at].spare);
    let together = |widths: &[u16]| widths.iter().map(|w| w + GAP).sum::<u16>().saturating_sub(GAP);
    loop {
        let mut widths: Vec<u16> = places.iter().map(natural).collect();
        if together(&widths) <= width {
            return (places, widths);
        }
        let Some(gone) = spare.pop() else {
            while together(&widths) > width {
                let texts = widths.iter_mut().zip(&places).filter(|(_, at)| !columns[**at].is_number);
                let Some((widest, _)) = texts.max_by_key(|(w, _)| **w).filter(|(w, _)| **w > TEXT_MIN) else { break };
                *widest -= 1;
            }
            return (places, widths);
        };
        places.retain(|&at| at != gone);
    }
}
