//! Plans: each figure and table as a file that says what to run.
//!
//! A plan is TOML; those of the papers ship inside the program ([`embedded`]), a user's own are
//! read from files. [`Plan::cells`] turns one into configurations for a [`Mode`].

mod mode;
mod text;

pub use mode::Mode;
pub use text::Axis;

use crate::{
    Error, cache, counted, files,
    metric::Metric,
    organizations::Organization,
    ours,
    published::{Experiment, Order, published},
    session::{self, Backend, Slot},
    workload::{Configuration, Device, Exchange, Settings},
};
use perimeter::Offload;
use std::{collections::HashSet, fmt, path::Path, time::Duration};
use text::{Overrides, Reader, SeriesText, Text, TimeText};
use toml::Spanned;

/// Most bytes of a plan's file.
const LONGEST: u64 = 1 << 20;
/// Most values of an axis, and most series.
const MOST: usize = 64;
/// Shortest and longest warm-up that isn't asked for; between them it is a sixth of the run.
const WARM_UP: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// One curve of a plan.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in figures and rows, unique within the plan.
    pub label: String,
    /// The published series that it is the counterpart of.
    pub published: Option<String>,
    /// Organization, with `{}` where the axis' number goes and `{cores}` where that of the cores does.
    org: String,
    times: f64,
    settings: Overrides,
}

impl Series {
    /// Its organization with `{}` where the axis' number goes.
    pub fn pattern(&self) -> &str {
        &self.org
    }

    /// Its organization at one point of the axis, on this machine.
    ///
    /// # Errors
    /// A line on what is wrong with its name.
    pub fn organization(&self, x: u64) -> Result<Organization, String> {
        self.organization_on(crate::host::cores(), x)
    }

    /// The same on a machine of `cores` cores.
    fn organization_on(&self, cores: usize, x: u64) -> Result<Organization, String> {
        crate::backends::parse(&on_cores(&self.org, cores).replace("{}", &x.to_string()))
    }
}

/// `text` of a plan with `{cores}` filled in.
fn on_cores(text: &str, cores: usize) -> String {
    text.replace("{cores}", &cores.to_string())
}

/// One configuration of a plan.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Index of its series.
    pub series: usize,
    /// Its place on the x axis.
    pub x: u64,
    /// What runs, as the workload takes it; one organization, one number of connections.
    pub settings: Settings,
    /// The same as backends take it.
    pub configuration: Configuration,
    /// For how long.
    pub slot: Slot,
    /// For how many bytes of payload, if it is modelled.
    pub modelled: Option<u64>,
    /// The processor counts what it does.
    pub counted: bool,
    /// It makes listeners, and no connections.
    pub listening: bool,
}

impl Cell {
    /// Roughly how long one run takes, preparation and teardown included.
    pub fn estimate(&self) -> Duration {
        let set_up = match self.modelled {
            Some(_) => cache::first_guess(&self.configuration),
            None => session::first_guess(&self.configuration),
        };
        let (connections, grown) = (self.configuration.connections, self.settings.grown());
        self.slot.likely_warm_up(connections, grown) + self.slot.measure + set_up
    }

    /// What runs it.
    pub fn backend(&self) -> Box<dyn Backend> {
        match self.modelled {
            Some(payload) => Box::new(cache::Backend::new(payload)),
            None if self.listening => Box::new(ours::Listening),
            None => {
                let backend = crate::backends::backend_for(&self.settings, &self.configuration);
                match self.counted {
                    true => Box::new(counted::Backend::new(backend)),
                    false => backend,
                }
            }
        }
    }
}

/// A figure or a table.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// What it is.
    pub title: String,
    /// The question that it asks.
    pub asks: String,
    /// What a reader of its figure has to know.
    pub note: Option<String>,
    /// What the papers published about it.
    pub published: Option<&'static Experiment>,
    /// The published order of locks that recorded sends of its organizations are shown beside.
    pub order: Option<&'static Order>,
    /// What the figure shows.
    pub metric: Metric,
    /// What else the table shows.
    pub also: Vec<Metric>,
    /// Cores that the published figure was measured on.
    pub cores: Option<usize>,
    /// Index of the series that others are also shown relative to.
    pub relative_to: Option<usize>,
    /// Whether published and measured values are of a size, so that they share a linear axis; else
    /// theirs is logarithmic.
    pub same_axes: bool,
    /// The load that the plan is evidence for, if it is to advise on an organization.
    pub advice: Option<String>,
    /// What varies along the x axis.
    pub axis: Axis,
    /// Whether the x axis is logarithmic.
    pub log: bool,
    /// The curves.
    pub series: Vec<Series>,
    /// The file's text. Runs are stored with [`Plan::text_here`].
    pub text: String,
    values: Vec<u64>,
    quick_values: Vec<u64>,
    settings: Overrides,
    times: [TimeText; 3],
}

