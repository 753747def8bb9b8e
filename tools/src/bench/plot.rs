//! What a benchmark has found, as a picture: each figure with its spread, and its target beside it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde::Serialize;

use super::figures::Spread;
use crate::chart::{self, BAD, GOOD, INK, SERIES, SOFT, Scale};
use crate::file::NewFile;
use crate::format::{print, print_json, report};

const WIDTH: u32 = 860;
const ROW: i32 = 26;
/// Room for the names of rows.
const NAMES: i32 = 230;
const HEAD: i32 = 72;
const FOOT: i32 = 48;
/// Longest name of a row, in characters.
const NAME: usize = 31;

/// Where the picture goes.
#[derive(Args)]
pub(super) struct PlotArgs {
    /// Draw the figures with their spread, and their targets, into this new file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl PlotArgs {
    /// The file, made before anything is measured: minutes later would be too late to hear that it cannot be.
    pub(super) fn begin(&self) -> Result<Option<NewFile>> {
        self.svg.as_deref().map(NewFile::create).transpose()
    }

    /// Prints what was found, and draws it.
    pub(super) fn tell<T: Serialize, const N: usize>(
        &self,
        figures: &T,
        json: bool,
        in_words: fn(&T) -> String,
        file: Option<NewFile>,
        panels: fn(&T) -> [Panel; N],
    ) -> Result<()> {
        if json {
            print_json(figures)?
        } else {
            print(&in_words(figures))?
        }
        let (Some(file), Some(path)) = (file, &self.svg) else { return Ok(()) };
        file.finish(&svg(&panels(figures))?)?;
        report(&format!("radic: the picture is in {}", path.display()));
        Ok(())
    }
}

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) what: String,
    pub(super) spread: Spread,
    /// The most that it should be.
    pub(super) target: Option<f64>,
}

/// Figures on one scale.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    /// What the scale means.
    pub(super) axis: &'static str,
    pub(super) rows: Vec<Row>,
}

impl Panel {
    fn high(&self) -> u32 {
        u32::try_from(HEAD + FOOT + ROW * i32::try_from(self.rows.len()).unwrap_or(0)).unwrap_or(0)
    }
}

/// All panels, one below the other. Those without a row are left out.
pub(super) fn svg(panels: &[Panel]) -> Result<String> {
    let panels: Vec<&Panel> = panels.iter().filter(|panel| !panel.rows.is_empty()).collect();
    let high = panels.iter().map(|panel| panel.high()).sum();
    let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
    chart::svg((WIDTH, high), &titles.join("; "), |area| {
        let mut rest = area.clone();
        for panel in &panels {
            let (above, below) = rest.split_vertically(panel.high());
            draw(panel, &above)?;
            rest = below;
        }
        Ok(())
    })
}

fn draw(panel: &Panel, area: &chart::Area<'_>) -> Result<()> {
    let values = panel.rows.iter().flat_map(|row| [row.spread.max, row.target.unwrap_or(0.0)]);
    let most = values.filter(|value| value.is_finite()).fold(1.0, f64::max) * 1.05;
    let scale = Scale::new(area, NAMES, HEAD, ROW, (0.0, most));
    chart::put(area, &panel.title, (12, 18), 19, INK, HPos::Left)?;
    let key = [(SERIES[5], "median, and from the least to the most"), (BAD, "the most that it should be")];
    let has_target = panel.rows.iter().any(|row| row.target.is_some());
    chart::key(area, (12, 46), &key[..1 + usize::from(has_target)])?;
    scale.draw(area, panel.rows.len(), |value| format!("{value:.1}"), panel.axis)?;
    let one = scale.x(1.0);
    area.draw(&PathElement::new([(one, HEAD), (one, scale.y(panel.rows.len()))], SOFT.color().stroke_width(1)))?;
    for (at, row) in panel.rows.iter().enumerate() {
        draw_row(area, &scale, at, row)?;
    }
    Ok(())
}

fn draw_row(area: &chart::Area<'_>, scale: &Scale, at: usize, row: &Row) -> Result<()> {
    let Spread { min, median, max } = row.spread;
    let middle = scale.y(at) + ROW / 2;
    let name: String = row.what.chars().take(NAME).collect();
    chart::put(area, &name, (NAMES - 70, middle), 14, INK, HPos::Right)?;
    let paint = row.target.map_or(INK, |target| if median <= target { GOOD } else { BAD });
    chart::put(area, &format!("{median:.3}"), (NAMES - 10, middle), 14, paint, HPos::Right)?;
    let line = SERIES[5].color().stroke_width(2);
    let (left, right) = (scale.x(min), scale.x(max));
    area.draw(&PathElement::new([(left, middle), (right, middle)], line))?;
    for end in [left, right] {
        area.draw(&PathElement::new([(end, middle - 5), (end, middle + 5)], line))?;
    }
    area.draw(&Circle::new((scale.x(median), middle), 5, SERIES[5].color().filled()))?;
    if let Some(target) = row.target {
        let x = scale.x(target);
        area.draw(&PathElement::new([(x, middle - 9), (x, middle + 9)], BAD.color().stroke_width(3)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, median: f64, target: Option<f64>) -> Row {
        Row { what: what.into(), spread: Spread { min: median / 2.0, median, max: median * 2.0 }, target }
    }

    #[test]
    fn every_figure_has_its_spread_and_its_target() {
        let panel = |rows| Panel { title: "ratios <1>".into(), axis: "times the native one", rows };
        let panels = [
            panel(vec![row("8 B", 2.0, Some(3.5)), row("4 MiB", 4.0, Some(2.5))]),
            panel(vec![row("whole", 1.25, None)]),
            panel(vec![]),
        ];
        let text = svg(&panels).unwrap();
        for part in ["ratios &lt;1&gt;", "8 B", "4 MiB", "whole", "2.000", "4.000", "1.250"] {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
        assert_eq!(text.matches("<circle ").count(), 3);
        assert_eq!(text.matches("stroke-width=\"3\"").count(), 2, "two have a target");
        assert!(text.contains("ratios &lt;1&gt;; ratios &lt;1&gt;</title>"), "the panel without rows is left out");
        assert!(text.len() < 20 << 10);
    }

    #[test]
    fn what_cannot_be_placed_is_drawn_at_the_edge() {
        svg(&[Panel {
            title: String::new(),
            axis: "",
            rows: vec![row("?", f64::NAN, Some(f64::INFINITY)), row("0", 0.0, None)],
        }])
        .unwrap();
    }
}
