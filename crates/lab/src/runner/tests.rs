use super::*;
use crate::{
    record,
    session::Session,
    workload::{Configuration, Sample, Settings},
};
use std::{cell::RefCell, rc::Rc, time::Instant};

const PLAN: &str = r#"
name = "small"
title = "t"
asks = "a"
metric = "goodput"
x = { setting = "connections", values = [1, 2] }
quick = { seconds = 1, repeats = 3 }
normal = { seconds = 1, repeats = 3 }
full = { seconds = 1, repeats = 3 }
series = [{ org = "up" }, { org = "connp-l:8" }]
"#;

/// A backend that measures nothing, says what it was asked to, and fails where it should.
struct Fake {
    log: Rc<RefCell<Vec<String>>>,
    fails: bool,
    unavailable: bool,
}

impl Backend for Fake {
    fn check(&mut self, _: &Settings, _: &[Configuration]) -> Result<(), Error> {
        match self.unavailable {
            true => Err(Error::Unavailable("not here".into())),
            false => Ok(()),
        }
    }
    fn traits(&self, _: &Settings, _: &Configuration) -> Traits {
        Traits {
            device: "fake".into(),
            ..Traits::default()
        }
    }
    fn prepare(
        &mut self,
        _: &Settings,
        c: &Configuration,
        _: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let name = format!("{} {}", c.organization, c.connections);
        self.log.borrow_mut().push(name);
        match self.fails {
            true => Err(Error::Run("broken".into())),
            false => Ok(Box::new(FakeSession)),
        }
    }
}

struct FakeSession;

impl Session for FakeSession {
    fn warm_up(&mut self, _: Duration) -> Result<(), Error> {
        Ok(())
    }
    fn measure(self: Box<Self>, _: Duration) -> Result<Sample, Error> {
        Ok(Sample {
            elapsed: Duration::from_secs(1),
            goodput: 1e9,
            valid: true,
            ..Sample::default()
        })
    }
}

#[derive(Default)]
struct Remarks {
    lines: Vec<String>,
    /// Of each run that began: runs before it, and the time left.
    begun: Vec<(usize, Duration)>,
    /// Runs to be begun at most.
    stop_at: Option<usize>,
}

impl Watcher for Remarks {
    fn begins(&mut self, step: &Step<'_>) {
        self.begun.push((step.done, step.left));
    }
    fn remark(&mut self, line: &str) {
        self.lines.push(line.into());
    }
    fn is_stopped(&self) -> bool {
        self.stop_at.is_some_and(|n| self.begun.len() >= n)
    }
}

fn request() -> Request {
    Request {
        plans: vec![Plan::parse("small.toml", PLAN).unwrap()],
        mode: Mode::Quick,
        device: None,
        seed: 11,
        build: record::tests::build(),
        more: Duration::ZERO,
    }
}

struct Ran {
    log: Vec<String>,
    summary: Summary,
    remarks: Remarks,
}

fn run(folder: &mut Folder, present: &[Row], of: impl Fn(&Cell) -> (bool, bool)) -> Ran {
    run_until(None, folder, present, of)
}

fn run_until(
    stop_at: Option<usize>,
    folder: &mut Folder,
    present: &[Row],
    of: impl Fn(&Cell) -> (bool, bool),
) -> Ran {
    let log = Rc::new(RefCell::new(Vec::new()));
    let mut remarks = Remarks {
        stop_at,
        ..Remarks::default()
    };
    let mut backends = |cell: &Cell| -> Box<dyn Backend> {
        let (fails, unavailable) = of(cell);
        Box::new(Fake {
            log: log.clone(),
            fails,
            unavailable,
        })
    };
    let summary = run_with(&request(), folder, present, &mut remarks, &mut backends).unwrap();
    let log = log.borrow().clone();
    Ran {
        log,
        summary,
        remarks,
    }
}

fn folder(path: &std::path::Path) -> Folder {
    let request = request();
    Folder::create(path, &request.header(), &request.plans).unwrap()
}

#[test]
fn passes_are_whole_and_orders_differ() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let ran = run(&mut folder(&path), &[], |_| (false, false));
    assert_eq!(ran.summary.measured, 12);
    let mut passes: Vec<Vec<String>> = ran.log.chunks(4).map(<[String]>::to_vec).collect();
    let distinct: HashSet<&Vec<String>> = passes.iter().collect();
    assert!(distinct.len() > 1, "{passes:?}");
    for pass in &mut passes {
        pass.sort();
        assert_eq!(*pass, ["connp-l:8 1", "connp-l:8 2", "up 1", "up 2"]);
    }
    let left: Vec<Duration> = ran.remarks.begun.iter().map(|(_, left)| *left).collect();
    assert!(left.is_sorted_by(|a, b| a > b), "{left:?}");
    assert!(left[0] > Duration::from_secs(12) && left[11] > Duration::from_millis(500));
    let stored = record::read(&path).unwrap();
    assert_eq!(stored.rows.len(), 12);
    assert_eq!(stored.rows[0].device, "fake");
    assert_eq!(stored.rows[0].seed, 11);
}

