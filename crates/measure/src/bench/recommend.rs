//! Which organization for what, on this machine: four short benchmarks over simulated links, what
//! they say in a paragraph, and the evidence.

use crate::{
    Error,
    bench::{
        self,
        answer::{Measure, Sure, compare, ranked},
        progress::{Observer, Run},
        report::{Build, Report, Row},
        table::titled,
    },
    host::Host,
    live::Feed,
    organizations::Organization,
    text::wrapped,
    units::thousands,
    workload::{Coalescing, Configuration, Device, Direction, Sample, Settings},
};
use perimeter::OrgSpec;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Version of the JSON layout. Fields may be added without a new one.
pub const SCHEMA: &str = "perimeter-recommend/1";

/// Runs of each organization for each kind of work: the least from which an interval comes.
const RUNS: u32 = 5;
/// How long each measures.
const SECONDS: Duration = Duration::from_millis(250);
/// A ratio to the best from which on an organization is as good as it, where no difference is sure.
const NEAR: f64 = 0.97;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Streams that go out.
    Sending,
    /// Streams that come in.
    Receiving,
    /// Short requests and answers on connections that stay.
    Messages,
    /// A connection for each request.
    ShortConnections,
}

impl Work {
    /// All of them, in the order of the runs.
    pub const ALL: [Work; 4] = [
        Work::Sending,
        Work::Receiving,
        Work::Messages,
        Work::ShortConnections,
    ];

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Work::Sending => "sending",
            Work::Receiving => "receiving",
            Work::Messages => "messages",
            Work::ShortConnections => "short connections",
        }
    }

    /// What is run.
    fn settings(self, organizations: &[OrgSpec]) -> Settings {
        let ours = organizations.iter().cloned().map(Organization::Ours);
        let streams = Settings {
            organizations: ours.collect(),
            connections: vec![192],
            seconds: SECONDS,
            repeat: RUNS,
            ..Settings::default()
        };
        let rounds = |device, connections, settings: Settings| Settings {
            exchange: "64:512".parse().ok(),
            coalescing: Coalescing::NoDelay,
            connections: vec![connections],
            device,
            ..settings
        };
        match self {
            Work::Sending => streams,
            Work::Receiving => Settings {
                direction: Direction::Receive,
                ..streams
            },
            Work::Messages => rounds(Device::Mem, 192, streams),
            Work::ShortConnections => Settings {
                reconnect: true,
                ..rounds(Device::Pair, 16, streams)
            },
        }
    }

    /// What is run, in words.
    fn load(self) -> &'static str {
        match self {
            Work::Sending => "192 streams out, simulated NICs",
            Work::Receiving => "192 streams in, simulated NICs",
            Work::Messages => "64-byte requests, 512-byte answers, 192 connections, simulated NICs",
            Work::ShortConnections => {
                "one such request a connection, 16 at a time, two stacks on a wire in memory"
            }
        }
    }
}

/// The organizations that are looked at unless others are asked for: one of each family that says
/// so, as it suits this machine's cores.
pub fn candidates() -> Vec<OrgSpec> {
    OrgSpec::recommended(crate::host::cores())
}

/// One organization at one kind of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name.
    pub org: String,
    /// Application threads.
    pub threads: usize,
    /// Median of the runs, in the work's unit.
    pub median: f64,
    /// The least of them.
    pub min: f64,
    /// The most of them.
    pub max: f64,
    /// That median as a share of the best one.
    pub of_best: f64,
    /// How many runs there were.
    pub runs: usize,
    /// How many of them something else on the machine disturbed.
    pub disturbed: usize,
    /// Whether the accounting of every run holds; what does not add up decides nothing.
    pub valid: bool,
    /// Whether no difference from the best can be told.
    pub ties: bool,
}

/// What was found for one kind of work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The work.
    pub work: Work,
    /// What was run.
    pub load: &'static str,
    /// Unit of the medians.
    pub unit: &'static str,
    /// The first of the figures, if there are two that can be compared.
    pub best: Option<String>,
    /// Its lead over the next that it does not tie with: the median of the ratios of runs that took
    /// turns.
    pub lead: Option<f64>,
    /// How sure that lead is: `sure`, `all_runs` (every run says so) or `tie` (nobody is behind).
    pub confidence: &'static str,
    /// All of them, the best first.
    pub figures: Vec<Figure>,
    #[serde(skip)]
    measure: Option<Measure>,
}

