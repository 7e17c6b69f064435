//! A table of costs held against runs of the machine that it is of, which it was not fitted to.

use super::{
    calibrate::units,
    effort::Effort,
    loads::Load,
    machine::{Machine, Run},
    pool,
    simulate::simulate,
};
use crate::{Error, metric::Metric, record::Measured, stats::Spread};
use serde::{Deserialize, Serialize};
use std::{fmt, fmt::Write as _};

/// Median error of throughput that is good enough.
pub const MEDIAN: f64 = 0.15;
/// Largest error that is good enough.
pub const WORST: f64 = 0.35;
/// How far a ratio of far to near may be off.
pub const RATIO: f64 = 0.10;
/// By what factor contention may be off.
pub const CONTENDED: f64 = 2.0;
/// Contention below this is too little to be held against anything, percent.
const LITTLE: f64 = 0.5;

/// One run, measured and predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The load.
    pub load: Load,
    /// Organization.
    pub org: String,
    /// Connections.
    pub connections: u32,
    /// Whether the cores were far from each other.
    pub far: bool,
    /// Measured: Mb/s, or rounds a second.
    pub measured: Spread,
    /// Predicted.
    pub predicted: f64,
    /// Contended acquisitions of central locks, percent: measured and predicted.
    pub contended: Option<(f64, f64)>,
}

impl Row {
    /// Predicted over measured, less 1.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured.median - 1.0
    }
}

/// Far against near, of one organization under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The load.
    pub load: Load,
    /// Organization.
    pub org: String,
    /// Connections.
    pub connections: u32,
    /// Measured.
    pub measured: f64,
    /// Predicted.
    pub predicted: f64,
}

/// What a table is worth for one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The load.
    pub load: Load,
    /// Pairs of organizations with a difference that was seen, and of those the ones whose
    /// predicted order is the measured one.
    pub order: (usize, usize),
    /// Median of the errors' sizes; `None` without rows.
    pub median: Option<f64>,
    /// The largest.
    pub worst: Option<f64>,
    /// Ratios of far to near, and of those the ones that are near enough.
    pub ratios: (usize, usize),
    /// Contentions, and of those the ones that are near enough.
    pub contended: (usize, usize),
}

impl Verdict {
    /// Whether predictions of such loads can be relied on: order and size of throughput.
    pub fn holds(&self) -> bool {
        self.fails().is_empty()
    }

    /// What fails, in words; empty if nothing does.
    pub fn fails(&self) -> Vec<String> {
        let mut out = Vec::new();
        let percent = |e: f64| format!("{:.0} %", e * 100.0);
        if self.median.is_none() {
            out.push("nothing was measured to hold it against".into());
        }
        if self.order.0 != self.order.1 {
            out.push(format!(
                "the order of {} of {} pairs of organizations",
                self.order.0 - self.order.1,
                self.order.0
            ));
        }
        if let Some(e) = self.median.filter(|e| *e > MEDIAN) {
            out.push(format!("a median error of {}", percent(e)));
        }
        if let Some(e) = self.worst.filter(|e| *e > WORST) {
            out.push(format!("an error of {}", percent(e)));
        }
        if self.ratios.0 != self.ratios.1 {
            let off = self.ratios.0 - self.ratios.1;
            out.push(format!("{off} of {} ratios of far to near", self.ratios.0));
        }
        out
    }
}

/// A table, held against what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The machine whose table it is.
    pub machine: String,
    /// The runs.
    pub rows: Vec<Row>,
    /// Far against near.
    pub ratios: Vec<Ratio>,
    /// By load.
    pub verdicts: Vec<Verdict>,
}

impl Validation {
    /// What it is worth for one load.
    pub fn of(&self, load: Load) -> Option<&Verdict> {
        self.verdicts.iter().find(|v| v.load == load)
    }
}

/// What was measured, or is predicted, of a run: its figure of merit.
fn merit(run: &Run) -> &[f64] {
    match run.load {
        Load::Messages => &run.rounds,
        Load::Send | Load::Receive => &run.goodput,
    }
}

