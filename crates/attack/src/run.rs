//! One attack on one organization: before, during, after.

use crate::attacks::{Attack, Size};
use crate::client::{self, Had};
use crate::flood::Place;
use crate::handle::Victim;
use crate::raw::{Far, Gone, far_clients};
use crate::victim::{Setting, Stat};
use anyhow::{Context, Result};
use perimeter::OrgSpec;
use perimeter_interop::namespace;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Length of each measurement.
    pub length: Duration,
    /// Rounds of during and after, for attacks that can be repeated, with as many measurements
    /// before; of one that can't be, measurements before, during and after it.
    pub rounds: usize,
    /// Answers of [`ANSWER`] bytes whose delivery is checked during the attack, and again after.
    pub answers: u64,
    /// Clients at each distance.
    pub far: u32,
    /// How much is filled.
    pub size: Size,
    /// Seed of everything random.
    pub seed: u64,
}

/// Bytes of an answer after which the server drops its socket at once.
pub const ANSWER: u32 = 100_000;

/// What was measured in a while.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// `before`, `during`, `after` with what was done: `connections`, `bulk`, `alone`.
    pub name: String,
    /// How long, s.
    pub seconds: f64,
    /// The victim's processor time, ns.
    pub cpu_ns: u64,
    /// Frames that the victim's stack took.
    pub frames: u64,
    /// Segments that it sent.
    #[serde(default)]
    pub sent: u64,
    /// Frames that the attacker sent, or connections that it had closed.
    pub attack_frames: u64,
    /// Legitimate connections that did all they should.
    pub connections: u64,
    /// Legitimate connections that failed.
    pub failed: u64,
    /// Legitimate bytes.
    pub bytes: u64,
    /// Connections that brought wrong bytes.
    pub corrupt: u64,
    /// Median and 99th percentile of what a connection took, µs.
    pub times_us: [u64; 2],
    /// The victim's memory now, as the stack counts it, bytes.
    pub memory: u64,
    /// The victim's resident memory now, kB.
    pub rss_kb: u64,
}

/// Clients at a distance, in JSON.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Distant {
    /// Round trip, ms.
    pub rtt_ms: u64,
    /// Connections tried.
    pub tried: u64,
    /// Of these, connections that brought their data, without an attack.
    pub good_before: u64,
    /// During the attack.
    pub good: u64,
    /// During the attack: those that were reset.
    pub reset: u64,
}

/// Answers whose socket was dropped right after the last write.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Answers {
    /// Answers that the server wrote to the end without an error.
    pub written: u64,
    /// Of these, answers that arrived whole.
    pub arrived: u64,
    /// Bytes that clients waited for in vain.
    pub missing: u64,
}

/// All that was measured of one attack on one organization.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Organization.
    pub org: String,
    /// Attack.
    pub attack: String,
    /// Prefix length of the link.
    pub prefix: u8,
    /// `Config::memory`, bytes.
    pub limit: u64,
    /// Measurements in their order.
    pub phases: Vec<Phase>,
    /// Clients at a distance.
    pub distant: Vec<Distant>,
    /// Answers during and after.
    pub answers: Answers,
    /// Frames that the attacker sent in all.
    pub attack_frames: u64,
    /// The attacker's processor time, ns.
    pub attacker_ns: u64,
    /// The most memory that was resident, kB.
    pub rss_peak_kb: u64,
    /// The most memory that the stack counted at the end of a measurement, bytes.
    pub memory_peak: u64,
    /// Connections left in the end that are not in TIME-WAIT.
    pub left: u64,
    /// Counters of the stack in the end.
    pub counts: std::collections::BTreeMap<String, u64>,
    /// What ended it early, if anything did.
    pub error: Option<String>,
    /// Runs, each with a victim of its own, that these measurements are of.
    #[serde(default = "one")]
    pub runs: u32,
}

fn one() -> u32 {
    1
}

