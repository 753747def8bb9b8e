//! Charts as SVG, light and dark as their reader has it: what `radic report` and `radic bench --svg` draw with.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where a chart is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A colour, and what stands for it on a dark ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    light: (u8, u8, u8),
    dark: (u8, u8, u8),
}

impl Paint {
    const fn new(light: u32, dark: u32) -> Paint {
        Paint { light: parts(light), dark: parts(dark) }
    }

    /// As the chart has it.
    pub(crate) fn color(self) -> RGBColor {
        let (r, g, b) = self.light;
        RGBColor(r, g, b)
    }

    fn hex((r, g, b): (u8, u8, u8)) -> String {
        format!("#{r:02X}{g:02X}{b:02X}")
    }
}

const fn parts(color: u32) -> (u8, u8, u8) {
    ((color >> 16) as u8, (color >> 8) as u8, color as u8)
}

pub(crate) const PAPER: Paint = Paint::new(0xfdfdfc, 0x14161a);
pub(crate) const INK: Paint = Paint::new(0x1a1c20, 0xe6e8ec);
pub(crate) const SOFT: Paint = Paint::new(0x5b626d, 0xa0a7b3);
pub(crate) const EDGE: Paint = Paint::new(0xd5d9e0, 0x353a44);
pub(crate) const GOOD: Paint = Paint::new(0x1b7f4d, 0x5cc98f);
pub(crate) const BAD: Paint = Paint::new(0xb3261e, 0xff7b72);
/// Of what follows on each other: far apart in lightness or hue, also for eyes that do not tell red from green.
pub(crate) const SERIES: [Paint; 7] = [
    Paint::new(0xc0392b, 0xe57368),
    Paint::new(0xd98200, 0xf0a83c),
    Paint::new(0xa8930f, 0xd6c24a),
    Paint::new(0x8e5bb0, 0xba8fd6),
    Paint::new(0x6b4226, 0xb98a68),
    Paint::new(0x2471a3, 0x6cb0dc),
    Paint::new(0x148f77, 0x55c4ad),
];

/// Draws a picture of this size. `title` is what is told to readers who do not see it.
pub(crate) fn svg(size: (u32, u32), title: &str, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&PAPER.color())?;
        draw(&root)?;
        root.present()?;
    }
    let at = text.find(">\n").context("the chart has no beginning")?;
    let mut out = format!("{} role=\"img\">\n<title>{}</title>\n<style>{}</style>\n", &text[..at], escaped(title), style());
    out += &text[at + 2..];
    Ok(out)
}

/// What exchanges every colour on a dark ground.
fn style() -> String {
    let all = [PAPER, INK, SOFT, EDGE, GOOD, BAD].into_iter().chain(SERIES);
    let mut rules = String::from("@media (prefers-color-scheme: dark) {");
    for paint in all {
        let (light, dark) = (Paint::hex(paint.light), Paint::hex(paint.dark));
        _ = write!(rules, " [fill=\"{light}\"] {{ fill: {dark} }} [stroke=\"{light}\"] {{ stroke: {dark} }}");
    }
    rules + " }"
}

/// Text as it stands in SVG and HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // No character of XML, and nothing that anybody would see.
            c if c.is_control() && c != '\n' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// How text looks.
pub(crate) fn font(size: u32, paint: Paint, from: HPos) -> TextStyle<'static> {
    let font = TextStyle::from(("sans-serif", size).into_font());
    TextStyle { color: paint.color().to_backend_color(), pos: Pos::new(from, VPos::Center), ..font }
}

/// A line of text; `from` is which end of it is at this place.
pub(crate) fn put(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, paint: Paint, from: HPos) -> Result<()> {
    // The backend escapes what is markup, and not what is no character.
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Ok(area.draw(&Text::new(text, at, font(size, paint, from)))?)
}

/// What each colour means, from left to right.
pub(crate) fn key(area: &Area<'_>, at: (i32, i32), entries: &[(Paint, &str)]) -> Result<()> {
    let (mut x, y) = at;
    for (paint, text) in entries {
        area.draw(&Rectangle::new([(x, y - 5), (x + 11, y + 5)], paint.color().filled()))?;
        put(area, text, (x + 16, y), 14, SOFT, HPos::Left)?;
        // Letters are about as wide as this: the font is the reader's.
        x += 30 + 7 * i32::try_from(text.chars().count()).unwrap_or(0);
    }
    Ok(())
}

/// Seconds on an axis.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        v if v.abs() >= 3600.0 => format!("{:.1} h", v / 3600.0),
        v if v.abs() >= 120.0 => format!("{:.1} min", v / 60.0),
        v if v == 0.0 || v.abs() >= 10.0 => format!("{v:.0} s"),
        v if v.abs() >= 0.1 => format!("{v:.1} s"),
        v => format!("{:.0} ms", v * 1e3),
    }
}

