//! A plan as it is written, and what can be wrong with it: file, line and field are named.

use crate::{
    Error,
    metric::Metric,
    text::{from_str, optional_from_str},
    units,
    workload::{
        Exchange, Settings,
        settings::{
            Coalescing, Device, Direction, Family, Inbound, MAX_CONNECTIONS, MAX_PARALLEL, MTUS,
        },
    },
};
use perimeter::{LockPolicy, Offload};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{fmt::Display, ops::Range, str::FromStr, time::Duration};
use toml::Spanned;

/// The top of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Text {
    pub name: Spanned<String>,
    pub title: String,
    pub asks: String,
    pub note: Option<String>,
    pub published: Option<Spanned<String>>,
    pub order: Option<Spanned<String>>,
    #[serde(deserialize_with = "from_str")]
    pub metric: Metric,
    #[serde(default, deserialize_with = "list_from_str")]
    pub also: Vec<Metric>,
    pub cores: Option<usize>,
    pub relative_to: Option<Spanned<String>>,
    #[serde(default)]
    pub same_axes: bool,
    pub advice: Option<String>,
    pub x: Spanned<AxisText>,
    #[serde(default)]
    pub settings: Overrides,
    pub quick: TimeText,
    pub normal: TimeText,
    pub full: TimeText,
    pub series: Vec<Spanned<SeriesText>>,
}

/// What varies along a figure's x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Number of connections.
    Connections,
    /// Most bytes of one send call.
    WriteSize,
    /// Bytes of equal reads and writes.
    MessageSize,
    /// Bytes of each message of a ping-pong.
    PingPong,
    /// Socket buffers in bytes.
    Buffer,
    /// Maximum transmission unit of every link, in bytes.
    Mtu,
    /// Application threads.
    Threads,
    /// The number that stands for `{}` in the series' organizations.
    Groups,
}

impl Axis {
    /// For an axis label.
    pub fn label(self) -> &'static str {
        match self {
            Axis::Connections => "connections",
            Axis::WriteSize => "write size, bytes",
            Axis::MessageSize => "size of reads and writes, bytes",
            Axis::PingPong => "message size, bytes",
            Axis::Buffer => "socket buffers, bytes",
            Axis::Mtu => "MTU, bytes",
            Axis::Threads => "application threads",
            Axis::Groups => "groups",
        }
    }

    /// What stands behind a value of it: `1 connection`, `6 connections`.
    pub fn of(self, value: u64) -> &'static str {
        match self {
            Axis::Connections if value == 1 => "connection",
            Axis::Connections => "connections",
            Axis::WriteSize => "bytes a write",
            Axis::MessageSize | Axis::PingPong => "bytes a message",
            Axis::Buffer => "bytes of buffer",
            Axis::Mtu => "bytes of MTU",
            Axis::Threads if value == 1 => "thread",
            Axis::Threads => "threads",
            Axis::Groups => "groups",
        }
    }

    /// What it may count from and to.
    pub(super) fn range(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Axis::Connections => 1..=MAX_CONNECTIONS,
            Axis::WriteSize | Axis::MessageSize | Axis::PingPong => 1..=16 << 20,
            Axis::Buffer => 4096..=64 << 20,
            Axis::Mtu => MTUS,
            Axis::Threads => 1..=MAX_PARALLEL,
            Axis::Groups => 1..=1024,
        }
    }
}

/// The x axis.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct AxisText {
    pub setting: Axis,
    pub values: Spanned<Vec<u64>>,
    pub quick: Option<Spanned<Vec<u64>>>,
    #[serde(default)]
    pub log: bool,
}

/// How long, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TimeText {
    #[serde(deserialize_with = "seconds")]
    pub seconds: Duration,
    #[serde(default, deserialize_with = "optional_seconds")]
    pub warm_up: Option<Duration>,
    #[serde(deserialize_with = "repeats")]
    pub repeats: u32,
    /// Of a modelled run: bytes of payload while which is counted, at least
    /// ([`crate::cache::Backend::new`]).
    pub payload: Option<u64>,
}

