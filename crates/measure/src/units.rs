//! Strict parsers for numbers with units, as the command line spells them.

use std::time::Duration;

/// Parses a duration with a mandatory unit: `50us`, `1.5ms`, `300ns`, `2s`, `0`.
///
/// # Errors
/// A line that says what is wrong: no number, no unit, an unknown unit, a negative value, or more
/// than an hour.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if is_negative(text) {
        return Err("must not be negative".into());
    }
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .ok_or("a unit is missing (ns, us, ms or s)")?;
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(format!("`{unit}` is no unit of time (ns, us, ms or s)")),
    };
    let seconds = decimal(number)? * scale;
    if seconds > 3600.0 {
        return Err("more than an hour".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a plain decimal number of seconds from 0.1 to 86,400.
///
/// # Errors
/// A line that says what is wrong.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let value = decimal(text)?;
    if !(0.1..=86_400.0).contains(&value) {
        return Err("must be from 0.1 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(value))
}

/// Parses a positive rate in Gb/s, up to 10,000.
///
/// # Errors
/// A line that says what is wrong.
pub fn gbps(text: &str) -> Result<f64, String> {
    let value = decimal(text)?;
    if !(0.001..=10_000.0).contains(&value) {
        return Err("must be from 0.001 to 10000 Gb/s".into());
    }
    Ok(value)
}

/// `1234567` as `1,234,567`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// So many runs, in words.
pub fn runs(n: usize) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} run{plural}", thousands(n as f64))
}

/// The verb of so many.
pub fn were(n: usize) -> &'static str {
    if n == 1 { "was" } else { "were" }
}

/// How many of so many runs were disturbed.
pub fn noisy(disturbed: usize, of: usize) -> String {
    format!("{disturbed} of {} {} disturbed", runs(of), were(disturbed))
}

/// A duration to be glanced at.
pub fn roughly(d: Duration) -> String {
    match d.as_secs() {
        s @ 0..100 => format!("{s} s"),
        s @ 100..6000 => format!("{} min", (s + 30) / 60),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}

/// Whether it is a number with a minus sign before it, whatever follows.
fn is_negative(text: &str) -> bool {
    text.strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Parses a non-negative decimal: digits with at most one point. No sign, exponent or `inf`, which
/// `str::parse` would take.
fn decimal(text: &str) -> Result<f64, String> {
    if is_negative(text) {
        return Err("must not be negative".into());
    }
    let digits = text.bytes().any(|b| b.is_ascii_digit());
    if !digits || !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("`{text}` is not a number in plain decimals"));
    }
    text.parse()
        .map_err(|_| format!("`{text}` is not a number in plain decimals"))
}

/// Parses a whole number within `range`; `what` names it in the error.
///
/// # Errors
/// A line that says what is wrong.
pub fn whole(text: &str, what: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let bounds = || format!("{what} must be from {} to {}", range.start(), range.end());
    if text.is_empty() {
        return Err(format!("an empty entry; {}", bounds()));
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{text}` is not a whole number; {}", bounds()));
    }
    match text.parse::<u64>() {
        Ok(n) if range.contains(&n) => Ok(n),
        _ => Err(bounds()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let good = [
            ("50us", 50_000),
            ("1.5ms", 1_500_000),
            ("7ns", 7),
            ("2s", 2_000_000_000),
            ("0", 0),
            ("0us", 0),
        ];
        for (text, nanos) in good {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in [
            "", "us", "5", "-5us", "5 us", "5m", "1e3us", "infs", "..s", "2h", "4000s", "+1s",
        ] {
            assert!(duration(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn what_is_left_is_told_roughly() {
        for (seconds, text) in [(0, "0 s"), (99, "99 s"), (150, "3 min"), (9000, "2.5 h")] {
            assert_eq!(roughly(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn other_numbers() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "", "-1", "nan", "inf", "1e2", "86401", "0.05"] {
            assert!(seconds(text).is_err(), "{text} was taken");
        }
        assert_eq!(gbps("10"), Ok(10.0));
        for text in ["0", "-1", "nan", "1e9", ""] {
            assert!(gbps(text).is_err(), "{text} was taken");
        }
        assert_eq!(whole("7", "x", 1..=9), Ok(7));
        for text in ["0", "10", "-1", "1.0", "", "18446744073709551616", "+3"] {
            assert!(whole(text, "x", 1..=9).is_err(), "{text} was taken");
        }
    }
}