/// Seconds on an axis that goes up to so many: all in one unit.
pub(crate) fn seconds_up_to(most: f64) -> impl Fn(f64) -> String {
    move |value| match most {
        most if most >= 7_200.0 => format!("{:.1} h", value / 3_600.0),
        most if most >= 300.0 => format!("{:.1} min", value / 60.0),
        most if most >= 8.0 => format!("{value:.0} s"),
        most if most >= 0.8 => format!("{value:.1} s"),
        _ => format!("{:.0} ms", value * 1e3),
    }
}

/// The scale of a chart whose rows are lines of text: seconds or ratios to the right, rows downwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    left: i32,
    right: i32,
    top: i32,
    row: i32,
    range: (f64, f64),
}

impl Scale {
    /// `labels` is the room for the rows' names.
    pub(crate) fn new(area: &Area<'_>, labels: i32, top: i32, row: i32, range: (f64, f64)) -> Scale {
        let width = i32::try_from(area.dim_in_pixel().0).unwrap_or(i32::MAX);
        Scale { left: labels, right: width - 20, top, row, range }
    }

    /// Where a value is.
    pub(crate) fn x(&self, value: f64) -> i32 {
        let axis = RangedCoordf64::from(self.range.0..self.range.1);
        let value = value.clamp(self.range.0, self.range.1);
        axis.map(&value, (self.left, self.right))
    }

    /// The upper edge of a row.
    pub(crate) fn y(&self, row: usize) -> i32 {
        self.top + self.row * i32::try_from(row).unwrap_or(i32::MAX)
    }

    /// From the left, above, to the right, below: a bar in a row, never too thin to be seen.
    pub(crate) fn bar(&self, row: usize, from: f64, to: f64, inset: i32) -> [(i32, i32); 2] {
        let (from, to) = (self.x(from), self.x(to));
        [(from, self.y(row) + inset), (to.max(from + 2), self.y(row) + self.row - inset)]
    }

    /// The axis below so many rows, and its lines.
    pub(crate) fn draw(&self, area: &Area<'_>, rows: usize, label: impl Fn(f64) -> String, what: &str) -> Result<()> {
        let axis = RangedCoordf64::from(self.range.0..self.range.1);
        let bottom = self.y(rows);
        for value in axis.key_points(9_usize) {
            let x = self.x(value);
            area.draw(&PathElement::new([(x, self.top), (x, bottom)], EDGE.color().stroke_width(1)))?;
            put(area, &label(value), (x, bottom + 11), 13, SOFT, HPos::Center)?;
        }
        put(area, what, (self.right, bottom + 28), 13, SOFT, HPos::Right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_light_and_dark_and_holds_nobody_s_markup() {
        let text = svg((300, 80), "what <b>it</b> is", |area| {
            let scale = Scale::new(area, 60, 10, 20, (0.0, 9.0));
            scale.draw(area, 2, seconds, "time")?;
            area.draw(&Rectangle::new(scale.bar(1, 3.0, 3.0, 2), SERIES[0].color().filled()))?;
            put(area, "</text><script>\u{1b}", (5, 5), 14, INK, HPos::Left)
        })
        .unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
        assert!(text.contains("<title>what &lt;b&gt;it&lt;/b&gt; is</title>"), "{text}");
        assert!(text.contains("&lt;/text&gt;&lt;script&gt;?") && !text.contains("<script>"), "{text}");
        assert!(text.contains("prefers-color-scheme: dark") && text.contains("[fill=\"#C0392B\"] { fill: #E57368 }"), "{text}");
        assert!(text.contains("fill=\"#C0392B\""), "the bar has the colour that the style knows: {text}");
    }

    #[test]
    fn values_have_their_places_and_bars_can_be_seen() {
        svg((500, 80), "", |area| {
            let scale = Scale::new(area, 80, 10, 20, (0.0, 10.0));
            assert_eq!([0.0, 5.0, 10.0, 99.0, -1.0].map(|value| scale.x(value)), [80, 280, 480, 480, 80]);
            assert_eq!(scale.bar(1, 5.0, 5.0, 3), [(280, 33), (282, 47)]);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn times_on_an_axis_are_short() {
        let on = |most: f64| [0.0, most / 2.0].map(seconds_up_to(most));
        assert_eq!(on(0.1), ["0 ms", "50 ms"]);
        assert_eq!((on(20.0), on(600.0)), (["0 s", "10 s"].map(str::to_owned), ["0.0 min", "5.0 min"].map(str::to_owned)));
        assert_eq!([0.0, 0.02, 0.5, 12.0, 180.0, 7200.0].map(seconds), ["0 s", "20 ms", "0.5 s", "12 s", "3.0 min", "2.0 h"]);
    }
}