/// One curve.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SeriesText {
    pub org: Spanned<String>,
    pub label: Option<String>,
    #[serde(rename = "as")]
    pub published: Option<Spanned<String>>,
    /// Factor on the measured seconds.
    pub times: Option<f64>,
    #[serde(default)]
    pub settings: Overrides,
}

/// Settings that differ from the parallel benchmark's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Overrides {
    #[serde(default, deserialize_with = "connections")]
    connections: Option<u32>,
    #[serde(default, deserialize_with = "optional_from_str")]
    device: Option<Device>,
    #[serde(default, deserialize_with = "optional_from_str")]
    family: Option<Family>,
    #[serde(default, deserialize_with = "optional_from_str")]
    direction: Option<Direction>,
    #[serde(default, deserialize_with = "optional_from_str")]
    inbound: Option<Inbound>,
    #[serde(default, deserialize_with = "duration")]
    rtt: Option<Duration>,
    #[serde(default, deserialize_with = "parallel")]
    threads: Option<usize>,
    #[serde(default, deserialize_with = "parallel")]
    nics: Option<usize>,
    #[serde(default, deserialize_with = "mtu")]
    mtu: Option<u32>,
    #[serde(default, deserialize_with = "gbps")]
    link_gbps: Option<f64>,
    #[serde(default, deserialize_with = "size")]
    write_size: Option<usize>,
    #[serde(default, deserialize_with = "size")]
    read_size: Option<usize>,
    #[serde(default, deserialize_with = "buffer")]
    buffer: Option<usize>,
    #[serde(default, deserialize_with = "optional_from_str")]
    coalescing: Option<Coalescing>,
    #[serde(default, deserialize_with = "optional_from_str")]
    exchange: Option<Exchange>,
    #[serde(default, deserialize_with = "datagram")]
    udp: Option<usize>,
    reconnect: Option<bool>,
    #[serde(default, deserialize_with = "optional_from_str")]
    locks: Option<LockPolicy>,
    #[serde(default, deserialize_with = "optional_from_str")]
    offload: Option<Offload>,
    stretch_acks: Option<bool>,
    steering: Option<bool>,
    #[serde(default, deserialize_with = "duration")]
    look_around: Option<Duration>,
    budget: Option<usize>,
    preemptive: Option<bool>,
    snd_lowat: Option<u32>,
    #[serde(default, deserialize_with = "duration")]
    interrupt_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    interrupt_gap: Option<Duration>,
    hand_on: Option<bool>,
    in_place: Option<bool>,
    batch: Option<bool>,
    profile: Option<bool>,
}

impl Overrides {
    /// Puts what is given into `s`.
    pub fn apply(&self, s: &mut Settings) {
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                *to = value.clone();
            }
        }
        if let Some(n) = self.connections {
            s.connections = vec![n];
        }
        put(&mut s.device, &self.device);
        put(&mut s.family, &self.family);
        put(&mut s.direction, &self.direction);
        put(&mut s.inbound, &self.inbound);
        put(&mut s.threads, &self.threads);
        put(&mut s.nics, &self.nics);
        put(&mut s.mtu, &self.mtu);
        put(&mut s.write_size, &self.write_size);
        put(&mut s.read_size, &self.read_size);
        put(&mut s.buffer, &self.buffer);
        put(&mut s.coalescing, &self.coalescing);
        put(&mut s.locks, &self.locks);
        put(&mut s.offload, &self.offload);
        put(&mut s.stretch_acks, &self.stretch_acks);
        put(&mut s.steering, &self.steering);
        put(&mut s.look_around, &self.look_around);
        put(&mut s.budget, &self.budget);
        put(&mut s.preemptive, &self.preemptive);
        put(&mut s.snd_lowat, &self.snd_lowat);
        put(&mut s.interrupt_delay, &self.interrupt_delay);
        put(&mut s.interrupt_gap, &self.interrupt_gap);
        put(&mut s.hand_on, &self.hand_on);
        put(&mut s.in_place, &self.in_place);
        put(&mut s.batch, &self.batch);
        put(&mut s.profile, &self.profile);
        put(&mut s.reconnect, &self.reconnect);
        if self.exchange.is_some() {
            s.exchange = self.exchange;
        }
        if self.udp.is_some() {
            s.udp = self.udp;
        }
        if self.link_gbps.is_some() {
            s.link_gbps = self.link_gbps;
        }
        if self.rtt.is_some() {
            s.rtt = self.rtt;
        }
    }
}

