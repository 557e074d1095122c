//! `scafo metrics`: one line for each series, with what became of it over the time.

use std::collections::BTreeMap;

use scafo_core::{NodeId, Timestamp};
use scafo_registryd::observe::read::Choice;
use scafo_registryd::observe::rows::{Contents, Labels, Point};
use serde::Serialize;

use super::{Reading, nothing, source, unreadable};
use crate::args::MetricsArgs;
use crate::error::Outcome;
use crate::output::{Output, table};

/// Points that are held for `--json`.
const POINTS_MAX: usize = 1_000_000;

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
}

#[derive(Debug, Serialize)]
struct Metrics {
    series: Vec<Series>,
    read: Reading,
}

/// `scafo metrics`
pub(crate) async fn metrics(args: MetricsArgs, output: Output) -> Outcome {
    let source = source(&args.within, output).await?;
    let mut all = All { args: &args, with_points: output.json(), points: 0, series: BTreeMap::new() };
    let reading = Reading::of(&*source, &args.within, Choice::Spread, |key, contents| all.take(key.node(), contents));
    let mut reading = reading.await.map_err(|problem| unreadable(&problem))?;
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
    points: usize,
    series: BTreeMap<Id, Series>,
}

impl All<'_> {
    /// Takes a file, and says whether there is room for another one.
    fn take(&mut self, node: &NodeId, contents: Contents) -> bool {
        for point in contents.points {
            if self.wanted(&point) {
                self.add(node, point);
            }
        }
        self.points < POINTS_MAX
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
        self.points += 1;
        if let Some(series) = self.series.get_mut(&id) {
            if let Some(increase) = &mut series.increase {
                // Less than before: it began anew.
                *increase += if value >= series.last { value - series.last } else { value };
            }
            series.last = value;
            series.min = series.min.min(value);
            series.max = series.max.max(value);
            if self.with_points {
                series.points.push((at, value));
            }
            return;
        }
        let series = Series {
            node: node.clone(),
            process: id.2.clone(),
            name: id.0.clone(),
            increase: matches!(point.kind.as_str(), "counter" | "histogram").then_some(0.0),
            kind: point.kind,
            labels: id.3.iter().cloned().collect(),
            last: value,
            min: value,
            max: value,
            points: if self.with_points { vec![(at, value)] } else { Vec::new() },
        };
        self.series.insert(id, series);
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
        All { args, with_points: false, points: 0, series: BTreeMap::new() }
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
            assert!(all.take(&node, contents.clone()));
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
