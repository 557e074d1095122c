//! `scafo metrics`: one line for each series, with what became of it over the time.

use std::collections::BTreeMap;

use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Timestamp};
use scafo_registryd::observe::read::Choice;
use scafo_registryd::observe::rows::{Contents, Labels, Point};
use serde::Serialize;

use super::{Reading, nothing, source, unreadable};
use crate::args::MetricsArgs;
use crate::error::Outcome;
use crate::output::{Output, table};

/// Points that are held for `--json`. Beyond them every second one of each series is given up.
const POINTS_MAX: usize = 1_000_000;
/// Series that are told apart, and the bytes of what tells them apart. What comes beyond is passed over, and that is said. Even with
/// two points each they stay below [`POINTS_MAX`].
const SERIES_MAX: usize = 100_000;
const TEXT_BYTES_MAX: usize = 64 << 20;

/// What tells series apart.
type Id = (String, NodeId, String, Labels);

/// What became of a series.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    node: NodeId,
    process: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    labels: BTreeMap<String, String>,
    last: f64,
    min: f64,
    max: f64,
    /// By how much a sum grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    increase: Option<f64>,
    /// The samples: time in milliseconds since 1970, value.
    points: Vec<(i64, f64)>,
    /// Samples that were seen, held or not.
    #[serde(skip)]
    seen: usize,
}

impl Series {
    /// Holds a sample beside every `stride`-th one before it, and says by how much there are more now. The newest is always the
    /// last one.
    fn hold(&mut self, point: (i64, f64), stride: usize) -> usize {
        let in_passing = self.seen > 0 && !(self.seen - 1).is_multiple_of(stride);
        self.seen += 1;
        match self.points.last_mut() {
            Some(last) if in_passing => {
                *last = point;
                0
            }
            _ => {
                self.points.push(point);
                1
            }
        }
    }

    /// Gives up every second point, but not the newest.
    fn thin(&mut self) {
        let newest = self.points.len().saturating_sub(1);
        let mut index = 0;
        self.points.retain(|_| {
            let keep = index % 2 == 0 || index == newest;
            index += 1;
            keep
        });
    }
}

#[derive(Debug, Serialize)]
struct Metrics {
    series: Vec<Series>,
    read: Reading,
}

/// `scafo metrics`
pub(crate) async fn metrics(args: MetricsArgs, output: Output) -> Outcome {
    let source = source(&args.within, output).await?;
    let mut all = All::new(&args, output.json());
    let take = |key: &ObservationKey, contents| {
        all.take(key.node(), contents);
        true
    };
    let reading = Reading::of(&*source, &args.within, Choice::Spread, take);
    let mut reading = reading.await.map_err(|problem| unreadable(&problem))?;
    reading.cut |= all.cut;
    let mut series: Vec<Series> = all.series.into_values().collect();
    let more = series.len().saturating_sub(args.limit);
    series.truncate(args.limit);
    reading.cut |= more > 0 && output.json();
    let printed = Metrics { series, read: reading };
    output.data(&printed, || render(&printed.series))?;
    if more > 0 {
        output.say(&format!("{more} more series; show them with --limit, or fewer with --name"));
    }
    nothing(&printed.read, output);
    printed.read.tell(output);
    Ok(())
}

struct All<'a> {
    args: &'a MetricsArgs,
    with_points: bool,
    points_max: usize,
    series_max: usize,
    /// Points that are held.
    points: usize,
    /// Of so many samples of a series one is held.
    stride: usize,
    /// Bytes of what tells the series apart.
    text: usize,
    /// Whether something was passed over or given up.
    cut: bool,
    series: BTreeMap<Id, Series>,
}

impl<'a> All<'a> {
    const fn new(args: &'a MetricsArgs, with_points: bool) -> Self {
        Self {
            args,
            with_points,
            points_max: POINTS_MAX,
            series_max: SERIES_MAX,
            points: 0,
            stride: 1,
            text: 0,
            cut: false,
            series: BTreeMap::new(),
        }
    }

    /// Takes a file. Files come in order of time, and the newest says how things are now: what has no room any more is never at its
    /// cost.
    fn take(&mut self, node: &NodeId, contents: Contents) {
        for point in contents.points {
            if self.wanted(&point) {
                self.add(node, point);
            }
        }
    }

