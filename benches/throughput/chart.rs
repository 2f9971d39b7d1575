//! The ratios as a picture.

use std::{error::Error, path::Path};

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::{
        BLACK, Cartesian2d, ChartBuilder, ChartContext, Color as _, DrawingArea, IntoDrawingArea as _, IntoFont as _,
        PathElement, RGBColor, Rectangle, SVGBackend, Text, WHITE,
    },
    style::{
        TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::report::{Report, Row, Scenario};

const COLUMN: u32 = 600;
const BAR: u32 = 17;
/// The room for the names of variants, for a scenario's title, and for the numbers below it.
const NAMES: u32 = 200;
const TITLE: u32 = 28;
const NUMBERS: u32 = 24;
/// Ratios beyond are cut off, and their number says so.
const MOST: f64 = 2.0;
const GREY: RGBColor = RGBColor(0x55, 0x5b, 0x61);

/// Draws the scenarios in two columns; every one is held against the first variant that it names.
pub(crate) fn draw(report: &Report, to: &Path) -> Result<(), Box<dyn Error>> {
    let rows: Vec<_> =
        report.scenarios.chunks(2).map(|pair| (pair, pair.iter().map(height).max().unwrap_or(0))).collect();
    let (head, foot) = (76, 34);
    let heights: u32 = rows.iter().map(|(_, height)| height).sum();
    let root = SVGBackend::new(to, (2 * COLUMN, head + heights + foot)).into_drawing_area();
    // With a ground of its own, it can be read on a dark page too.
    root.fill(&WHITE)?;
    let machine = &report.machine;
    let caption = format!(
        "Requests per second against the same endpoint without protection. {} cores for everything, PostgreSQL {}, \
         durable, pools of {}; {} mode",
        machine.cores, machine.postgresql, machine.pool_connections, machine.mode
    );
    root.draw(&Text::new("What idempotency costs", (16, 12), style(26, BLACK)))?;
    root.draw(&Text::new(caption, (16, 46), style(16, GREY)))?;
    let (_, mut rest) = root.split_vertically(head);
    for (pair, height) in rows {
        let (row, below) = rest.split_vertically(height);
        let (left, right) = row.split_horizontally(COLUMN);
        for (scenario, panel) in pair.iter().zip([left, right]) {
            draw_scenario(scenario, &panel)?;
        }
        rest = below;
    }
    let axis = "Ratio of requests per second in the same round: median; the line goes from the least to the most.";
    rest.draw(&Text::new(axis, (16, 8), style(16, GREY)))?;
    root.present()?;
    Ok(())
}

/// Draws what a visitor asks first: first calls on a network, one client, in four bars.
pub(crate) fn draw_summary(report: &Report, to: &Path) -> Result<(), Box<dyn Error>> {
    const SCENARIO: &str = "first calls, 1 client, +1 ms a round trip";
    const VARIANTS: [&str; 4] = ["bare", "two transactions", "by hand", "ours"];

    let Some(scenario) = report.scenarios.iter().find(|scenario| scenario.name == SCENARIO) else {
        return Err(format!("there is no scenario {SCENARIO}").into());
    };
    let rows =
        VARIANTS.iter().filter_map(|name| scenario.rows.iter().find(|row| row.variant == *name)).collect::<Vec<_>>();
    let root = SVGBackend::new(to, (COLUMN, height_of(rows.len()) + 12)).into_drawing_area();
    root.fill(&WHITE)?;
    draw_rows("First requests per second, 1 ms a round trip (1.0: no protection)", &rows, &root)?;
    root.present()?;
    Ok(())
}

fn height(scenario: &Scenario) -> u32 {
    height_of(scenario.rows.len())
}

fn height_of(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX) * BAR + TITLE + NUMBERS + 14
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw_scenario(scenario: &Scenario, panel: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let reference = scenario.rows.first().and_then(|row| row.ratios.first()).map_or("", |cell| cell.to);
    draw_rows(&format!("{} (1.0 is {reference})", scenario.name), &scenario.rows.iter().collect::<Vec<_>>(), panel)
}

fn draw_rows(title: &str, all: &[&Row], panel: &Area<'_>) -> Result<(), Box<dyn Error>> {
    panel.draw(&Text::new(title.to_owned(), (16, 8), style(18, BLACK)))?;
    let rows = all.len() as f64;
    let bars = u32::try_from(all.len())? * BAR;
    // Panels of a row are as high as the larger one: bars keep their height.
    let mut chart = ChartBuilder::on(&panel.margin(0, panel.dim_in_pixel().1 - bars - TITLE - NUMBERS, 0, 0))
        .margin_top(TITLE)
        .margin_right(24)
        .x_label_area_size(NUMBERS)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..MOST, rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(9)
        .max_light_lines(1)
        .x_label_formatter(&|ratio| format!("{ratio:.1}"))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(0xe3, 0xe6, 0xe8))
        .axis_style(GREY)
        .label_style(style(14, GREY))
        .draw()?;
    for (number, row) in all.iter().enumerate() {
        bar(row, number as f64, &mut chart)?;
        let y = i32::try_from(TITLE)? + i32::try_from(number)? * i32::try_from(BAR)? + 3;
        let label = style(15, BLACK).pos(Pos::new(HPos::Right, VPos::Top));
        panel.draw(&Text::new(row.variant, (i32::try_from(NAMES)? - 8, y), label))?;
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, rows)], GREY)])?;
    Ok(())
}

fn bar(row: &Row, top: f64, chart: &mut Chart<'_, '_>) -> Result<(), Box<dyn Error>> {
    let Some(ratio) = row.ratios.first().map(|cell| cell.ratio) else {
        return Ok(());
    };
    let middle = top + 0.5;
    let end = ratio.median.min(MOST);
    let fill = colour(row.variant).filled();
    chart.draw_series([Rectangle::new([(0.0, top + 0.14), (end, top + 0.86)], fill)])?;
    let (from, to) = (ratio.min.min(MOST), ratio.max.min(MOST));
    chart.draw_series([PathElement::new([(from, middle), (to, middle)], BLACK.stroke_width(2))])?;
    let text = format!("{:.2}", ratio.median);
    let place = style(14, BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    let x = to.max(end) + 0.015;
    let (x, place) =
        if x > MOST - 0.12 { (MOST - 0.01, place.pos(Pos::new(HPos::Right, VPos::Center))) } else { (x, place) };
    chart.draw_series([Text::new(text, (x, middle), place)])?;
    Ok(())
}

fn colour(variant: &str) -> RGBColor {
    match variant {
        "ours" => RGBColor(0x1f, 0x77, 0xb4),
        "ours, other process" => RGBColor(0x6b, 0xae, 0xd6),
        _ => RGBColor(0xb0, 0xb7, 0xbd),
    }
}

fn style(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}
