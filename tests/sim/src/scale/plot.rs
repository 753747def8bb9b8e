//! Pictures of what was measured: two logarithmic axes, a line for each series, as SVG that needs nothing else.

use std::fmt::Write;

/// One line of a picture.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Where it goes; what is not above zero cannot be shown.
    pub points: Vec<(f64, f64)>,
}

/// One picture.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below it: what the horizontal axis is.
    pub x: String,
    /// Beside it: what the vertical axis is, with its unit.
    pub y: String,
    /// What it shows.
    pub series: Vec<Series>,
}

const SIZE: (f64, f64) = (760.0, 480.0);
/// Around the axes: left, right (for the legend), above, below.
const MARGIN: (f64, f64, f64, f64) = (80.0, 210.0, 50.0, 60.0);
/// Distinct for most who do not tell all colours apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// An axis from one power of ten to another.
struct Axis {
    low: i32,
    high: i32,
    /// Where these are in the picture.
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
        let (low, high) = if least > most { (0, 1) } else { (least.log10().floor() as i32, most.log10().ceil() as i32) };
        Axis { low, high: high.max(low + 1), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low) * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low..=self.high).map(|power| 10f64.powi(power))
    }
}

/// A number as it is written at an axis.
fn label(value: f64) -> String {
    if value < 1.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Plot {
    /// The picture.
    pub fn svg(&self) -> String {
        let shown = || self.series.iter().flat_map(|series| &series.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
        let x = Axis::new(shown().map(|point| point.0), MARGIN.0, SIZE.0 - MARGIN.1);
        let y = Axis::new(shown().map(|point| point.1), SIZE.1 - MARGIN.3, MARGIN.2);
        let (width, height) = SIZE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        self.draw_axes(&mut svg, &x, &y);
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            draw_series(&mut svg, series, colour, &x, &y);
        }
        self.draw_legend(&mut svg);
        svg + "</svg>\n"
    }

    fn draw_axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let mut line = |x1: f64, y1: f64, x2: f64, y2: f64, colour: &str| {
            _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
        };
        for axis in [x, y] {
            for (decade, part) in axis.decades().flat_map(|decade| (1..10).map(move |part| (decade, part))) {
                let value = decade * f64::from(part);
                let colour = if part == 1 { "#bbb" } else { "#eee" };
                match (axis.at(value) - axis.to) * (axis.to - axis.from).signum() > 0.1 {
                    true => {}
                    false if std::ptr::eq(axis, x) => line(x.at(value), y.from, x.at(value), y.to, colour),
                    false => line(x.from, y.at(value), x.to, y.at(value), colour),
                }
            }
        }
        let mut text = |x: f64, y: f64, anchor: &str, more: &str, text: &str| {
            _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{}</text>", escaped(text));
        };
        x.decades().for_each(|value| text(x.at(value), y.from + 18.0, "middle", "", &label(value)));
        y.decades().for_each(|value| text(x.from - 8.0, y.at(value) + 4.0, "end", "", &label(value)));
        let middle = ((x.from + x.to) / 2.0, (y.from + y.to) / 2.0);
        text(middle.0, y.from + 42.0, "middle", "", &self.x);
        text(18.0, middle.1, "middle", &format!(" transform=\"rotate(-90 18 {:.1})\"", middle.1), &self.y);
        text(x.from, 28.0, "start", " font-size=\"15\" font-weight=\"bold\"", &self.title);
    }

    fn draw_legend(&self, svg: &mut String) {
        let x = SIZE.0 - MARGIN.1 + 15.0;
        for (i, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let y = MARGIN.2 + 10.0 + 22.0 * i as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                x + 22.0,
                x + 28.0,
                y + 4.0,
                escaped(&series.name)
            );
        }
    }
}

fn draw_series(svg: &mut String, series: &Series, colour: &str, x: &Axis, y: &Axis) {
    let shown = series.points.iter().filter(|point| point.0 > 0.0 && point.1 > 0.0);
    let points: Vec<(f64, f64)> = shown.map(|point| (x.at(point.0), y.at(point.1))).collect();
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", list.join(" "));
    for (x, y) in points {
        _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_between_their_powers_of_ten() {
        let axis = Axis::new([20.0, 3_000.0].into_iter(), 100.0, 400.0);
        assert_eq!((axis.low, axis.high), (1, 4));
        assert_eq!([10.0, 100.0, 10_000.0].map(|value| axis.at(value).round()), [100.0, 200.0, 400.0]);
        assert_eq!([0.1, 1.0, 1_000.0, 10_000_000.0].map(label), ["0.1", "1", "1,000", "10,000,000"]);
    }

    #[test]
    fn a_picture_has_its_series_and_nothing_that_is_not_above_zero() {
        let series = Series { name: "a < b".into(), points: vec![(64.0, 1.0), (256.0, 0.0), (1_000.0, 3.0)] };
        let plot = Plot { title: "t".into(), x: "nodes".into(), y: "ms".into(), series: vec![series] };
        let svg = plot.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