    /// Makes room: of each series the points become half as dense.
    fn thin(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        self.series.values_mut().for_each(Series::thin);
        self.points = self.series.values().map(|series| series.points.len()).sum();
        self.cut = true;
    }

    fn wanted(&self, point: &Point) -> bool {
        let MetricsArgs { name, application, buckets, .. } = self.args;
        let about = application.as_ref().is_none_or(|name| point.label("application") == Some(name.as_str()));
        let named = name.as_ref().is_none_or(|name| point.name.contains(name.as_str()));
        let is_bucket = point.kind == "histogram" && point.label("le").is_some();
        about && named && (*buckets || !is_bucket)
    }

    fn add(&mut self, node: &NodeId, point: Point) {
        let at = point.at_us.div_euclid(1000);
        let value = point.value;
        let id = (point.name, node.clone(), point.process, point.labels);
        if let Some(series) = self.series.get_mut(&id) {
            if let Some(increase) = &mut series.increase {
                // Less than before: it began anew.
                *increase += if value >= series.last { value - series.last } else { value };
            }
            series.last = value;
            series.min = series.min.min(value);
            series.max = series.max.max(value);
            if self.with_points {
                self.points += series.hold((at, value), self.stride);
            }
        } else {
            let labels: usize = id.3.iter().map(|(name, value)| name.len() + value.len()).sum();
            let text = id.0.len() + id.2.len() + labels;
            if self.series.len() >= self.series_max || self.text.saturating_add(text) > TEXT_BYTES_MAX {
                self.cut = true;
                return;
            }
            self.text += text;
            let mut series = first(&id, point.kind, value);
            if self.with_points {
                self.points += series.hold((at, value), self.stride);
            }
            self.series.insert(id, series);
        }
        if self.points > self.points_max {
            self.thin();
        }
    }
}

/// A series of which this is the first value.
fn first(id: &Id, kind: String, value: f64) -> Series {
    let (name, node, process, labels) = id;
    Series {
        node: node.clone(),
        process: process.clone(),
        name: name.clone(),
        increase: matches!(kind.as_str(), "counter" | "histogram").then_some(0.0),
        kind,
        labels: labels.iter().cloned().collect(),
        last: value,
        min: value,
        max: value,
        points: Vec::new(),
        seen: 0,
    }
}

fn render(series: &[Series]) -> String {
    let row = |series: &Series| {
        let labels: Vec<String> = series.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let of_gauge =
            |value: f64| if series.increase.is_some() { "-".to_owned() } else { number(value, &series.name) };
        vec![
            series.node.to_string(),
            series.name.clone(),
            labels.join(","),
            number(series.last, &series.name),
            series.increase.map_or_else(|| "-".to_owned(), |increase| format!("+{}", number(increase, ""))),
            of_gauge(series.min),
            of_gauge(series.max),
        ]
    };
    let rows: Vec<Vec<String>> = series.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["NODE", "METRIC", "LABELS", "LAST", "GREW", "MIN", "MAX"], &rows)
}