/// The whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Program version.
    pub version: String,
    /// Source commit, if known.
    pub commit: Option<String>,
    /// The machine.
    pub host: Host,
    /// A finding for each kind of work that was complete.
    pub findings: Vec<Finding>,
    /// The organization whose worst work is the least bad, and how bad that is.
    pub for_all: Option<ForAll>,
    /// What is predicted for more cores, if that was asked for and can be had.
    pub prediction: Option<Prediction>,
    /// Remarks on the whole.
    pub notes: Vec<String>,
}

/// One organization for everything.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ForAll {
    /// Its name.
    pub org: String,
    /// What of the best it reaches at its worst work.
    pub of_best: f64,
    /// That work.
    pub work: Work,
}

/// What is predicted for more cores than there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// How many cores.
    pub cores: usize,
    /// The machine whose table of costs it is made from.
    pub machine: String,
    /// What is said of each kind of load, the reason where nothing can be said.
    pub said: Vec<String>,
}

/// Runs it, which takes about a minute on an idle machine.
///
/// # Errors
/// As the benchmark's; [`Error::Stopped`] if it was ended before one kind of work was complete.
pub fn recommend(
    organizations: &[OrgSpec],
    build: Build,
    observer: &mut dyn Observer,
) -> Result<Recommendation, Error> {
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    if build.debug {
        notes.push("built without optimisation: the figures mean little".to_string());
    }
    for (nth, work) in Work::ALL.into_iter().enumerate() {
        let settings = work.settings(organizations);
        let mut part = PartOf {
            observer,
            nth,
            spent: Duration::ZERO,
        };
        let begun = Instant::now();
        let outcome = bench::bench(&settings, build.clone(), begun, &mut part);
        let report = match outcome {
            Err(Error::Stopped) if !findings.is_empty() => None,
            report => Some(report?),
        };
        if let Some(why) = report.as_ref().and_then(|r| r.failed.first()) {
            return Err(Error::Late(why.clone()));
        }
        let whole = report.filter(is_whole);
        match whole {
            Some(report) => findings.push(finding(work, &report)),
            None => {
                notes.push(format!("stopped before {} was measured", work.words()));
                break;
            }
        }
    }
    observer.done();
    if findings.is_empty() {
        return Err(Error::Stopped);
    }
    Ok(Recommendation {
        schema: SCHEMA,
        version: build.version,
        commit: build.commit,
        host: Host::read(),
        for_all: for_all(&findings),
        findings,
        prediction: None,
        notes,
    })
}

/// Whether every run was made.
fn is_whole(report: &Report) -> bool {
    let all = report.settings.organizations.len();
    report.runs.len() == all && report.runs.iter().all(|r| r.samples.len() == RUNS as usize)
}

/// Runs of one kind of work as a part of all of them.
struct PartOf<'a> {
    observer: &'a mut dyn Observer,
    nth: usize,
    /// What runs of this part were expected to take so far.
    spent: Duration,
}

impl Observer for PartOf<'_> {
    fn planned(&mut self, grid: &[Configuration], repeat: u32) {
        if self.nth == 0 {
            self.observer.planned(grid, repeat);
        }
    }

    fn started(&mut self, run: &Run<'_>) {
        let all = Work::ALL.len();
        let part = self.spent + run.left;
        self.observer.started(&Run {
            number: self.nth * run.of + run.number,
            of: all * run.of,
            configuration: run.configuration,
            slot: run.slot,
            left: run.left + part * (all - 1 - self.nth) as u32,
        });
        self.spent += run.left / (run.of + 1 - run.number).max(1) as u32;
    }

    fn finished(&mut self, sample: &Sample) {
        self.observer.finished(sample);
    }

    /// The others are still to come.
    fn done(&mut self) {}

    fn feed(&self) -> Option<&Feed> {
        self.observer.feed()
    }
}

