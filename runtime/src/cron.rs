//! Cron expressions as Cloudflare writes them: minute, hour, day of month, month, day of week, all in UTC; days of the week
//! run from 1 (Sunday) to 7 (Saturday).

use jiff::civil::DateTime;

use crate::{Failure, failure::Outcome};

/// When a trigger fires, to the minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// As written, trimmed: what the Worker sees.
    pub expression: String,
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

/// The values of one field as a bit set, and whether it was written `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    bits: u64,
    any: bool,
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Schedule {
    /// Reads five fields of lists (`,`), ranges (`-`), steps (`/`) and names.
    ///
    /// # Errors
    /// Anything else, the extensions `L`, `W` and `#` included.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let refused = |why: String| Failure::new(format!("cron expression {text:?}: {why}"));
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(refused(format!("it has {} fields, not five", fields.len())));
        };
        let field = |part: &str, name: &str, low: u8, high: u8, names: &[&str]| {
            field(part, low, high, names).ok_or_else(|| refused(format!("{part:?} is no {name}")))
        };
        Ok(Self {
            expression: text.trim().to_owned(),
            minute: field(minute, "minute", 0, 59, &[])?,
            hour: field(hour, "hour", 0, 23, &[])?,
            day: field(day, "day of the month", 1, 31, &[])?,
            month: field(month, "month", 1, 12, &MONTHS)?,
            weekday: field(weekday, "day of the week", 1, 7, &WEEKDAYS)?,
        })
    }

    /// Whether it fires in the minute of `at` (UTC).
    ///
    /// As in every cron, days count by either rule when both are written.
    pub(crate) fn fires_at(&self, at: DateTime) -> bool {
        // Both are within 1..=31 and 1..=7.
        let by_day = self.day.has(at.day().unsigned_abs());
        let by_weekday = self.weekday.has(at.weekday().to_sunday_one_offset().unsigned_abs());
        let day = if self.day.any || self.weekday.any { by_day && by_weekday } else { by_day || by_weekday };
        self.minute.has(at.minute().unsigned_abs())
            && self.hour.has(at.hour().unsigned_abs())
            && self.month.has(at.month().unsigned_abs())
            && day
    }
}

impl Field {
    const fn has(self, value: u8) -> bool {
        self.bits & (1 << value) != 0
    }
}

fn field(text: &str, low: u8, high: u8, names: &[&str]) -> Option<Field> {
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            None => (part, 1),
            Some((range, step)) => (range, step.parse::<u8>().ok().filter(|step| *step > 0)?),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((from, to)) => (value(from, low, names)?, value(to, low, names)?),
            // `5/15` counts on from 5, `5` is 5 alone.
            None if part.contains('/') => (value(range, low, names)?, high),
            None => (value(range, low, names)?, value(range, low, names)?),
        };
        if from < low || to > high || from > to {
            return None;
        }
        for value in (from..=to).step_by(usize::from(step)) {
            bits |= 1 << value;
        }
    }
    Some(Field { bits, any: text == "*" })
}

fn value(text: &str, low: u8, names: &[&str]) -> Option<u8> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    let index = names.iter().position(|name| name.eq_ignore_ascii_case(text))?;
    u8::try_from(index).ok()?.checked_add(low)
}

#[cfg(test)]
mod tests {
    use jiff::civil::datetime;

    use super::*;

    fn fires(expression: &str, year: i16, month: i8, day: i8, hour: i8, minute: i8) -> bool {
        Schedule::parse(expression).unwrap().fires_at(datetime(year, month, day, hour, minute, 0, 0))
    }

    #[test]
    fn fields_lists_ranges_steps_and_names() {
        assert!(fires("* * * * *", 2026, 11, 30, 9, 28));
        assert!(fires("*/5 * * * *", 2026, 11, 30, 9, 25) && !fires("*/5 * * * *", 2026, 11, 30, 9, 26));
        assert!(fires("30 9 * * MON-FRI", 2026, 11, 30, 9, 30) && !fires("30 9 * * MON-FRI", 2026, 11, 29, 9, 30));
        assert!(fires("0 0 29 feb *", 2028, 2, 29, 0, 0));
        assert!(fires("5/20 1,3 * * *", 2026, 1, 1, 3, 45) && !fires("5/20 1,3 * * *", 2026, 1, 1, 2, 45));
    }

    #[test]
    fn the_week_starts_with_sunday_as_one() {
        assert!(fires("0 0 * * 1", 2026, 11, 29, 0, 0));
        assert!(fires("0 0 * * 7", 2026, 11, 28, 0, 0));
    }

    #[test]
    fn either_day_rule_is_enough_when_both_are_written() {
        assert!(fires("0 0 13 * FRI", 2026, 11, 27, 0, 0));
        assert!(fires("0 0 13 * FRI", 2026, 12, 13, 0, 0));
        assert!(!fires("0 0 13 * FRI", 2026, 12, 12, 0, 0));
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* * * * 0",
            "* * L * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "+1 * * * *",
            "* * * 13 *",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
    }
}
