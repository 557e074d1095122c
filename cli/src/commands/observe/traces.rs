//! `scafo traces`: the newest traces, or the spans of one.

use std::collections::{BTreeMap, BTreeSet};

use scafo_core::{NodeId, Timestamp};
use scafo_registryd::observe::read::Choice;
use scafo_registryd::observe::rows::{Contents, Span};
use serde::Serialize;

use super::{Reading, nothing, source, unreadable};
use crate::args::TracesArgs;
use crate::error::Outcome;
use crate::output::{Output, table};

/// Spans that are held at once, and their bytes. Ours have some 500 each; others could have written larger ones.
const SPANS_MAX: usize = 200_000;
const BYTES_MAX: usize = 128 << 20;
/// How deep the tree of a trace is indented.
const DEPTH_MAX: usize = 20;

/// A span as it is printed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    node: NodeId,
    process: String,
    name: String,
    kind: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    started_at: Timestamp,
    took_us: i64,
    failed: bool,
    attributes: BTreeMap<String, String>,
    #[serde(skip)]
    at_us: i64,
}

/// A trace as far as it was recorded.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace: String,
    started_at: Timestamp,
    took_us: i64,
    failed: bool,
    /// By when they began.
    spans: Vec<Shown>,
}

#[derive(Debug, Serialize)]
struct Traces {
    traces: Vec<Trace>,
    read: Reading,
}

/// `scafo traces`
pub(crate) async fn traces(args: TracesArgs, output: Output) -> Outcome {
    let source = source(&args.within, output).await?;
    let mut all = All::new(&args);
    let reading = Reading::of(&*source, &args.within, Choice::Newest, |key, contents| all.take(key.node(), contents));
    let mut reading = reading.await.map_err(|problem| unreadable(&problem))?;
    reading.cut |= all.full;
    let (traces, more) = all.chosen(&args);
    let printed = Traces { traces, read: reading };
    output.data(&printed, || match (&args.trace, printed.traces.as_slice()) {
        (Some(_), [one]) => render_one(one),
        (_, traces) => render(traces),
    })?;
    if more > 0 {
        output.say(&format!("{more} more traces; show them with --limit, or fewer with --name"));
    }
    nothing(&printed.read, output);
    printed.read.tell(output);
    Ok(())
}

struct All {
    /// How the id of a trace has to begin.
    asked: String,
    spans: usize,
    bytes: usize,
    /// A span did not fit.
    full: bool,
    traces: BTreeMap<String, Vec<Shown>>,
}

impl All {
    fn new(args: &TracesArgs) -> Self {
        let asked = args.trace.clone().unwrap_or_default();
        Self { asked, spans: 0, bytes: 0, full: false, traces: BTreeMap::new() }
    }

    /// Takes a file, and says whether there is room for another one.
    fn take(&mut self, node: &NodeId, contents: Contents) -> bool {
        for span in contents.spans.into_iter().filter(|span| span.trace.starts_with(&self.asked)) {
            self.spans += 1;
            self.bytes += span.weight();
            if self.spans > SPANS_MAX || self.bytes > BYTES_MAX {
                self.full = true;
                break;
            }
            let Span { at_us, process, name, kind, labels, trace, id, parent, took_us, failed } = span;
            let started_at = Timestamp::from_millis(at_us.div_euclid(1000));
            let attributes = labels.into_iter().collect();
            let node = node.clone();
            let shown = Shown { node, process, name, kind, id, parent, started_at, took_us, failed, attributes, at_us };
            self.traces.entry(trace).or_default().push(shown);
        }
        !self.full
    }

    /// The newest traces that are asked for, and how many more there are.
    fn chosen(self, args: &TracesArgs) -> (Vec<Trace>, usize) {
        let asked = |(id, spans): &(String, Vec<Shown>)| {
            let about = |name: &str| {
                spans.iter().any(|span| span.attributes.get("scafo.application").is_some_and(|of| of == name))
            };
            id.starts_with(&self.asked)
                && args.name.as_ref().is_none_or(|name| spans.iter().any(|span| span.name.contains(name.as_str())))
                && args.application.as_ref().is_none_or(|name| about(name.as_str()))
                && (!args.failed || spans.iter().any(|span| span.failed))
        };
        let mut traces: Vec<Trace> = self.traces.into_iter().filter(asked).filter_map(trace).collect();
        traces.sort_by(|a, b| (b.started_at, &b.trace).cmp(&(a.started_at, &a.trace)));
        let more = traces.len().saturating_sub(args.limit);
        traces.truncate(args.limit);
        (traces, more)
    }
}