/// What a report of one load says.
fn finding(work: Work, report: &Report) -> Finding {
    let measure = Measure::of(report);
    let loads = ranked(report, measure);
    let mut rows: Vec<&Row> = loads.into_iter().flat_map(|(_, rows)| rows).collect();
    // What does not add up decides nothing.
    rows.sort_by_key(|r| !r.valid);
    let best = rows.first().copied().filter(|r| r.valid);
    let compared = |row: &Row| {
        let best = best.filter(|b| b.org != row.org && row.valid)?;
        compare(measure, best, row)
    };
    let figures: Vec<Figure> = rows
        .iter()
        .map(|row| {
            let values = measure.values(row);
            let found = compared(row);
            let most = measure.median(best.unwrap_or(row));
            Figure {
                org: row.org.clone(),
                threads: row.threads,
                median: measure.median(row),
                min: values.iter().copied().fold(f64::INFINITY, f64::min),
                max: values.iter().copied().fold(0.0, f64::max),
                of_best: measure.median(row) / most.max(f64::MIN_POSITIVE),
                runs: values.len(),
                disturbed: row
                    .samples
                    .iter()
                    .filter(|s| !s.disturbances.is_empty())
                    .count(),
                valid: row.valid,
                ties: found.is_some_and(|c| c.sure == Sure::Tie),
            }
        })
        .collect();
    let rival = rows.iter().find_map(|row| {
        let found = compared(row)?;
        (found.sure != Sure::Tie).then_some(found)
    });
    let comparable = rows.iter().filter(|r| r.valid).count() > 1;
    Finding {
        work,
        load: work.load(),
        unit: measure.heading(),
        best: best.filter(|_| comparable).map(|b| b.org.clone()),
        lead: rival.as_ref().map(|c| c.ratio),
        confidence: match rival.map(|c| c.sure) {
            Some(Sure::Yes) => "sure",
            Some(Sure::All(_)) => "all_runs",
            _ => "tie",
        },
        figures,
        measure: Some(measure),
    }
}

/// The organization whose worst work is the least bad, of those that were measured at all of it.
fn for_all(findings: &[Finding]) -> Option<ForAll> {
    let first = findings.first()?;
    let worst = first.figures.iter().filter_map(|f| {
        let at = |finding: &Finding| {
            let mut all = finding.figures.iter();
            let found = all.find(|g| g.org == f.org && g.valid)?;
            Some((found.of_best, finding.work))
        };
        let all: Option<Vec<(f64, Work)>> = findings.iter().map(at).collect();
        let (of_best, work) = all?.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(ForAll {
            org: f.org.clone(),
            of_best: of_best.min(1.0),
            work,
        })
    });
    worst.max_by(|a, b| a.of_best.total_cmp(&b.of_best))
}

impl Recommendation {
    /// The paragraph and the evidence; plain text of 80 columns.
    pub fn render(&self) -> String {
        let mut out = wrapped(&self.paragraph(), 0);
        for finding in &self.findings {
            out.push('\n');
            let title = format!("{}: {}", finding.work.words(), finding.load);
            out.push_str(&wrapped(&title, 2));
            out.push_str(&format!("{}\n", evidence(finding)));
        }
        out.push('\n');
        for note in &self.notes {
            out.push_str(&wrapped(note, 2));
        }
        out
    }

    /// The report as indented JSON with a final newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn paragraph(&self) -> String {
        let cores = match self.host.cores {
            1 => "its one core".to_string(),
            n => format!("its {n} cores"),
        };
        let all: Vec<String> = self.findings.iter().map(sentence).collect();
        let mut said = format!("On this machine with {cores}: {}.", all.join("; "));
        if let Some(one) = self.for_all.as_ref().filter(|_| self.findings.len() > 1) {
            said.push_str(&match one.of_best >= NEAR {
                true => format!(" One for all of it: {}.", one.org),
                false => format!(
                    " One for all of it: {}, which at worst ({}) has {:.2} of the best.",
                    one.org,
                    one.work.words(),
                    one.of_best
                ),
            });
        }
        let of_one = |f: &Finding| f.best.as_deref() == Some("up");
        if self.findings.iter().any(of_one) {
            said.push_str(" `up` is for programs of one thread.");
        }
        let figures = self.findings.iter().flat_map(|f| &f.figures);
        let (disturbed, runs) = figures.fold((0, 0), |(d, n), f| (d + f.disturbed, n + f.runs));
        said.push_str(&format!(
            " {disturbed} of {runs} runs were disturbed by something else on the machine{}. This \
             holds for links in memory and this many cores{}",
            match 2 * disturbed > runs {
                true => ", too many to rely on: repeat it while nothing else runs",
                false => "",
            },
            match &self.prediction {
                Some(p) => format!(
                    ". At {} cores, predicted with the costs of {}: {}.",
                    p.cores,
                    p.machine,
                    p.said.join("; ")
                ),
                None => "; --cores says what is predicted for more.".into(),
            }
        ));
        said
    }
}

