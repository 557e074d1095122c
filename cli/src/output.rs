//! Standard output is data, standard error is conversation, and both make sense without colour.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::env;
use crate::error::{Failure, Outcome, Report};

/// How this invocation talks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
    colour: bool,
    live: bool,
}

impl Output {
    /// From the flag and what standard error is.
    pub(crate) fn new(json: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let plain = env::text(env::NO_COLOR).is_some() || env::text("TERM").is_some_and(|term| term == "dumb");
        Self { json, colour: terminal && !plain, live: terminal }
    }

    /// Text without colour, whatever this process is attached to.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { json: false, colour: false, live: false }
    }

    /// Whether data goes out as JSON.
    pub(crate) const fn json(self) -> bool {
        self.json
    }

    /// Whether standard error is a terminal, where progress may be drawn.
    pub(crate) const fn live(self) -> bool {
        self.live
    }

    /// Prints data: the JSON of `value` on one line, or `text`, whichever was asked for.
    ///
    /// # Errors
    /// [`Failure::PipeClosed`] when nobody reads any more, and any other failure of standard output.
    pub(crate) fn data(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if !self.json {
            return print(&text());
        }
        let mut line = serde_json::to_string(value).map_err(|error| Failure::because("cannot print JSON", &error))?;
        line.push('\n');
        print(&line)
    }

    /// Says something on standard error. Nobody listening there is no reason to end.
    pub(crate) fn say(self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Says something loudly.
    pub(crate) fn warn(self, text: &str) {
        self.labelled("warning", AnsiColor::Yellow, text);
    }

    /// Says why the command ends, and the next step on its own line.
    pub(crate) fn report(self, report: &Report) {
        self.labelled("error", AnsiColor::Red, report.message());
        if let Some(step) = report.next() {
            self.labelled("hint", AnsiColor::Cyan, step);
        }
    }

    fn labelled(self, label: &str, colour: AnsiColor, text: &str) {
        let style = if self.colour { Style::new().bold().fg_color(Some(colour.into())) } else { Style::new() };
        self.say(&format!("{style}{label}:{style:#} {}", clean_lines(text)));
    }

    /// `text` standing out on standard error.
    pub(crate) fn strong(self, text: &str) -> String {
        let style = if self.colour { Style::new().bold() } else { Style::new() };
        format!("{style}{text}{style:#}")
    }
}

/// Writes to standard output.
///
/// # Errors
/// [`Failure::PipeClosed`] when nobody reads any more, and any other failure of standard output.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::PipeClosed),
        Err(error) => Err(Failure::because("cannot write to standard output", &error)),
    }
}

/// Lays rows out in columns, as wide as their longest cell, two spaces apart. Control characters of foreign text are
/// replaced, so that no name can move a terminal's cursor.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let heads: Vec<String> = head.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let padding = width - cell.chars().count();
            line.push_str(&clean(cell));
            line.extend(std::iter::repeat_n(' ', padding + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// One line of foreign text without control characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Foreign text of several lines without other control characters than line ends and tabs: what a bundler says is shown as
/// it is, and cannot drive the terminal.
pub(crate) fn clean_lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_longest_cell_and_has_no_trailing_space() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["long\u{1b}[2J".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME      N\na         1\nlong\u{fffd}[2J\n");
    }

    #[test]
    fn bytes_are_said_in_the_largest_unit_below_them() {
        for (count, said) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB")]
        {
            assert_eq!(bytes(count), said);
        }
        assert_eq!(bytes(u64::MAX), "16777215.9 TiB");
    }
}