impl Measured {
    /// Adds another run of the same attack: its measurements stand beside these as further
    /// rounds, and of what must not happen the worse one counts.
    pub fn join(&mut self, other: Measured) {
        self.phases.extend(other.phases);
        for (d, o) in self.distant.iter_mut().zip(other.distant) {
            if o.good * d.good_before < d.good * o.good_before {
                *d = o;
            }
        }
        self.answers.written += other.answers.written;
        self.answers.arrived += other.answers.arrived;
        self.answers.missing += other.answers.missing;
        self.attack_frames += other.attack_frames;
        self.attacker_ns += other.attacker_ns;
        self.rss_peak_kb = self.rss_peak_kb.max(other.rss_peak_kb);
        self.memory_peak = self.memory_peak.max(other.memory_peak);
        self.left = self.left.max(other.left);
        self.counts = other.counts;
        self.error = self.error.take().or(other.error);
        self.runs += other.runs;
    }
}

struct Run<'a> {
    plan: &'a Plan,
    attack: &'a Attack,
    victim: Victim,
    /// Where the legitimate clients connect.
    to: IpAddr,
    /// Clients at a distance that were served.
    gone: Gone,
    out: Measured,
}

/// Runs one attack on one organization in a namespace of its own. `exe` is this crate's program.
/// That the victim gives no answer any more is a result, not an error.
///
/// # Errors
/// The victim can't be started.
pub fn attack(exe: &Path, org: &OrgSpec, attack: &Attack, plan: &Plan) -> Result<Measured> {
    namespace::within(|| {
        let setting = Setting {
            prefix: attack.prefix,
            v6: attack.v6,
            ..Setting::new(org)
        };
        let mut victim = Victim::start(exe, "victim", &setting, &[])?;
        victim.expect("listening")?;
        let mut run = Run {
            plan,
            attack,
            victim,
            to: setting.listens(),
            gone: Gone::default(),
            out: Measured {
                org: org.to_string(),
                attack: attack.name.to_string(),
                prefix: attack.prefix,
                limit: setting.memory,
                runs: 1,
                ..Measured::default()
            },
        };
        if let Err(e) = run.all() {
            run.out.error = Some(format!("{e:#}"));
        }
        run.out.rss_peak_kb = run.victim.rss().1;
        if !run.victim.alive() {
            run.out.error = Some("the victim's process has ended".to_string());
        }
        Ok(run.out)
    })
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Connections,
    Bulk,
    Nothing,
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let place = Place::find(self.attack.prefix, self.plan.seed)?;
        // How often it is begun, and measurements each time.
        let (rounds, slices) = if self.attack.repeats() {
            (self.plan.rounds, 1)
        } else {
            (1, self.plan.rounds)
        };
        // The first connections of a process pay for its pages.
        client::connections(self.to, Duration::from_millis(200), || ());
        self.both("before", self.plan.rounds, None)?;
        let before = self.far(&place)?;
        for round in 0..rounds {
            let running = self.attack.start(&place, &self.plan.size)?;
            self.measure("during alone", What::Nothing, Some(&running))?;
            self.both("during", slices, Some(&running))?;
            if round == 0 {
                let during = self.far(&place)?;
                self.note_far(&before, &during);
                self.answers()?;
            }
            let ended = running.stop();
            self.out.attack_frames += ended.frames;
            self.out.attacker_ns += ended.spent;
            self.both("after", slices, None)?;
            if round + 1 == rounds {
                self.answers()?;
            }
            ended.release();
        }
        self.gone.reset(&place)?;
        self.leftovers()
    }

    /// Connections and bytes by turns: what the machine does meanwhile meets both.
    fn both(
        &mut self,
        when: &str,
        slices: usize,
        running: Option<&crate::flood::Running>,
    ) -> Result<()> {
        for _ in 0..slices {
            self.measure(&format!("{when} connections"), What::Connections, running)?;
            self.measure(&format!("{when} bulk"), What::Bulk, running)?;
        }
        Ok(())
    }

    fn ask(&mut self, what: &str) -> Result<Stat> {
        self.victim.ask(what).context("asking the victim")
    }

    fn measure(
        &mut self,
        name: &str,
        what: What,
        running: Option<&crate::flood::Running>,
    ) -> Result<()> {
        let sent = || running.map_or(0, crate::flood::Running::frames);
        // Alone it is measured once for all that follows.
        let length = match what {
            What::Nothing if !self.attack.repeats() => self.plan.length * self.plan.rounds as u32,
            _ => self.plan.length,
        };
        let first = self.ask("stat")?;
        let (cpu, start, attack_frames) = (self.victim.cpu(), Instant::now(), sent());
        let mut last = None;
        let victim = &mut self.victim;
        let at_end = || {
            let (cpu, seconds, frames) = (victim.cpu(), start.elapsed(), sent());
            last = Some((cpu, seconds, frames, victim.ask("stat")));
        };
        let had = match what {
            What::Connections => client::connections(self.to, length, at_end),
            What::Bulk => client::stream(self.to, length, at_end),
            What::Nothing => {
                std::thread::sleep(length);
                let mut at_end = at_end;
                at_end();
                Had::default()
            }
        };
        let (end_cpu, seconds, end_frames, stat) = last.context("not measured")?;
        let stat = stat.context("asking the victim")?;
        let more = |name: &str| {
            let of = |s: &Stat| s.counts.get(name).copied().unwrap_or(0);
            of(&stat).saturating_sub(of(&first))
        };
        self.out.memory_peak = self.out.memory_peak.max(stat.memory);
        self.out.phases.push(Phase {
            name: name.to_string(),
            seconds: seconds.as_secs_f64(),
            cpu_ns: end_cpu.saturating_sub(cpu),
            frames: more("rx_frames"),
            sent: more("tx_segments"),
            attack_frames: end_frames - attack_frames,
            connections: had.good,
            failed: had.failed,
            bytes: had.bytes,
            corrupt: had.corrupt,
            times_us: [had.quantile(0.5), had.quantile(0.99)],
            memory: stat.memory,
            rss_kb: self.victim.rss().0,
        });
        Ok(())
    }

    fn far(&mut self, place: &Place) -> Result<Vec<(u64, Far)>> {
        let mut all = Vec::new();
        if self.attack.far {
            for rtt_ms in [20, 200] {
                let (rtt, spread) = (Duration::from_millis(rtt_ms), Duration::from_millis(500));
                let (far, gone) = far_clients(place, self.plan.far, rtt, spread)?;
                self.gone.join(gone);
                all.push((rtt_ms, far));
            }
        }
        Ok(all)
    }

    fn note_far(&mut self, before: &[(u64, Far)], during: &[(u64, Far)]) {
        let pairs = before.iter().zip(during);
        self.out.distant = pairs
            .map(|(&(rtt_ms, before), &(_, during))| Distant {
                rtt_ms,
                tried: during.tried,
                good_before: before.good,
                good: during.good,
                reset: during.reset,
            })
            .collect();
    }

    fn answers(&mut self) -> Result<()> {
        let written = self.ask("stat")?.closed;
        let deadline = Instant::now() + Duration::from_secs(20);
        let had = client::answers(self.to, self.plan.answers, ANSWER, deadline);
        let written = self.ask("stat")?.closed - written;
        let a = &mut self.out.answers;
        a.written += written;
        a.arrived += had.good;
        a.missing += had.missing;
        Ok(())
    }

    /// Waits for what the attack left to go.
    fn leftovers(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let stat = self.ask("census")?;
            let left = |(state, n): (&String, &u64)| (state != "time-wait").then_some(*n);
            self.out.left = stat.states.iter().filter_map(left).sum();
            self.out.counts = stat.counts;
            if self.out.left <= 1 || Instant::now() > end {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