#[test]
fn an_interrupted_request_is_gone_on_with() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let whole = run(&mut folder(&t.path().join("b")), &[], |_| (false, false)).log;
    drop(folder(&path));
    // As if the process had been ended after five rows.
    let rows = record::read(&t.path().join("b")).unwrap().rows;
    let (mut f, _) = Folder::resume(&path).unwrap();
    rows[..5].iter().for_each(|r| f.append(r).unwrap());
    drop(f);
    let (mut f, stored) = Folder::resume(&path).unwrap();
    let ran = run(&mut f, &stored.rows, |_| (false, false));
    assert_eq!((ran.summary.present, ran.summary.measured), (5, 7));
    assert_eq!(ran.log, whole[5..]);
    let rows = record::read(&path).unwrap().rows;
    let keys: HashSet<_> = rows.iter().map(Row::key).collect();
    assert_eq!((rows.len(), keys.len()), (12, 12));
}

#[test]
fn a_stopped_request_is_gone_on_with() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let none = |_: &Cell| (false, false);
    let ran = run_until(Some(5), &mut folder(&path), &[], none);
    assert!(ran.summary.stopped);
    assert_eq!(ran.summary.measured, 5);
    // A run that fails while all is ended says nothing of its configuration.
    let (mut f, stored) = Folder::resume(&path).unwrap();
    let ran = run_until(Some(1), &mut f, &stored.rows, |_| (true, false));
    assert!(ran.summary.stopped && ran.remarks.lines.is_empty());
    assert_eq!((ran.summary.measured, ran.summary.failed), (0, 0));
    assert_eq!(ran.log.len(), 1);
    drop(f);
    let (mut f, stored) = Folder::resume(&path).unwrap();
    let ran = run(&mut f, &stored.rows, none);
    assert!(!ran.summary.stopped);
    assert_eq!((ran.summary.present, ran.summary.measured), (5, 7));
}

#[test]
fn what_fails_is_recorded_and_the_rest_goes_on() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let ran = run(&mut folder(&path), &[], |c| {
        (c.series == 1 && c.x == 2, false)
    });
    assert_eq!((ran.summary.measured, ran.summary.failed), (9, 2));
    assert_eq!(ran.remarks.lines.len(), 2, "{:?}", ran.remarks.lines);
    assert!(ran.remarks.lines[0].contains("connp-l:8 with 2 connections: broken"));
    // Failed runs are made again.
    let (mut f, stored) = Folder::resume(&path).unwrap();
    assert_eq!(stored.rows.len(), 11);
    let again = run(&mut f, &stored.rows, |_| (false, false));
    assert_eq!((again.summary.present, again.summary.measured), (9, 3));
}

#[test]
fn what_cannot_run_says_so_once() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let ran = run(&mut folder(&path), &[], |c| (false, c.series == 0));
    assert_eq!((ran.summary.measured, ran.summary.unavailable), (6, 2));
    let rows = record::read(&path).unwrap().rows;
    let unavailable = |r: &&Row| matches!(&r.outcome, Outcome::Unavailable(w) if w == "not here");
    assert_eq!(rows.iter().filter(unavailable).count(), 2);
}