fn trace((trace, mut spans): (String, Vec<Shown>)) -> Option<Trace> {
    spans.sort_by(|a, b| (a.at_us, b.took_us, &a.id).cmp(&(b.at_us, a.took_us, &b.id)));
    let first = spans.first()?;
    let end = spans.iter().map(|span| span.at_us.saturating_add(span.took_us)).max()?;
    let (started_at, took_us) = (first.started_at, end.saturating_sub(first.at_us));
    Some(Trace { trace, started_at, took_us, failed: spans.iter().any(|span| span.failed), spans })
}

fn render(traces: &[Trace]) -> String {
    let row = |trace: &Trace| {
        let first = trace.spans.first();
        let nodes: BTreeSet<&str> = trace.spans.iter().map(|span| span.node.as_str()).collect();
        let application = trace.spans.iter().find_map(|span| span.attributes.get("scafo.application"));
        vec![
            trace.trace.clone(),
            trace.started_at.to_string(),
            nodes.into_iter().collect::<Vec<_>>().join(","),
            first.map(|span| span.name.clone()).unwrap_or_default(),
            application.cloned().unwrap_or_else(|| "-".to_owned()),
            trace.spans.len().to_string(),
            took(trace.took_us),
            outcome(trace),
        ]
    };
    let rows: Vec<Vec<String>> = traces.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["TRACE", "STARTED", "NODE", "NAME", "APPLICATION", "SPANS", "TOOK", "OUTCOME"], &rows)
}

fn outcome(trace: &Trace) -> String {
    let status = trace.spans.iter().find_map(|span| span.attributes.get("http.response.status_code"));
    match (status, trace.failed) {
        (Some(status), true) => format!("{status} failed"),
        (Some(status), false) => status.clone(),
        (None, true) => "failed".to_owned(),
        (None, false) => "-".to_owned(),
    }
}

fn render_one(trace: &Trace) -> String {
    let mut rows = Vec::new();
    let start = trace.spans.first().map_or(0, |span| span.at_us);
    let ids: BTreeSet<&str> = trace.spans.iter().map(|span| span.id.as_str()).collect();
    let is_root = |span: &&Shown| span.parent.as_deref().is_none_or(|parent| !ids.contains(parent));
    let mut below: BTreeMap<&str, Vec<&Shown>> = BTreeMap::new();
    for span in &trace.spans {
        if let Some(parent) = span.parent.as_deref() {
            below.entry(parent).or_default().push(span);
        }
    }
    // Depth first, without recursion: whoever writes a file may make a tree as deep as it has rows.
    let mut open: Vec<(usize, &Shown)> = trace.spans.iter().filter(is_root).rev().map(|span| (0, span)).collect();
    while let Some((depth, span)) = open.pop() {
        let mut detail: Vec<String> = span.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if span.failed {
            detail.insert(0, "failed".to_owned());
        }
        rows.push(vec![
            took(span.at_us.saturating_sub(start)),
            took(span.took_us),
            span.node.to_string(),
            span.process.clone(),
            format!("{}{}", "  ".repeat(depth.min(DEPTH_MAX)), span.name),
            detail.join(" "),
        ]);
        // Each is taken out once, so that spans that claim each other do not go round.
        let children = below.remove(span.id.as_str()).unwrap_or_default();
        open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
    }
    let head = format!("trace {} at {}\n", trace.trace, trace.started_at);
    head + &table(&["AFTER", "TOOK", "NODE", "PROCESS", "SPAN", "DETAIL"], &rows)
}