/// Holds a machine's table against its runs of several threads.
///
/// # Errors
/// A simulation failed.
pub fn validate(machine: &Machine, seeds: u64, effort: Effort) -> Result<Validation, Error> {
    let runs: Vec<&Run> = machine.runs.iter().filter(|r| r.threads > 1).collect();
    let rows = pool::each(&runs, |run| predict(machine, run, seeds, effort));
    let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    Ok(judged(machine.name.clone(), rows))
}

fn predict(machine: &Machine, run: &Run, seeds: u64, effort: Effort) -> Result<Option<Row>, Error> {
    let Some(measured) = Spread::of(merit(run)) else {
        return Ok(None);
    };
    let point = run.point()?;
    let machine = machine.apart(run.far);
    let (mut found, mut contended) = (Vec::new(), Vec::new());
    for seed in 1..=seeds.max(1) {
        let s = simulate(
            &machine,
            &point.settings,
            &point.configuration,
            run.threads,
            (seed, effort),
        )?;
        found.push(match run.load {
            Load::Messages => units(run.load, &s.sample) / s.time.as_secs_f64(),
            Load::Send | Load::Receive => s.sample.goodput * 8.0 / 1e6,
        });
        contended.extend(Metric::Contended.of(&Measured::from(&s.sample)));
    }
    let middle = |list: &[f64]| Spread::of(list).map(|s| s.median);
    Ok(Some(Row {
        load: run.load,
        org: run.org.clone(),
        connections: run.connections,
        far: run.far,
        measured,
        predicted: middle(&found).unwrap_or(0.0),
        contended: middle(&run.contended).zip(middle(&contended)),
    }))
}

fn judged(machine: String, rows: Vec<Row>) -> Validation {
    let ratios = ratios(&rows);
    let verdicts = Load::ALL.iter().map(|load| verdict(*load, &rows, &ratios));
    Validation {
        machine,
        verdicts: verdicts.collect(),
        ratios,
        rows,
    }
}

fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let near_of = |far: &Row| {
        rows.iter().find(|r| {
            !r.far && (r.load, &r.org, r.connections) == (far.load, &far.org, far.connections)
        })
    };
    let far = rows.iter().filter(|r| r.far);
    far.filter_map(|f| {
        let n = near_of(f)?;
        Some(Ratio {
            load: f.load,
            org: f.org.clone(),
            connections: f.connections,
            measured: f.measured.median / n.measured.median,
            predicted: f.predicted / n.predicted,
        })
    })
    .collect()
}

fn verdict(load: Load, rows: &[Row], ratios: &[Ratio]) -> Verdict {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.load == load).collect();
    let mut order = (0, 0);
    for (i, a) in rows.iter().enumerate() {
        for b in &rows[i + 1..] {
            let alike = a.connections == b.connections && a.far == b.far;
            // A difference was seen where all runs of one are above all of the other.
            let above = a.measured.min > b.measured.max;
            let below = a.measured.max < b.measured.min;
            if alike && (above || below) {
                order.0 += 1;
                order.1 += usize::from((a.predicted > b.predicted) == above);
            }
        }
    }
    let errors: Vec<f64> = rows.iter().map(|r| r.error().abs()).collect();
    let spread = Spread::of(&errors);
    let near = |r: &&Ratio| (r.predicted - r.measured).abs() <= RATIO;
    let ratios: Vec<&Ratio> = ratios.iter().filter(|r| r.load == load).collect();
    let both = rows.iter().filter_map(|r| r.contended);
    let contended: Vec<(f64, f64)> = both.filter(|c| c.0.max(c.1) >= LITTLE).collect();
    let close = |c: &&(f64, f64)| c.1 <= CONTENDED * c.0 && c.0 <= CONTENDED * c.1;
    Verdict {
        load,
        order,
        median: spread.map(|s| s.median),
        worst: spread.map(|s| s.max),
        ratios: (ratios.len(), ratios.iter().copied().filter(near).count()),
        contended: (contended.len(), contended.iter().filter(close).count()),
    }
}