/// What is said of one kind of work.
fn sentence(finding: &Finding) -> String {
    let work = finding.work.words();
    let (Some(best), Some(first)) = (&finding.best, finding.figures.first()) else {
        return format!("nothing can be said of {work}, as too few figures add up");
    };
    let value = show(finding, first.median);
    let unit = finding.unit;
    let next = finding.figures.iter().skip(1).find(|f| f.valid && !f.ties);
    let (Some(lead), Some(next)) = (finding.lead, next) else {
        let open = undecided(finding);
        return format!("for {work} no difference is sure (highest: {best}, {value} {unit}){open}");
    };
    let noisy = 2 * (first.disturbed + next.disturbed) > first.runs + next.runs;
    let sure = match finding.confidence {
        "sure" if noisy => "in these runs, most of which were disturbed".to_string(),
        "sure" => "sure".to_string(),
        _ => format!("in all {} runs", first.runs),
    };
    let ties = finding.figures.iter().filter(|f| f.ties);
    let ties: Vec<&str> = ties.map(|f| f.org.as_str()).collect();
    let also = match ties[..] {
        [] => String::new(),
        _ => format!(" (no difference seen to {})", ties.join(", ")),
    };
    let open = undecided(finding);
    format!(
        "for {work} {best}, {value} {unit}, {lead:.2} × {}, {sure}{also}{open}",
        next.org
    )
}

/// Names the organizations whose runs are invalid and reached more than the best valid median.
fn undecided(finding: &Finding) -> String {
    let best = finding.figures.first().map_or(0.0, |f| f.median);
    let others = finding.figures.iter().filter(|f| !f.valid && f.max > best);
    let names: Vec<&str> = others.map(|f| f.org.as_str()).collect();
    match names[..] {
        [] => String::new(),
        _ => format!(
            ", which says nothing of {}: its runs do not add up",
            names.join(" and of ")
        ),
    }
}

fn show(finding: &Finding, value: f64) -> String {
    match finding.measure {
        Some(measure) => measure.show(value),
        None => thousands(value),
    }
}