/// Microseconds for people.
fn took(us: i64) -> String {
    match us {
        ..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => format!("{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &str) -> TracesArgs {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Traces(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn span(trace: u32, id: u32, parent: u32, at_ms: i64, name: &str, more: &[(&str, &str)]) -> Span {
        Span {
            at_us: 1_775_046_600_000_000 + at_ms * 1000,
            process: if parent == 0 { "apiserver" } else { "registryd" }.to_owned(),
            name: name.to_owned(),
            kind: "server".to_owned(),
            labels: more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            trace: format!("{trace:032x}"),
            id: format!("{id:016x}"),
            parent: (parent != 0).then(|| format!("{parent:016x}")),
            took_us: 1_500,
            failed: name == "bucket put",
        }
    }

    /// What a command line chooses among three traces.
    fn chosen(line: &str) -> (Vec<Trace>, usize) {
        let args = args(line);
        let mut all = All::new(&args);
        let spans = vec![
            span(1, 2, 1, 1, "GetApplication", &[]),
            span(1, 3, 2, 2, "bucket put", &[("scafo.outcome", "busy")]),
            span(1, 1, 0, 0, "GET /v1/x", &[("http.response.status_code", "503"), ("scafo.application", "shop")]),
            span(2, 4, 0, 5, "GET /v1/y", &[("http.response.status_code", "200")]),
            span(3, 5, 6, 9, "a", &[]),
            span(3, 6, 5, 9, "b", &[]),
        ];
        all.take(&"vps-a".parse().unwrap(), Contents { points: Vec::new(), spans });
        all.chosen(&args)
    }

    #[test]
    fn the_newest_traces_come_first_with_what_became_of_them() {
        let (traces, more) = chosen("scafo traces --name GET --limit 2");
        assert_eq!(more, 0);
        insta::assert_snapshot!(render(&traces), @r#"
TRACE                             STARTED                   NODE   NAME       APPLICATION  SPANS  TOOK    OUTCOME
00000000000000000000000000000002  2026-04-01T12:30:00.005Z  vps-a  GET /v1/y  -            1      1.5 ms  200
00000000000000000000000000000001  2026-04-01T12:30:00.000Z  vps-a  GET /v1/x  shop         3      3.5 ms  503 failed
"#);
        for (line, count) in [
            ("scafo traces", 3),
            ("scafo traces --failed", 1),
            ("scafo traces --application shop", 1),
            ("scafo traces --trace 0000", 3),
            ("scafo traces --trace 00000000000000000000000000000002", 1),
            ("scafo traces --name none", 0),
        ] {
            assert_eq!(chosen(line).0.len(), count, "{line}");
        }
        assert_eq!(chosen("scafo traces --limit 1").1, 2);
    }

    #[test]
    fn one_trace_is_a_tree_whatever_its_spans_claim() {
        let (traces, _) = chosen("scafo traces --name GetApplication");
        insta::assert_snapshot!(render_one(&traces[0]), @r#"
trace 00000000000000000000000000000001 at 2026-04-01T12:30:00.000Z
AFTER   TOOK    NODE   PROCESS    SPAN              DETAIL
0 us    1.5 ms  vps-a  apiserver  GET /v1/x         http.response.status_code=503 scafo.application=shop
1.0 ms  1.5 ms  vps-a  registryd    GetApplication
2.0 ms  1.5 ms  vps-a  registryd      bucket put    failed scafo.outcome=busy
"#);
        let (traces, _) = chosen("scafo traces --trace 00000000000000000000000000000003");
        assert_eq!(render_one(&traces[0]).lines().count(), 2, "spans that claim each other belong to nothing");
    }

    #[test]
    fn spans_are_held_up_to_a_number_and_up_to_so_many_bytes_and_only_of_the_trace_that_is_asked_for() {
        let node: NodeId = "vps-a".parse().unwrap();
        let file = |spans: Vec<Span>| Contents { points: Vec::new(), spans };
        let text = "x".repeat(1 << 20);
        let large = |id| span(1, id, 0, 0, "large", &[("text", &text)]);
        let mut all = All::new(&args("scafo traces"));
        let taken = (0..300).take_while(|id| all.take(&node, file(vec![large(*id)]))).count();
        assert_eq!((taken, all.full), (127, true), "a little less than 128, with what else a span takes");

        let small =
            |trace, ids: std::ops::Range<u32>| file(ids.map(|id| span(trace, id, 0, 0, "small", &[])).collect());
        let mut all = All::new(&args("scafo traces"));
        assert!(all.take(&node, small(1, 0..200_000)) && !all.full);
        assert!(!all.take(&node, small(1, 0..2)) && all.full);
        assert_eq!(all.traces.values().map(Vec::len).sum::<usize>(), 200_000);

        let mut all = All::new(&args("scafo traces --trace 00000000000000000000000000000002"));
        assert!(all.take(&node, small(1, 0..100)) && all.take(&node, small(2, 0..3)));
        assert_eq!((all.spans, all.chosen(&args("scafo traces")).0.len()), (3, 1));
    }

    #[test]
    fn a_time_is_said_in_the_unit_that_suits_it() {
        for (us, said) in [(999, "999 us"), (1_540, "1.5 ms"), (2_345_678, "2.34 s"), (-3, "-3 us")] {
            assert_eq!(took(us), said);
        }
    }
}