/// As a table in plain text.
impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Validation: {}, runs of two threads that nothing was fitted to",
            self.machine
        )?;
        if self.rows.is_empty() {
            return writeln!(
                f,
                "  There are none: nothing says what predictions are worth."
            );
        }
        writeln!(
            f,
            "  {:<9} {:<14} {:>6} {:<5} {:>10} {:>10} {:>7}  contended %",
            "load", "organization", "conns", "cores", "measured", "predicted", "error"
        )?;
        for r in &self.rows {
            let mut line = format!(
                "  {:<9} {:<14} {:>6} {:<5} {:>10.0} {:>10.0} {:>6.0} %",
                r.load,
                r.org,
                r.connections,
                if r.far { "far" } else { "near" },
                r.measured.median,
                r.predicted,
                r.error() * 100.0
            );
            if let Some((measured, predicted)) = r.contended {
                let _ = write!(line, "  {measured:.2} / {predicted:.2}");
            }
            writeln!(f, "{line}")?;
        }
        for r in &self.ratios {
            writeln!(
                f,
                "  far to near: {}, {}, {} connections: {:.2}, predicted {:.2}",
                r.org, r.load, r.connections, r.measured, r.predicted
            )?;
        }
        for v in &self.verdicts {
            let said = match v.fails() {
                fails if fails.is_empty() => "holds".into(),
                fails => format!("does not hold: {}", fails.join("; ")),
            };
            writeln!(
                f,
                "  {}: {said} (order {} of {}, median error {}, contention within a factor of two \
                 {} of {})",
                v.load,
                v.order.1,
                v.order.0,
                v.median
                    .map_or("-".into(), |e| format!("{:.0} %", e * 100.0)),
                v.contended.1,
                v.contended.0
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(org: &str, far: bool, measured: [f64; 3], predicted: f64) -> Row {
        Row {
            load: Load::Send,
            org: org.into(),
            connections: 192,
            far,
            measured: Spread::of(&measured).unwrap(),
            predicted,
            contended: None,
        }
    }

    fn of(rows: Vec<Row>) -> Verdict {
        let v = judged("m".into(), rows);
        v.of(Load::Send).unwrap().clone()
    }

    #[test]
    fn order_counts_where_a_difference_was_seen() {
        let a = || row("a", false, [100.0, 101.0, 102.0], 100.0);
        // Overlapping runs say nothing of the order.
        let v = of(vec![a(), row("b", false, [101.0, 105.0, 110.0], 95.0)]);
        assert_eq!(v.order, (0, 0));
        assert!(v.holds(), "{v:?}");
        let v = of(vec![a(), row("b", false, [110.0, 111.0, 112.0], 99.0)]);
        assert_eq!(v.order, (1, 0));
        assert!(!v.holds());
        assert!(v.fails()[0].contains("1 of 1"), "{:?}", v.fails());
        // Far and near runs are not held against each other.
        let v = of(vec![a(), row("b", true, [50.0, 51.0, 52.0], 200.0)]);
        assert_eq!(v.order, (0, 0));
    }

    #[test]
    fn errors_and_ratios() {
        let v = of(vec![
            row("a", false, [100.0; 3], 110.0),
            row("a", true, [70.0; 3], 80.0),
        ]);
        assert_eq!(v.ratios, (1, 1), "0.70 and 0.73");
        assert!(v.holds(), "{v:?}");
        let v = of(vec![
            row("a", false, [100.0; 3], 100.0),
            row("a", true, [70.0; 3], 85.0),
        ]);
        assert_eq!(v.ratios, (1, 0));
        let v = of(vec![row("a", false, [100.0; 3], 140.0)]);
        assert_eq!(v.fails().len(), 2, "{:?}", v.fails());
        assert!(!of(Vec::new()).holds(), "nothing measured is no success");
    }

    #[test]
    fn contention_within_a_factor_of_two() {
        let with = |measured, predicted| {
            let mut r = row("a", false, [100.0; 3], 100.0);
            r.contended = Some((measured, predicted));
            of(vec![r]).contended
        };
        assert_eq!(with(10.0, 19.0), (1, 1));
        assert_eq!(with(10.0, 21.0), (1, 0));
        assert_eq!(with(10.0, 4.0), (1, 0));
        assert_eq!(with(0.1, 0.0), (0, 0), "too little to tell");
    }
}