impl Plan {
    /// Reads a plan from `text`; `file` names it in errors.
    ///
    /// # Errors
    /// [`Error::Input`] with file, line and field.
    pub fn parse(file: &str, text: &str) -> Result<Plan, Error> {
        let reader = Reader { file, text };
        let t = reader.read()?;
        let plan = Plan {
            name: name(&reader, &t.name)?,
            published: experiment(&reader, t.published.as_ref())?,
            order: order(&reader, t.order.as_ref())?,
            relative_to: None,
            axis: t.x.get_ref().setting,
            log: t.x.get_ref().log,
            values: values(&reader, &t, "x.values", &t.x.get_ref().values)?,
            quick_values: match &t.x.get_ref().quick {
                Some(list) => values(&reader, &t, "x.quick", list)?,
                None => t.x.get_ref().values.get_ref().clone(),
            },
            series: series(&reader, &t)?,
            title: t.title,
            asks: t.asks,
            note: t.note,
            metric: t.metric,
            also: t.also,
            cores: t.cores,
            same_axes: t.same_axes,
            advice: t.advice,
            settings: t.settings,
            times: [t.quick, t.normal, t.full],
            text: text.into(),
        };
        let relative_to = match &t.relative_to {
            None => None,
            Some(label) => {
                let is = |s: &Series| s.label == *label.get_ref();
                let found = plan.series.iter().position(is);
                Some(found.ok_or_else(|| {
                    let what = format!("no series has the label `{}`", label.get_ref());
                    reader.about(label, "relative-to", &what)
                })?)
            }
        };
        plan.check(&reader, &t.series)?;
        let payload = |t: &TimeText| t.payload.is_some_and(|bytes| bytes > 0);
        let modelled = plan.metric.is_modelled();
        if plan.times.iter().any(|t| payload(t) != modelled) {
            let what = "payload goes with modelled metrics: quick, normal and full have it, or \
                        none has";
            return Err(reader.wrong(None, "metric", what));
        }
        Ok(Plan {
            relative_to,
            ..plan
        })
    }

    /// Reads a plan's file.
    ///
    /// # Errors
    /// As [`Plan::parse`], or what the system says about the file.
    pub fn load(path: &Path) -> Result<Plan, Error> {
        let text = files::read(path, LONGEST, "plan")?;
        Plan::parse(&path.display().to_string(), &text)
    }

    /// The file's text as it is stored with runs of this machine: whoever reads them elsewhere gets
    /// the organizations that ran.
    pub fn text_here(&self) -> String {
        on_cores(&self.text, crate::host::cores())
    }

    /// Every cell must be a good configuration, and no two the same.
    fn check(&self, reader: &Reader<'_>, texts: &[Spanned<SeriesText>]) -> Result<(), Error> {
        for mode in [Mode::Normal, Mode::Quick] {
            for cell in self.cells(mode, None)? {
                let text = &texts[cell.series];
                let field = format!("series[{}]", cell.series);
                let wrong = |e: &dyn fmt::Display| reader.about(text, &field, &e.to_string());
                cell.settings.check().map_err(|e| wrong(&e))?;
            }
        }
        Ok(())
    }

    /// The x values of a mode.
    pub fn values(&self, mode: Mode) -> &[u64] {
        match mode {
            Mode::Quick => &self.quick_values,
            Mode::Normal | Mode::Full => &self.values,
        }
    }

    /// How often each cell runs.
    pub fn repeats(&self, mode: Mode) -> u32 {
        self.time(mode).repeats
    }

    fn time(&self, mode: Mode) -> &TimeText {
        match mode {
            Mode::Quick => &self.times[0],
            Mode::Normal => &self.times[1],
            Mode::Full => &self.times[2],
        }
    }

    /// The configurations of a mode, by x and then series. `device` replaces the plan's, but for
    /// the host's own sockets.
    ///
    /// # Errors
    /// [`Error::Input`] if an organization's name is wrong at one of the values.
    pub fn cells(&self, mode: Mode, device: Option<Device>) -> Result<Vec<Cell>, Error> {
        self.cells_from(mode, device, &Settings::default())
    }