fn list_from_str<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let list = Vec::<String>::deserialize(d)?;
    let parse = |text: &String| text.parse().map_err(D::Error::custom);
    list.iter().map(parse).collect()
}

/// Numbers go through the same parsers as the command line's.
fn by<'de, D, T>(d: D, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Whole(i64),
        Decimal(f64),
        Text(String),
    }
    let text = match Either::deserialize(d)? {
        Either::Whole(n) => n.to_string(),
        Either::Decimal(n) => n.to_string(),
        Either::Text(text) => text,
    };
    parse(&text).map_err(D::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    by(d, units::seconds)
}

fn optional_seconds<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    by(d, units::seconds).map(Some)
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    by(d, units::duration).map(Some)
}

fn gbps<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    by(d, units::gbps).map(Some)
}

fn repeats<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    by(d, |t| {
        Ok(units::whole(t, "the number of repeats", 1..=1000)? as u32)
    })
}

fn connections<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    by(d, crate::workload::settings::connections).map(Some)
}

fn parallel<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    by(d, |t| {
        Ok(units::whole(t, "the number", 1..=MAX_PARALLEL)? as usize)
    })
    .map(Some)
}

fn size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    by(d, |t| {
        Ok(units::whole(t, "the size in bytes", Axis::WriteSize.range())? as usize)
    })
    .map(Some)
}

fn datagram<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    by(d, crate::workload::settings::datagram).map(Some)
}

fn mtu<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    by(d, crate::workload::settings::mtu).map(Some)
}

fn buffer<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    by(d, |t| {
        Ok(units::whole(t, "the buffer in bytes", Axis::Buffer.range())? as usize)
    })
    .map(Some)
}

/// A file being read, for its error messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    /// Name of the file.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
}

impl Reader<'_> {
    /// Reads the file's structure.
    ///
    /// # Errors
    /// [`Error::Input`], one line with file, line and field.
    pub fn read(&self) -> Result<Text, Error> {
        let document = toml::Deserializer::parse(self.text)
            .map_err(|e| self.wrong(e.span(), "", e.message()))?;
        serde_path_to_error::deserialize(document).map_err(|e| {
            // Spans are read as maps with keys of their own, which are nobody's fields.
            let field: Vec<String> = e
                .path()
                .iter()
                .map(ToString::to_string)
                .filter(|s| !s.contains("__serde_spanned") && s != "?")
                .collect();
            let field = field.join(".").replace(".[", "[");
            self.wrong(e.inner().span(), &field, e.inner().message())
        })
    }

    /// An error at a place of the file.
    pub fn wrong(&self, at: Option<Range<usize>>, field: &str, what: &str) -> Error {
        let at = at.map_or(0, |r| r.start).min(self.text.len());
        let line = self.text.as_bytes()[..at]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let field = match field {
            "" => String::new(),
            f => format!("{f}: "),
        };
        Error::Input(format!("{}:{line}: {field}{what}", self.file))
    }

    /// An error about the value `of` of `field`.
    pub fn about<T>(&self, of: &Spanned<T>, field: &str, what: &str) -> Error {
        self.wrong(Some(of.span()), field, what)
    }
}
