//! wrk, and what it says.

use std::ffi::OsStr;
use std::process::Command;

/// What a run came to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Milliseconds that half of the requests do not take longer than.
    pub(crate) p50: f64,
    /// Milliseconds that 99 of 100 requests do not take longer than.
    pub(crate) p99: f64,
}

/// Runs wrk with 64 connections for so many seconds. Every answer has to be a good one.
pub(crate) fn wrk<S: AsRef<OsStr>>(seconds: u32, arguments: impl IntoIterator<Item = S>) -> Measured {
    let output = Command::new("wrk")
        .args(["-t2", "-c64", "--latency", "--timeout", "10s", "-d", &seconds.to_string()])
        .args(arguments)
        .output()
        .expect("wrk runs (scripts/bench-tools.sh installs it)");
    let text = String::from_utf8_lossy(&output.stdout);
    let after =
        |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label).map(str::trim).map(str::to_owned));
    assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
    let rate = after("Requests/sec:").and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    let at = |label: &str| after(label).map_or(0.0, |value| milliseconds(&value));
    Measured { rate, p50: at("50%"), p99: at("99%") }
}

fn milliseconds(text: &str) -> f64 {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let number: f64 = number.parse().unwrap_or_default();
    match unit {
        "us" => number / 1000.0,
        "s" => number * 1000.0,
        _ => number,
    }
}
