//! Reads the text that our own processes write, which is OpenMetrics as `prometheus-client` writes it.

use super::rows::{Labels, Point};

/// Most labels of a sample: ours have up to three.
const LABELS_MAX: usize = 16;

/// The samples of a text, as far as they are any; the second part says how many lines were none.
pub(crate) fn points(text: &str, process: &str, at_us: i64) -> (Vec<Point>, usize) {
    let mut kind = "unknown";
    let mut points = Vec::new();
    let mut odd = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(about) = line.strip_prefix("# ") {
            if let Some((_, of)) = about.strip_prefix("TYPE ").and_then(|rest| rest.split_once(' ')) {
                kind = of;
            }
        } else if let Some((name, labels, value)) = sample(line) {
            let (process, name, kind) = (process.to_owned(), name.to_owned(), kind.to_owned());
            points.push(Point { at_us, process, name, kind, labels, value });
        } else {
            odd += 1;
        }
    }
    (points, odd)
}

fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?;
    (!name.is_empty()).then_some((name, labels, value.parse().ok()?))
}

/// What stands between the braces, and what comes after them.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquoted(quoted)?;
        if labels.len() == LABELS_MAX {
            return None;
        }
        labels.push((name.to_owned(), value));
        rest = after;
    }
}

/// A value up to its closing quote (OpenMetrics 1.0, "escaped-string"), and what comes after.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, text.get(at + 1..)?)),
            (_, '\\') => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            (_, other) => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use scafo_telemetry::metrics::{Kind, Metrics, read};

    use super::*;

    #[test]
    fn what_a_process_tells_is_read_as_it_was_meant() {
        let odd = "a\"b\\c\nd, e=\"f\"}";
        let metrics = Metrics::new("test", |registry| {
            let of = move || vec![(vec![("name", odd.to_owned()), ("other", String::new())], 1.5)];
            read(registry, Kind::Gauge, ("odd", "Help", None), of);
            let seconds = scafo_telemetry::metrics::seconds();
            seconds.observe(0.002);
            registry.register("took", "Help", seconds);
        });
        let (points, unread) = points(&metrics.text(), "test", 7);
        assert_eq!(unread, 0);
        let found = points.iter().find(|point| point.name == "scafo_odd").unwrap();
        assert_eq!(
            (found.value, found.kind.as_str(), found.label("name"), found.label("other")),
            (1.5, "gauge", Some(odd), Some(""))
        );
        let all = points.iter().find(|point| point.label("le") == Some("+Inf")).unwrap();
        assert_eq!((all.name.as_str(), all.kind.as_str(), all.value), ("scafo_took_bucket", "histogram", 1.0));
        assert!(points.iter().any(|point| point.name == "scafo_spans_observed_total" && point.kind == "counter"));
        assert!(points.iter().all(|point| point.process == "test" && point.at_us == 7));
    }

    #[test]
    fn what_is_no_sample_is_counted_and_does_no_harm() {
        let text = "a{b=\"c\nx\ny{\nz{a=\"b\"} one\n 1\n# HELP x\n# EOF\ngood 1\nw{=} 1";
        let (points, unread) = points(text, "test", 0);
        assert_eq!((points.len(), unread), (1, 6));
    }
}
