//! A predicted figure in plain text.

use super::figure::{Figure, Place};
use std::fmt::{self, Write as _};

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (metric, unit) = &self.metric;
        writeln!(
            f,
            "{} on {}: {metric}, {unit}, predicted",
            self.title, self.machine
        )?;
        if let Some(otherwise) = &self.otherwise {
            writeln!(f, "  {otherwise}")?;
        }
        for caveat in &self.caveats {
            writeln!(f, "  ! {caveat}")?;
        }
        let mut cores: Vec<usize> = self.places.iter().map(|p| p.cores).collect();
        cores.sort_unstable();
        cores.dedup();
        let width = self.places.iter().map(|p| p.series.len()).max();
        let width = width.unwrap_or(0).max(6);
        let head: String = cores.iter().fold(String::new(), |mut t, n| {
            let _ = write!(t, " {:>12}", format!("{n} cores"));
            t
        });
        writeln!(f, "  {:width$} {:>7}{head}", "series", "x")?;
        let mut rows: Vec<(&str, u64)> = Vec::new();
        for p in &self.places {
            if !rows.contains(&(&*p.series, p.x)) {
                rows.push((&p.series, p.x));
            }
        }
        for (series, x) in rows {
            let on = |n: usize| {
                let mut places = self.places.iter();
                places.find(|p| p.series == series && p.x == x && p.cores == n)
            };
            let cells = cores.iter().fold(String::new(), |mut t, n| {
                let _ = write!(t, " {:>12}", on(*n).map_or(String::new(), value));
                t
            });
            writeln!(f, "  {series:width$} {x:>7}{cells}")?;
        }
        self.tell_limits(f, &cores)?;
        self.tell_published(f)
    }
}

fn value(p: &Place) -> String {
    match (&p.value, p.band) {
        (Some(v), Some((low, high))) => {
            format!("{} ({}-{})", short(v.median), short(low), short(high))
        }
        (Some(v), None) => short(v.median),
        (None, _) => "-".into(),
    }
}

/// Three digits that count.
fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 99_950.0 => format!("{:.0}k", v / 1000.0),
        a if a >= 9995.0 => format!("{:.1}k", v / 1000.0),
        a if a >= 99.95 => format!("{v:.0}"),
        a if a >= 9.995 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

impl Figure {
    /// What holds the organizations up on the most cores.
    fn tell_limits(&self, f: &mut fmt::Formatter<'_>, cores: &[usize]) -> fmt::Result {
        let Some(most) = cores.last().filter(|_| cores.len() > 1) else {
            return Ok(());
        };
        let on_most = self.places.iter().filter(|p| p.cores == *most);
        for p in on_most {
            let Some(busy) = p.busy else { continue };
            write!(
                f,
                "  {} at {}, {most} cores: busy {:.0} %",
                p.series,
                p.x,
                busy * 100.0
            )?;
            // If all are, that they are busy says so.
            if let Some(full) = p.full.filter(|n| (1..*most).contains(n)) {
                write!(f, ", {full} of them all the time")?;
            }
            if let Some((what, share)) = &p.held_up_by {
                write!(
                    f,
                    "; {what} takes {:.0} % of the cores' time (more than one thread of a core can \
                     wait)",
                    share * 100.0
                )?;
            }
            writeln!(f)?;
        }
        let mut said: Vec<(&str, &str)> = Vec::new();
        for p in &self.places {
            if let Some(why) = &p.missing
                && !said.contains(&(&*p.series, &**why))
            {
                said.push((&p.series, why));
                writeln!(f, "  {}: not predicted: {why}", p.series)?;
            }
        }
        Ok(())
    }

    fn tell_published(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.published {
            writeln!(
                f,
                "  published: {} at {}: {}, predicted {} ({:+.0} %)",
                p.series,
                p.x,
                short(p.published),
                short(p.predicted),
                (p.predicted / p.published - 1.0) * 100.0
            )?;
        }
        for c in &self.claims {
            let published = match c.published {
                Some((a, b)) if a == b => format!("{a:.2}"),
                Some((a, b)) => format!("{a:.2}-{b:.2}"),
                None => "no ratio".into(),
            };
            writeln!(
                f,
                "  {}: {} at {} (published {published}, predicted {:.2}, {:.2} to {:.2})",
                c.finding.words(),
                c.text,
                c.x.0,
                c.ratio.0,
                c.ratio.1,
                c.ratio.2
            )?;
        }
        Ok(())
    }
}