    /// The same on a machine of `cores` cores and `nics` NICs, unless the plan says how many
    /// threads and NICs there are.
    ///
    /// # Errors
    /// As there.
    pub fn cells_on(&self, mode: Mode, cores: usize, nics: usize) -> Result<Vec<Cell>, Error> {
        let base = Settings {
            threads: cores,
            nics,
            ..Settings::default()
        };
        self.cells_from(mode, None, &base)
    }

    fn cells_from(
        &self,
        mode: Mode,
        device: Option<Device>,
        base: &Settings,
    ) -> Result<Vec<Cell>, Error> {
        let mut cells = Vec::new();
        for &x in self.values(mode) {
            for index in 0..self.series.len() {
                cells.push(self.cell((mode, device, base), index, x)?);
            }
        }
        Ok(cells)
    }

    fn cell(
        &self,
        (mode, device, base): (Mode, Option<Device>, &Settings),
        index: usize,
        x: u64,
    ) -> Result<Cell, Error> {
        let series = &self.series[index];
        let organization = series
            .organization_on(base.threads, x)
            .map_err(Error::Input)?;
        let mut settings = Settings {
            organizations: vec![organization.clone()],
            connections: vec![1],
            repeat: 1,
            // The papers' machines planned segment by segment, slept at once and took all that came, and
            // what was recorded did: a plan that wants anything else says so.
            offload: Offload::Off,
            look_around: Duration::ZERO,
            budget: 0,
            ..base.clone()
        };
        self.settings.apply(&mut settings);
        series.settings.apply(&mut settings);
        match self.axis {
            Axis::Connections => settings.connections = vec![x as u32],
            Axis::WriteSize => settings.write_size = x as usize,
            Axis::MessageSize => (settings.write_size, settings.read_size) = (x as _, x as _),
            Axis::PingPong => {
                settings.exchange = Some(Exchange {
                    request: x as usize,
                    response: x as usize,
                });
            }
            Axis::Buffer => settings.buffer = x as usize,
            Axis::Mtu => settings.mtu = x as u32,
            Axis::Threads => settings.threads = x as usize,
            Axis::Groups => {}
        }
        if let Some(device) = device.filter(|_| organization.has_device()) {
            settings.device = device;
            if device.is_to_kernel() {
                // The kernel decides when it wakes whom.
                settings.interrupt_delay = Duration::ZERO;
                settings.interrupt_gap = Duration::ZERO;
            }
        }
        let time = self.time(mode);
        settings.seconds = time.seconds.mul_f64(series.times);
        let warm_up = (settings.seconds / 6).clamp(WARM_UP.0, WARM_UP.1);
        let slot = Slot::new(time.warm_up.unwrap_or(warm_up), settings.seconds);
        Ok(Cell {
            series: index,
            x,
            configuration: Configuration {
                threads: settings.threads_of(&organization),
                connections: settings.connections[0],
                organization,
            },
            slot: match mode {
                Mode::Quick => slot,
                Mode::Normal | Mode::Full => slot.until_grown(),
            },
            modelled: time.payload,
            listening: self.metric.is_of_listeners(),
            counted: self.metric.is_counted() || self.also.iter().any(|m| m.is_counted()),
            settings,
        })
    }

    /// Roughly how long the plan takes.
    pub fn estimate(&self, mode: Mode) -> Duration {
        let cells = self.cells(mode, None).unwrap_or_default();
        cells.iter().map(Cell::estimate).sum::<Duration>() * self.repeats(mode)
    }
}

fn name(reader: &Reader<'_>, name: &Spanned<String>) -> Result<String, Error> {
    let text = name.get_ref();
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if text.is_empty() || text.len() > 64 || !text.bytes().all(good) {
        let what = format!("`{text}` is no name of letters, digits and hyphens");
        return Err(reader.about(name, "name", &what));
    }
    if text == "all" {
        return Err(reader.about(name, "name", "`all` stands for every plan"));
    }
    Ok(text.clone())
}

fn experiment(
    reader: &Reader<'_>,
    id: Option<&Spanned<String>>,
) -> Result<Option<&'static Experiment>, Error> {
    let Some(id) = id else { return Ok(None) };
    let found = published().experiment(id.get_ref());
    found.map(Some).ok_or_else(|| {
        let known: Vec<&str> = published().experiments.iter().map(|e| &*e.id).collect();
        let what = format!(
            "nothing is published as `{}` (known: {})",
            id.get_ref(),
            known.join(", ")
        );
        reader.about(id, "published", &what)
    })
}

