//! What was told since the last flush, within bounds. Nothing here waits or does I/O.

use std::collections::BTreeMap;
use std::mem::take;

use super::openmetrics;
use super::rows::{Contents, Point, Span};

/// Spans of one flush: what three processes may hand in, and one more.
pub(super) const SPANS_MAX: usize = 16_384;
/// What they may take in memory together: a third of that is usual.
pub(super) const SPANS_BYTES_MAX: usize = 8 << 20;
/// Longest text of one process: a hundred routes have some 200 KiB.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Samples of one flush. A node that runs a hundred applications has about four thousand.
pub(super) const POINTS_MAX: usize = 32_768;

/// The processes of a node that hand something in. No other name is taken, so that their number is bounded.
const PROCESSES: [&str; 4] = ["apiserver", "registryd", "routerd", "supervisor"];

/// What a caller calls itself, if he is one of us.
pub(crate) fn known(process: &str) -> Option<&'static str> {
    PROCESSES.into_iter().find(|known| *known == process)
}

/// The text of a process, and when it was read, in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    at_us: i64,
    text: String,
}

/// Between two flushes.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// The last text of each process: an earlier one of the same minute says nothing more.
    texts: BTreeMap<&'static str, Told>,
    spans: Vec<Span>,
    weight: usize,
    dropped: u64,
}

impl Buffer {
    /// Takes the figures of a process in place of its last ones.
    pub(crate) fn text(&mut self, process: &'static str, at_us: i64, text: String) {
        if text.len() > TEXT_BYTES_MAX {
            self.dropped += 1;
        } else if !text.is_empty() {
            self.texts.insert(process, Told { at_us, text });
        }
    }

    /// Takes a span, if there is room.
    pub(crate) fn span(&mut self, span: Span) {
        let weight = self.weight + span.weight();
        if self.spans.len() < SPANS_MAX && weight <= SPANS_BYTES_MAX {
            self.weight = weight;
            self.spans.push(span);
        } else {
            self.dropped += 1;
        }
    }

    /// Empties it: what there is to write, and how many rows there was no room for.
    pub(crate) fn drain(&mut self) -> (Contents, u64) {
        let texts = take(&mut self.texts);
        let mut points: Vec<Point> = Vec::new();
        let mut dropped = take(&mut self.dropped);
        for (process, told) in &texts {
            let (of, odd) = openmetrics::points(&told.text, process, told.at_us);
            let room = POINTS_MAX.saturating_sub(points.len());
            dropped += (odd + of.len().saturating_sub(room)) as u64;
            points.extend(of.into_iter().take(room));
        }
        self.weight = 0;
        (Contents { points, spans: take(&mut self.spans) }, dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::span;

    #[test]
    fn a_flush_has_the_last_figures_of_each_process_and_every_span() {
        let mut buffer = Buffer::default();
        buffer.text("apiserver", 1, "a 1\n".to_owned());
        buffer.text("routerd", 2, "a 2\n".to_owned());
        buffer.text("apiserver", 3, "a 3\n".to_owned());
        buffer.span(span(1));
        buffer.span(span(2));
        let (contents, dropped) = buffer.drain();
        let told: Vec<(&str, i64, f64)> =
            contents.points.iter().map(|point| (point.process.as_str(), point.at_us, point.value)).collect();
        assert_eq!(told, [("apiserver", 3, 3.0), ("routerd", 2, 2.0)]);
        assert_eq!((contents.spans, dropped), (vec![span(1), span(2)], 0));
        assert_eq!(buffer.drain(), (Contents::default(), 0), "each row is written once");
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted() {
        let mut buffer = Buffer::default();
        for at in 0..20_000 {
            buffer.span(span(at));
        }
        buffer.text("apiserver", 0, "a 1\n".repeat(TEXT_BYTES_MAX / 4 + 1));
        buffer.text("routerd", 0, "a 1\n".repeat(POINTS_MAX));
        buffer.text("supervisor", 0, "b 1\nodd\n".to_owned());
        let (contents, dropped) = buffer.drain();
        assert_eq!((contents.spans.len(), contents.points.len()), (SPANS_MAX, POINTS_MAX));
        assert_eq!(dropped, (20_000 - SPANS_MAX) as u64 + 1 + 2, "spans, one text, the odd line and the point beyond");

        let mut large = span(0);
        large.labels = vec![("x".to_owned(), "x".repeat(1 << 20))];
        for _ in 0..20 {
            buffer.span(large.clone());
        }
        let (contents, dropped) = buffer.drain();
        assert!(contents.spans.len() == 7 && dropped == 13, "{dropped}");
    }

    #[test]
    fn only_processes_of_a_node_tell_something() {
        assert_eq!((known("routerd"), known("celld"), known("")), (Some("routerd"), None, None));
    }
}
