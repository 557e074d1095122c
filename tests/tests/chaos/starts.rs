//! Whether the supervisor started applications again as its rules have it: not before one life of a lease after a process ended that
//! nobody asked to end, after longer and longer pauses as long as none comes to serve, and never after a longer one than that. Its own
//! log says what it decided, so no machine is too slow for this.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::Timestamp;

/// The shortest pause: the life of a lease.
const SHORTEST: Duration = Duration::from_secs(10);
/// The longest, before the jitter.
const LONGEST: Duration = Duration::from_secs(60);
/// What an application's own jitter may add to a pause.
const JITTER: Duration = Duration::from_millis(2500);

/// One line of the log that is about the process of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) at: Timestamp,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Started,
    /// `pause` is `None` when it is not started again, or at once because it left as it was asked to.
    Ended {
        exit: String,
        was_ready: bool,
        pause: Option<Duration>,
    },
    /// It ended while no supervisor was there, or could not be started.
    Unseen,
}

/// What the log says of each application, in order.
pub(crate) fn read(log: &str) -> BTreeMap<String, Vec<Line>> {
    let mut all: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for line in log.lines() {
        if let Some((application, line)) = parse(line) {
            all.entry(application).or_default().push(line);
        }
    }
    all
}

fn parse(line: &str) -> Option<(String, Line)> {
    let (head, said) = line.split_once(": ")?;
    let mut words = head.split_whitespace();
    let (at, target) = (words.next()?.parse().ok()?, words.next_back()?);
    if !target.starts_with("scafo_supervisor::celld") {
        return None;
    }
    let field = |name: &str| said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let what = if said.starts_with("started application=") {
        What::Started
    } else if said.starts_with("its process ended application=") {
        let pause = field("pause_ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        What::Ended { exit: field("exit")?.to_owned(), was_ready: field("was_ready")? == "true", pause }
    } else if said.starts_with("its process has ended meanwhile ") || said.starts_with("cannot start its process; ") {
        What::Unseen
    } else {
        return None;
    };
    Some((field("application")?.to_owned(), Line { at, what }))
}

/// Where these lines of one application break the rules.
pub(crate) fn faults(application: &str, lines: &[Line]) -> Vec<String> {
    let mut faults = Vec::new();
    // The longest pause that may come next, and when the last process ended that nobody asked to.
    let (mut next, mut crashed): (Duration, Option<Timestamp>) = (SHORTEST, None);
    for Line { at, what } in lines {
        match what {
            What::Started => {
                let waited = crashed.take().map(|crashed| at.since(crashed));
                if let Some(waited) = waited.filter(|waited| *waited < SHORTEST) {
                    faults.push(format!("{application} was started at {at}, {waited:?} after its process had crashed"));
                }
            }
            What::Ended { was_ready, pause: Some(pause), .. } => {
                crashed = Some(*at);
                if *was_ready {
                    next = SHORTEST;
                }
                if !(SHORTEST..=next + JITTER).contains(pause) {
                    faults.push(format!("{application} is to pause {pause:?} at {at}, and {next:?} is its longest"));
                }
                next = (next * 2).min(LONGEST);
            }
            What::Ended { pause: None, .. } => crashed = None,
            What::Unseen => next = (next * 2).min(LONGEST),
        }
    }
    faults
}

/// Processes that refused to go on before they were ready: from when to when each lived. A store that is away is a reason for that.
pub(crate) fn refused_to_start(lines: &[Line]) -> Vec<(Timestamp, Timestamp)> {
    let pairs = lines.windows(2).filter_map(|pair| match pair {
        [
            Line { at: begun, what: What::Started },
            Line { at: ended, what: What::Ended { exit, was_ready: false, pause: Some(_) } },
        ] if exit == "Code(1)" => Some((*begun, *ended)),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(events: &[(u64, What)]) -> Vec<Line> {
        let at = |seconds: u64| Timestamp::from_millis(0).after(Duration::from_secs(seconds));
        events.iter().map(|(seconds, what)| Line { at: at(*seconds), what: what.clone() }).collect()
    }

    fn ended(was_ready: bool, pause: u64) -> What {
        What::Ended { exit: "Code(1)".to_owned(), was_ready, pause: Some(Duration::from_secs(pause)) }
    }

    #[test]
    fn a_log_is_read() {
        let head = "2026-12-01T01:02:03.456789Z  INFO scafo_supervisor::celld::driver";
        let log = format!(
            "{head}: started application=app-1 pid=7 version=0.6.0\n{head}: asking its process to end application=app-1\n\
             {head}: its process ended application=app-1 exit=Signal(9) was_ready=true pause_ms=10250\nnoise: of others\n\
             {head}: its process ended application=app-2 exit=Code(0) was_ready=false\n"
        );
        let read = read(&log);
        let ended = |exit: &str, was_ready, pause| What::Ended { exit: exit.to_owned(), was_ready, pause };
        let of = |name: &str| read[name].iter().map(|line| line.what.clone()).collect::<Vec<_>>();
        let pause = Some(Duration::from_millis(10_250));
        assert_eq!(of("app-1"), [What::Started, ended("Signal(9)", true, pause)]);
        assert_eq!(of("app-2"), [ended("Code(0)", false, None)]);
        assert_eq!(read["app-1"][0].at.to_string(), "2026-12-01T01:02:03.456Z");
    }

    #[test]
    fn pauses_double_while_nothing_comes_to_serve_and_no_start_comes_too_soon() {
        use What::{Started, Unseen};
        let good = [
            lines(&[(0, Started), (5, ended(true, 10)), (15, Started), (16, ended(false, 22)), (38, Started)]),
            lines(&[(0, Started), (1, ended(false, 12)), (13, Started), (14, ended(false, 20)), (34, Started)]),
            // A new deploy begins anew.
            lines(&[(1, ended(false, 10)), (12, ended(false, 20)), (33, ended(false, 11))]),
            lines(&[(1, Unseen), (12, Started), (13, ended(false, 20))]),
            lines(&[(1, ended(false, 10)), (20, Unseen), (61, ended(false, 41))]),
        ];
        for lines in good {
            assert_eq!(faults("app", &lines), Vec::<String>::new());
        }
        let bad = [
            lines(&[(5, ended(true, 10)), (14, Started)]),
            lines(&[(5, ended(true, 20))]),
            lines(&[(5, ended(true, 9))]),
            lines(&[(5, ended(false, 10)), (15, Started), (16, ended(false, 41))]),
            lines(&[(5, ended(false, 63))]),
        ];
        for lines in bad {
            assert_eq!(faults("app", &lines).len(), 1, "{lines:?}");
        }
    }

    #[test]
    fn only_a_process_that_ended_by_itself_and_early_refused_to_start() {
        let ended_early =
            lines(&[(0, What::Started), (3, ended(false, 10)), (13, What::Started), (20, ended(true, 10))]);
        assert_eq!(refused_to_start(&ended_early), [(ended_early[0].at, ended_early[1].at)]);
    }
}