fn evidence(finding: &Finding) -> comfy_table::Table {
    let mut table = titled(1, ["org", "thr", finding.unit, "range", "of best", "noisy"]);
    for f in &finding.figures {
        let share = match (f.valid, f.ties) {
            (false, _) => "INVALID".into(),
            (true, true) => format!("{:.2} tie", f.of_best),
            (true, false) => format!("{:.2}", f.of_best),
        };
        table.add_row([
            f.org.clone(),
            f.threads.to_string(),
            show(finding, f.median),
            format!("{}–{}", show(finding, f.min), show(finding, f.max)),
            share,
            format!("{} of {}", f.disturbed, f.runs),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{report, sample};

    fn runs(of: &[f64]) -> Vec<Sample> {
        of.iter().map(|g| sample(*g, Some(1_000_000), 1)).collect()
    }

    fn whole(findings: Vec<Finding>) -> Recommendation {
        Recommendation {
            schema: SCHEMA,
            version: "0".into(),
            commit: None,
            host: Host::read(),
            for_all: for_all(&findings),
            findings,
            prediction: None,
            notes: Vec::new(),
        }
    }

    /// As if nothing else had run on the machine; every run of these is marked.
    fn quiet(mut finding: Finding) -> Finding {
        for f in &mut finding.figures {
            f.disturbed = 0;
        }
        finding
    }

    #[test]
    fn the_best_is_named_with_its_lead_and_how_sure_it_is() {
        let report = report(&[
            ("up", 1, runs(&[1e9, 1.1e9, 0.9e9, 1e9, 1.05e9])),
            ("connp-l:128", 2, runs(&[2e9, 2.1e9, 1.9e9, 2e9, 2.05e9])),
            ("msgp", 2, runs(&[2.01e9, 2e9, 1.95e9, 1.99e9, 2.06e9])),
        ]);
        let finding = finding(Work::Sending, &report);
        assert_eq!(finding.best.as_deref(), Some("connp-l:128"));
        assert_eq!(finding.confidence, "sure");
        assert!((finding.lead.unwrap() - 2.0).abs() < 0.15, "{finding:?}");
        let ties: Vec<bool> = finding.figures.iter().map(|f| f.ties).collect();
        assert_eq!(ties, [false, true, false]);
        let noisy = sentence(&finding);
        assert!(noisy.contains(", in these runs, most of which were disturbed ("));
        let said = sentence(&quiet(finding));
        assert!(
            said.starts_with("for sending connp-l:128, 16.0 Gb/s, "),
            "{said}"
        );
        let end = " × up, sure (no difference seen to msgp)";
        assert!(said.ends_with(end), "{said}");
    }

    #[test]
    fn one_for_all_is_the_least_bad_at_its_worst() {
        let of = |up: f64, connp: f64, msgp: f64| {
            finding(
                Work::Sending,
                &report(&[
                    ("up", 1, runs(&[up; 5])),
                    ("connp-l:128", 2, runs(&[connp; 5])),
                    ("msgp", 2, runs(&[msgp; 5])),
                ]),
            )
        };
        let mut second = of(1e9, 3e9, 4e9);
        second.work = Work::Receiving;
        let all = whole(vec![of(4e9, 3e9, 1e9), second]);
        let one = all.for_all.clone().unwrap();
        assert_eq!(one.org, "connp-l:128");
        assert!((one.of_best - 0.75).abs() < 0.01, "{one:?}");
        let text = all.render();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "for sending up, 32.0 Gb/s, 1.33 × connp-l:128, in these runs, most of which were disturbed",
            "for receiving msgp, 32.0 Gb/s, 1.33 × connp-l:128, in these runs,",
            "One for all of it: connp-l:128, which at worst",
            "`up` is for programs of one thread.",
            // Every run of these is marked.
            "30 of 30 runs were disturbed by something else on the machine, too many to rely on",
            "--cores says what is predicted for more.",
        ] {
            assert!(flat.contains(said), "{said}\n{text}");
        }
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        let json: serde_json::Value = serde_json::from_str(&all.to_json()).unwrap();
        assert_eq!(json["findings"][1]["work"], "receiving");
        assert!(json["prediction"].is_null());
    }

    #[test]
    fn what_does_not_add_up_decides_nothing() {
        let invalid = |g| vec![sample(g, None, 1); 5];
        let report = report(&[("up", 1, invalid(9e9)), ("msgp", 2, runs(&[1e9; 5]))]);
        let finding = finding(Work::Messages, &report);
        assert_eq!(finding.best, None);
        assert!(sentence(&finding).contains("nothing can be said of messages"));
        assert!(
            whole(vec![finding])
                .for_all
                .is_none_or(|one| one.org == "msgp")
        );
    }

    /// An organization whose runs are invalid may still be faster than the winner.
    #[test]
    fn who_may_be_faster_is_named() {
        let invalid = |g| vec![sample(g, None, 1); 5];
        let rows = |g| {
            [
                ("up", 1, runs(&[2e9; 5])),
                ("msgp", 2, runs(&[1e9; 5])),
                ("squeue:2", 2, invalid(g)),
            ]
        };
        let said = |g| sentence(&quiet(finding(Work::Receiving, &report(&rows(g)))));
        assert!(
            said(9e9).ends_with("sure, which says nothing of squeue:2: its runs do not add up")
        );
        assert!(said(1e9).ends_with("sure"), "{}", said(1e9));
    }

    #[test]
    fn every_kind_of_work_can_be_run() {
        for work in Work::ALL {
            let settings = work.settings(&candidates());
            settings.check().unwrap();
            assert!(
                settings.exchange.is_some() == !matches!(work, Work::Sending | Work::Receiving)
            );
        }
    }
}