/// A value for people: a time where the name says that it is one, else up to six digits behind the point.
fn number(value: f64, name: &str) -> String {
    if name.ends_with("_timestamp_seconds") && value > 0.0 {
        return Timestamp::from_millis((value * 1000.0) as i64).to_string();
    }
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &str) -> MetricsArgs {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Metrics(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// Name, type, labels and value of a sample.
    type Sample<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], f64);

    fn file(minute: i64, values: &[Sample<'_>]) -> Contents {
        let point = |(name, kind, labels, value): &Sample<'_>| Point {
            at_us: minute * 60_000_000,
            process: "apiserver".to_owned(),
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            value: *value,
        };
        Contents { points: values.iter().map(point).collect(), spans: Vec::new() }
    }

    fn all(args: &MetricsArgs) -> All<'_> {
        All::new(args, false)
    }

    /// A thousand minutes of a counter that grows by one.
    fn a_thousand_minutes(all: &mut All<'_>) {
        let node: NodeId = "a".parse().unwrap();
        for minute in 0..1000 {
            all.take(&node, file(minute, &[("scafo_requests_total", "counter", &[], minute as f64)]));
        }
    }

    #[test]
    fn the_newest_file_counts_however_many_samples_came_before() {
        let args = args("scafo metrics");
        let mut all = All { points_max: 10, ..all(&args) };
        a_thousand_minutes(&mut all);
        let series = all.series.values().next().unwrap();
        assert_eq!((series.last, series.increase, series.points.len(), all.cut), (999.0, Some(999.0), 0, false));
    }

    #[test]
    fn points_beyond_their_bound_are_thinned_over_the_whole_time_and_the_newest_stays() {
        let args = args("scafo metrics");
        let mut all = All { points_max: 10, with_points: true, ..all(&args) };
        a_thousand_minutes(&mut all);
        let series = all.series.values().next().unwrap();
        let minutes: Vec<i64> = series.points.iter().map(|(at, _)| at / 60_000).collect();
        assert_eq!(minutes, [0, 128, 256, 384, 512, 640, 768, 896, 999]);
        assert_eq!((series.last, series.increase, all.points, all.cut), (999.0, Some(999.0), 9, true));
    }

    #[test]
    fn series_beyond_their_bound_are_passed_over_and_those_that_are_there_go_on() {
        let args = args("scafo metrics");
        let mut all = All { series_max: 2, ..all(&args) };
        let node: NodeId = "a".parse().unwrap();
        for (minute, name) in [(0, "b"), (0, "c"), (0, "a"), (1, "d"), (1, "c")] {
            all.take(&node, file(minute, &[(name, "gauge", &[], minute as f64)]));
        }
        let told: Vec<(&str, f64)> = all.series.values().map(|series| (series.name.as_str(), series.last)).collect();
        assert_eq!((told, all.cut), (vec![("b", 0.0), ("c", 1.0)], true));
    }

    #[test]
    fn a_sum_shows_by_how_much_it_grew_across_a_restart_and_a_gauge_how_it_moved() {
        let args = args("scafo metrics");
        let mut all = all(&args);
        let node: NodeId = "vps-a".parse().unwrap();
        for (minute, requests, memory) in [(0, 10.0, 5.0), (1, 14.0, 9.5), (2, 3.0, 7.0)] {
            let of_shop: &[(&str, &str)] = &[("application", "shop")];
            all.take(
                &node,
                file(
                    minute,
                    &[
                        ("scafo_requests_total", "counter", &[("route", "/v1"), ("status", "200")], requests),
                        ("scafo_memory_bytes", "gauge", of_shop, memory),
                        ("scafo_took_seconds_bucket", "histogram", &[("le", "1.0")], 1.0),
                        ("scafo_seen_timestamp_seconds", "gauge", &[], 1.775e9),
                    ],
                ),
            );
        }
        insta::assert_snapshot!(render(&all.series.into_values().collect::<Vec<_>>()), @r#"
NODE   METRIC                        LABELS                LAST                      GREW  MIN                       MAX
vps-a  scafo_memory_bytes            application=shop      7                         -     5                         9.5
vps-a  scafo_requests_total          route=/v1,status=200  3                         +7    -                         -
vps-a  scafo_seen_timestamp_seconds                        2026-03-31T23:33:20.000Z  -     2026-03-31T23:33:20.000Z  2026-03-31T23:33:20.000Z
"#);
    }

    #[test]
    fn metrics_are_chosen_by_name_and_application_and_buckets_when_they_are_asked_for() {
        let node: NodeId = "a".parse().unwrap();
        let contents = file(
            0,
            &[
                ("scafo_ready", "gauge", &[("application", "shop")], 1.0),
                ("scafo_ready", "gauge", &[("application", "blog")], 1.0),
                ("scafo_took_bucket", "histogram", &[("le", "1.0")], 1.0),
                ("scafo_took_count", "histogram", &[], 1.0),
            ],
        );
        for (line, count) in [
            ("scafo metrics", 3),
            ("scafo metrics --buckets", 4),
            ("scafo metrics --application shop", 1),
            ("scafo metrics --name took", 1),
            ("scafo metrics --name took --buckets", 2),
            ("scafo metrics --name none", 0),
        ] {
            let args = args(line);
            let mut all = all(&args);
            all.take(&node, contents.clone());
            assert_eq!(all.series.len(), count, "{line}");
        }
    }

    #[test]
    fn a_value_is_short() {
        for (value, said) in [(0.0, "0"), (3.0, "3"), (1.5, "1.5"), (0.000_512_3, "0.000512"), (1e9, "1000000000")] {
            assert_eq!(number(value, ""), said);
        }
    }
}