fn order(
    reader: &Reader<'_>,
    id: Option<&Spanned<String>>,
) -> Result<Option<&'static Order>, Error> {
    let Some(id) = id else { return Ok(None) };
    let found = published().order(id.get_ref());
    found.map(Some).ok_or_else(|| {
        let what = format!("no order of locks is published as `{}`", id.get_ref());
        reader.about(id, "order", &what)
    })
}

fn values(
    reader: &Reader<'_>,
    text: &Text,
    field: &str,
    list: &Spanned<Vec<u64>>,
) -> Result<Vec<u64>, Error> {
    let wrong = |what: String| Err(reader.about(list, field, &what));
    let values = list.get_ref();
    if values.is_empty() || values.len() > MOST {
        return wrong(format!(
            "{} values; there must be 1 to {MOST}",
            values.len()
        ));
    }
    let range = text.x.get_ref().setting.range();
    if let Some(v) = values.iter().find(|v| !range.contains(v)) {
        return wrong(format!(
            "{v} is not from {} to {}",
            range.start(),
            range.end()
        ));
    }
    if !values.is_sorted_by(|a, b| a < b) {
        return wrong("the values must ascend".into());
    }
    let all = text.x.get_ref().values.get_ref();
    if let Some(v) = values.iter().find(|v| !all.contains(v)) {
        return wrong(format!("{v} is none of x.values"));
    }
    Ok(values.clone())
}

fn series(reader: &Reader<'_>, text: &Text) -> Result<Vec<Series>, Error> {
    if text.series.is_empty() || text.series.len() > MOST {
        let what = format!("{} series; there must be 1 to {MOST}", text.series.len());
        return Err(reader.wrong(None, "series", &what));
    }
    let published = experiment(reader, text.published.as_ref())?;
    let mut labels = HashSet::new();
    let mut list = Vec::new();
    for (i, spanned) in text.series.iter().enumerate() {
        let s = spanned.get_ref();
        let field = |name: &str| format!("series[{i}].{name}");
        let one = Series {
            label: s.label.clone().unwrap_or_else(|| s.org.get_ref().clone()),
            published: s.published.as_ref().map(|p| p.get_ref().clone()),
            org: s.org.get_ref().clone(),
            times: s.times.unwrap_or(1.0),
            settings: s.settings.clone(),
        };
        if !labels.insert(one.label.clone()) {
            let what = format!("there are two series `{}`; give one a label", one.label);
            return Err(reader.about(spanned, &field("label"), &what));
        }
        if let Some(name) = &s.published
            && !published.is_some_and(|e| e.knows(name.get_ref()))
        {
            let what = format!("no published series is called `{}`", name.get_ref());
            return Err(reader.about(name, &field("as"), &what));
        }
        if !(0.01..=100.0).contains(&one.times) {
            return Err(reader.about(spanned, &field("times"), "must be from 0.01 to 100"));
        }
        let takes = one.org.contains("{}");
        if takes != (text.x.get_ref().setting == Axis::Groups) {
            let what = match takes {
                true => "`{}` stands for the value of x.setting = \"groups\"",
                false => "x.setting = \"groups\" needs `{}` where its value goes",
            };
            return Err(reader.about(&s.org, &field("org"), what));
        }
        for &x in text.x.get_ref().values.get_ref() {
            one.organization(x)
                .map_err(|what| reader.about(&s.org, &field("org"), &what))?;
        }
        list.push(one);
    }
    Ok(list)
}

macro_rules! embed {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../plans/", $name, ".toml")))),+]
    };
}

/// The plans of the papers, in the order of a report.
const EMBEDDED: &[(&str, &str)] = embed![
    "throughput",
    "ports",
    "linux",
    "groups",
    "contention",
    "locks",
    "cache",
    "cache-counted",
    "scheduler",
    "interrupts",
    "one-connection",
    "lock-cost",
    "coarse-locks",
    "dispatch",
    "threads",
    "buffers",
    "jumbo",
    "offload",
    "listen",
    "receive",
    "udp",
    "pef-large",
    "pef-small",
    "pef-connections",
    "pef-messages",
    "pef-writes",
    "pef-latency",
    "pef-parts",
    "entry-modes",
    "streams",
    "requests",
    "connects",
    "both-ends",
    "both-ends-small",
    "peers",
    "peers-tap",
    "peers-tap-receive",
];

/// The plans that ship with the program.
pub fn embedded() -> Vec<Plan> {
    EMBEDDED
        .iter()
        .map(|(name, text)| {
            Plan::parse(&format!("{name}.toml"), text)
                .unwrap_or_else(|e| panic!("an embedded plan: {e}"))
        })
        .collect()
}

#[cfg(test)]
mod tests;