#[test]
fn only_the_same_request_joins() {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    drop(folder(&path));
    let (_, stored) = Folder::resume(&path).unwrap();
    let mut other = request();
    other.seed = 99;
    let joined = other.clone().joined(&stored, None).unwrap();
    assert_eq!(joined.seed, 11, "the folder's, as none was asked for");
    assert_eq!(other.clone().joined(&stored, Some(11)).unwrap().seed, 11);
    let error = other.joined(&stored, Some(99)).unwrap_err().to_string();
    assert!(error.contains("seed 11, not 99"), "{error}");
    type Damage = fn(&mut Request);
    let damages: [(Damage, &str); 5] = [
        (|r| r.mode = Mode::Full, "quick, not full"),
        (|r| r.device = Some(Device::Tap), "as planned, not tap"),
        (|r| r.build.version = "9".into(), "version"),
        (|r| r.plans.clear(), "the plan small"),
        (|r| r.plans[0].text.push('#'), "`small` has changed"),
    ];
    for (damage, says) in damages {
        let mut other = request();
        damage(&mut other);
        let error = other.joined(&stored, None).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

/// Rows of every point: passes with near cores, then ones with far cores.
fn rows_of(near: u32, far: u32) -> Vec<Row> {
    let points = [("up", 1), ("up", 2), ("connp-l:8", 1), ("connp-l:8", 2)];
    let passes = 0..near + far;
    let rows = passes.flat_map(|pass| points.map(|(org, x)| (pass, org, x)));
    rows.map(|(pass, org, x)| {
        let mut row = record::tests::row("small", org, org, x, pass, 1.0);
        if let Outcome::Measured(m) = &mut row.outcome {
            m.raw.core_round_trip_ns = Some(if pass < near { 60.0 } else { 300.0 });
        }
        row
    })
    .collect()
}

/// What runs beyond `present`, two runs at most, while a line between the cores takes `ns`.
fn run_further(present: &[Row], more: Duration, ns: f64) -> (Vec<Row>, Vec<String>) {
    let mut request = request();
    request.more = more;
    run_further_of(&request, present, ns)
}

fn run_further_of(request: &Request, present: &[Row], ns: f64) -> (Vec<Row>, Vec<String>) {
    let t = tempfile::tempdir().unwrap();
    let path = t.path().join("a");
    let mut folder = Folder::create(&path, &request.header(), &request.plans).unwrap();
    let mut remarks = Remarks {
        stop_at: Some(2),
        ..Remarks::default()
    };
    let mut backends = |_: &Cell| -> Box<dyn Backend> {
        Box::new(Fake {
            log: Rc::default(),
            fails: false,
            unavailable: false,
        })
    };
    let mut runner = Runner::new(request, &mut folder, present, &mut remarks);
    runner.host.cores = 2;
    runner.carry_out(&mut || Some(ns), &mut backends).unwrap();
    // No row at all is an error.
    let rows = record::read_rows(&path).map_or(Vec::new(), |stored| stored.rows);
    (rows, remarks.lines)
}

#[test]
fn what_lacks_runs_of_a_kind_runs_again() {
    let hour = Duration::from_secs(3600);
    let passes = |(rows, _): (Vec<Row>, Vec<String>)| -> String {
        let passes: Vec<u32> = rows.iter().map(|r| r.repeat).collect();
        format!("{passes:?}")
    };
    // Nothing is asked for.
    assert_eq!(
        passes(run_further(&rows_of(4, 5), Duration::ZERO, 60.0)),
        "[]"
    );
    // Nothing lacks.
    assert_eq!(passes(run_further(&rows_of(5, 5), hour, 60.0)), "[]");
    assert_eq!(passes(run_further(&rows_of(4, 5), hour, 60.0)), "[9, 9]");
    assert_eq!(passes(run_further(&rows_of(5, 4), hour, 300.0)), "[9, 9]");
    // The kind that lacks is not to be had.
    let (rows, lines) = run_further(&rows_of(5, 4), Duration::from_millis(5), 60.0);
    assert!(rows.is_empty(), "{rows:?}");
    assert!(lines[0].contains("waiting for far cores"), "{lines:?}");
}

#[test]
fn who_has_few_passes_in_common_lacks_them() {
    let set = |passes: std::ops::Range<u32>| passes.collect::<std::collections::BTreeSet<u32>>();
    let lacking = |sets: &[std::ops::Range<u32>]| {
        let sets: Vec<_> = sets.iter().cloned().map(set).collect();
        let lacking = passes::lacking(&sets.iter().collect::<Vec<_>>());
        (lacking.which, lacking.passes)
    };
    assert_eq!(lacking(&[0..5, 0..7]), (vec![], 0));
    // Each has enough by itself, not with the other.
    assert_eq!(lacking(&[0..5, 1..6]), (vec![0, 1], 1));
    assert_eq!(lacking(&[0..6, 0..6, 2..8]), (vec![0, 1, 2], 1));
    assert_eq!(lacking(&[0..6, 1..6, 1..8, 0..6]), (vec![], 0));
    assert_eq!(lacking(&[0..2, 0..4]), (vec![0, 1], 3));
    assert_eq!(lacking(&[]), (vec![], 0));
}

#[test]
fn what_soonest_has_enough_runs_again_first() {
    let mut request = request();
    request.more = Duration::from_secs(3600);
    let other = PLAN.replace("\"small\"", "\"other\"");
    request
        .plans
        .push(Plan::parse("other.toml", &other).unwrap());
    for (small, other, first) in [(3, 4, "other"), (4, 3, "small"), (4, 4, "small")] {
        let mut present = rows_of(5, small);
        present.extend(rows_of(5, other).into_iter().map(|mut row| {
            row.plan = "other".into();
            row
        }));
        let (rows, _) = run_further_of(&request, &present, 300.0);
        let plans: Vec<&str> = rows.iter().map(|r| r.plan.as_str()).collect();
        assert_eq!(
            plans, [first; 2],
            "{small} and {other} passes with far cores"
        );
    }
}
