//! Two small plots as inline SVG: bars, and lines over a doubling axis.

use std::fmt::Write;

const WIDTH: f64 = 680.0;
const COLOURS: [&str; 2] = ["#8a8f98", "#2463c4"];

/// Text made safe for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// One horizontal bar.
pub struct Bar {
    pub label: String,
    pub value: f64,
    /// What is written at its end.
    pub text: String,
    pub ours: bool,
}

/// Bars from a common zero.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 26.0;
    const LEFT: f64 = 150.0;
    const RIGHT: f64 = 150.0;
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let mut body = String::new();
    for (index, bar) in bars.iter().enumerate() {
        let top = index as f64 * ROW + 4.0;
        let length = if most > 0.0 {
            bar.value / most * (WIDTH - LEFT - RIGHT)
        } else {
            0.0
        };
        let _ = write!(
            body,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{length:.1}\" height=\"18\" fill=\"{colour}\"/>\
             <text x=\"{end:.1}\" y=\"{y}\">{text}</text>",
            x = LEFT - 8.0,
            y = top + 14.0,
            label = escape(&bar.label),
            colour = COLOURS[usize::from(bar.ours)],
            end = LEFT + length + 6.0,
            text = escape(&bar.text),
        );
    }
    frame(title, bars.len() as f64 * ROW + 8.0, &body)
}

/// A line through points (x, y), x at least 1.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub ours: bool,
}

/// Lines over an x axis on which each step doubles; y starts at zero.
pub fn lines(title: &str, x_name: &str, lines: &[Line]) -> String {
    const HEIGHT: f64 = 320.0;
    const LEFT: f64 = 50.0;
    const BOTTOM: f64 = 270.0;
    const TOP: f64 = 20.0;
    const RIGHT: f64 = 560.0;
    let points = || lines.iter().flat_map(|line| &line.points);
    let doublings = points()
        .map(|(x, _)| x.max(1.0).log2())
        .fold(1.0, f64::max)
        .ceil();
    let most = points().map(|(_, y)| *y).fold(1.0, f64::max).ceil();
    let place = |(x, y): (f64, f64)| {
        (
            LEFT + x.max(1.0).log2() / doublings * (RIGHT - LEFT),
            BOTTOM - y / most * (BOTTOM - TOP),
        )
    };
    let mut body = String::new();
    for step in 0..=doublings as u32 {
        let value = f64::from(2_u32.saturating_pow(step));
        let (x, _) = place((value, 0.0));
        let _ = write!(
            body,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\" class=\"grid\"/>\
             <text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{value}</text>",
            y = BOTTOM + 18.0,
        );
    }
    let ticks = 4;
    for tick in 0..=ticks {
        let value = most * f64::from(tick) / f64::from(ticks);
        let (_, y) = place((1.0, value));
        let _ = write!(
            body,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" class=\"grid\"/>\
             <text x=\"{x}\" y=\"{label:.1}\" text-anchor=\"end\">{value:.2}</text>",
            x = LEFT - 6.0,
            label = y + 4.0,
        );
    }
    let _ = write!(
        body,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>",
        x = f64::midpoint(LEFT, RIGHT),
        y = HEIGHT - 8.0,
        name = escape(x_name),
    );
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[usize::from(line.ours)];
        let places: Vec<(f64, f64)> = line.points.iter().map(|point| place(*point)).collect();
        let path: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = write!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in places {
            let _ = write!(
                body,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
            );
        }
        let _ = write!(
            body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{text}\" y=\"{base}\">{name}</text>",
            x = RIGHT + 14.0,
            y = TOP + index as f64 * 22.0,
            text = RIGHT + 32.0,
            base = TOP + index as f64 * 22.0 + 11.0,
            name = escape(&line.name),
        );
    }
    frame(title, HEIGHT, &body)
}

fn frame(title: &str, height: f64, body: &str) -> String {
    let title = escape(title);
    format!(
        "<figure><figcaption>{title}</figcaption><svg role=\"img\" aria-label=\"{title}\" \
         viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">{body}</svg></figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(escape("<a&\"b\">"), "&lt;a&amp;&quot;b&quot;&gt;");
        let bar = Bar {
            label: "</svg>".into(),
            value: 0.0,
            text: String::new(),
            ours: true,
        };
        assert_eq!(bars("t", &[bar]).matches("</svg>").count(), 1);
    }

    #[test]
    fn empty_and_single_plots_hold_no_bad_number() {
        let one = Line {
            name: "one".into(),
            points: vec![(1.0, 1.0)],
            ours: true,
        };
        for text in [
            bars("t", &[]),
            lines("t", "x", &[]),
            lines("t", "x", &[one]),
        ] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
