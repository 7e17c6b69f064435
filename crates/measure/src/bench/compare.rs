//! What has changed since an earlier report.

use crate::{
    Error,
    bench::{
        answer::Measure,
        report::{Report, Row, SCHEMA},
        table::titled,
    },
};
use std::{fmt::Write as _, fs, path::Path};

/// Ratios closer to 1 than this are no change, whatever the spread of the runs.
const LEAST: f64 = 0.05;

/// Reads a report that `bench --json` wrote.
///
/// # Errors
/// [`Error::Input`]: the file can't be read, or is no report.
pub fn read(path: &Path) -> Result<Report, Error> {
    let wrong = |why: String| Error::Input(format!("--compare {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|e| wrong(format!("not a report of `bench --json` ({e})")))?;
    match report.schema == SCHEMA {
        true => Ok(report),
        false => Err(wrong(format!(
            "its layout is {}, not {SCHEMA}",
            report.schema
        ))),
    }
}

/// A line for each row that both have, and what makes them hard to compare.
pub fn render(old: &Report, new: &Report) -> String {
    let measure = Measure::of(new);
    let mut out = String::from("Compared with the earlier report\n");
    let mut table = titled(2, ["conns", "org", "before", "now", "now/before", ""]);
    let (mut alone, mut shown) = (0, 0);
    for row in &new.runs {
        let same = |r: &&Row| {
            (&r.org, r.connections, r.threads, &r.device, r.direction)
                == (
                    &row.org,
                    row.connections,
                    row.threads,
                    &row.device,
                    row.direction,
                )
        };
        let Some(before) = old.runs.iter().find(same) else {
            alone += 1;
            continue;
        };
        let (was, is) = (measure.median(before), measure.median(row));
        shown += 1;
        table.add_row([
            row.connections.to_string(),
            row.org.clone(),
            measure.show(was),
            measure.show(is),
            format!("{:.2}", is / was),
            verdict(measure, before, row).to_string(),
        ]);
    }
    if shown == 0 {
        return out + "no row is in both\n";
    }
    let _ = writeln!(out, "{table}");
    if alone > 0 {
        let _ = writeln!(out, "{alone} rows are new");
    }
    let what = |(what, differs): (&'static str, bool)| differs.then_some(what);
    let (a, b) = (&old.settings, &new.settings);
    let differences: Vec<&str> = [
        (
            "the machine",
            old.host.cpu != new.host.cpu || old.host.cores != new.host.cores,
        ),
        ("the kernel", old.host.kernel != new.host.kernel),
        ("--inbound", a.inbound != b.inbound),
        ("--rtt", a.rtt_ns != b.rtt_ns),
        ("--nics", a.nics != b.nics),
        ("--ipv6", a.family != b.family),
        ("--mtu", a.mtu != b.mtu),
        ("--write-size", a.write_size != b.write_size),
        ("--buffer", a.buffer_bytes != b.buffer_bytes),
        ("--coalescing", a.coalescing != b.coalescing),
        ("--exchange", a.exchange != b.exchange),
        ("--udp", a.udp != b.udp),
        ("--reconnect", a.reconnect != b.reconnect),
        ("--offload", a.offload != b.offload),
        ("--no-stretch-acks", a.no_stretch_acks != b.no_stretch_acks),
        ("--steering", a.steering != b.steering),
        ("--look-around", a.look_around_ns != b.look_around_ns),
        ("--budget", a.budget_bytes != b.budget_bytes),
        (
            "--interrupt-delay",
            a.interrupt_delay_ns != b.interrupt_delay_ns,
        ),
        ("--interrupt-gap", a.interrupt_gap_ns != b.interrupt_gap_ns),
        ("--snd-lowat", a.snd_lowat != b.snd_lowat),
        ("--hand-on", a.hand_on != b.hand_on),
        ("--in-place", a.in_place != b.in_place),
        ("--batch", a.batch != b.batch),
    ]
    .into_iter()
    .filter_map(what)
    .collect();
    if !differences.is_empty() {
        let _ = writeln!(out, "not the same in both: {}", differences.join(", "));
    }
    out
}

/// Whether the runs of two rows lie apart: they did not take turns, so no less will do.
fn verdict(measure: Measure, before: &Row, now: &Row) -> &'static str {
    let ends = |row: &Row| {
        let values = measure.values(row);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.into_iter().fold(0.0, f64::max))
    };
    let ((a0, a1), (b0, b1)) = (ends(before), ends(now));
    let ratio = measure.median(now) / measure.median(before);
    let enough = before.samples.len().min(now.samples.len()) >= 3;
    match ratio {
        _ if !enough => "too few runs to tell",
        r if r > 1.0 + LEAST && b0 > a1 => "faster",
        r if r < 1.0 - LEAST && b1 < a0 => "slower",
        _ => "no change seen",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{report, sample};

    fn up(goodputs: &[f64]) -> Report {
        let runs = goodputs.iter().map(|g| sample(*g, Some(1_000_000), 1));
        report(&[("up", 1, runs.collect())])
    }

    #[test]
    fn what_is_beyond_noise_is_told() {
        let old = up(&[1e9, 1.1e9, 0.9e9]);
        for (new, said) in [
            (&[2e9, 2.1e9, 1.9e9][..], "faster"),
            (&[0.5e9, 0.6e9, 0.4e9], "slower"),
            (&[1.2e9, 1.05e9, 1.3e9], "no change seen"),
            (&[1.02e9, 1.03e9, 1.01e9], "no change seen"),
            (&[2e9], "too few runs"),
        ] {
            let text = render(&old, &up(new));
            assert!(text.contains(said), "{said}: {text}");
            assert!(!text.contains("not the same"), "{text}");
        }
        let mut other = up(&[1e9; 3]);
        other.settings.mtu = 9000;
        assert!(render(&old, &other).contains("not the same in both: --mtu"));
        other.runs[0].connections = 7;
        assert!(render(&old, &other).contains("no row is in both"));
    }

    #[test]
    fn only_reports_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        assert!(read(&path).unwrap_err().to_string().contains("r.json"));
        fs::write(&path, "{}").unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .to_string()
                .contains("not a report")
        );
        let mut report = up(&[1e9]);
        fs::write(&path, report.to_json()).unwrap();
        assert_eq!(read(&path).unwrap(), report);
        report.schema = "perimeter-bench/0".into();
        fs::write(&path, report.to_json()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("layout"));
    }
}
