//! Socket options: Linux's levels, names, sizes and units on one side, [`Opt`] on the other.

use std::time::Duration;

use crate::backend::{Errno, Opt, Result};
use crate::shell::{Shell, Socket};
use crate::tcp_info;

/// Linux's `SO_MEMINFO`.
pub const SO_MEMINFO: i32 = 55;
/// Linux's `TCP_CC_INFO`.
pub const TCP_CC_INFO: i32 = 26;
/// Linux's `TCP_INQ`.
const TCP_INQ: i32 = 36;
/// Linux's smallest send buffer, halved: what `SO_SNDBUF` raises lesser requests to.
const LEAST_BUFFER: i32 = 2304;

/// Options that are one `int` and go straight to the backend.
const PLAIN: &[(i32, i32, Opt)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, Opt::ReuseAddr),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, Opt::ReusePort),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, Opt::KeepAlive),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, Opt::OobInline),
    (libc::SOL_SOCKET, libc::SO_SNDBUF, Opt::SendBuffer),
    (libc::SOL_SOCKET, libc::SO_RCVBUF, Opt::ReceiveBuffer),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Opt::ReceiveLowat),
    (libc::SOL_TCP, libc::TCP_NODELAY, Opt::NoDelay),
    (libc::SOL_TCP, libc::TCP_CORK, Opt::Cork),
    (libc::SOL_TCP, libc::TCP_MAXSEG, Opt::MaxSegment),
    (libc::SOL_TCP, libc::TCP_USER_TIMEOUT, Opt::UserTimeout),
    (libc::SOL_TCP, libc::TCP_KEEPIDLE, Opt::KeepIdle),
    (libc::SOL_TCP, libc::TCP_KEEPINTVL, Opt::KeepInterval),
    (libc::SOL_TCP, libc::TCP_KEEPCNT, Opt::KeepCount),
    (libc::SOL_TCP, libc::TCP_QUICKACK, Opt::QuickAck),
    (libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, Opt::DeferAccept),
    (libc::SOL_TCP, libc::TCP_SYNCNT, Opt::SynCount),
    (libc::SOL_TCP, libc::TCP_LINGER2, Opt::Linger2),
    (libc::SOL_TCP, libc::TCP_WINDOW_CLAMP, Opt::WindowClamp),
    (libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT, Opt::NotSentLowat),
    (libc::SOL_TCP, TCP_INQ, Opt::Inq),
    (libc::SOL_IP, libc::IP_TOS, Opt::Tos),
    (libc::SOL_IP, libc::IP_TTL, Opt::Ttl),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER, Opt::MtuDiscover),
    (libc::SOL_IP, libc::IP_RECVERR, Opt::RecvErr),
];

fn plain(level: i32, name: i32) -> Result<Opt> {
    let found = PLAIN.iter().find(|(l, n, _)| (*l, *n) == (level, name));
    found.map(|(_, _, opt)| *opt).ok_or(unknown(level))
}

/// What Linux says to an option or a level that it doesn't have.
fn unknown(level: i32) -> Errno {
    Errno(match level {
        libc::SOL_SOCKET | libc::SOL_TCP | libc::SOL_IP => libc::ENOPROTOOPT,
        _ => libc::EOPNOTSUPP,
    })
}

/// Reads an option: the value's bytes, cut to `room` as Linux cuts.
pub fn get(shell: &Shell, socket: &Socket, level: i32, name: i32, room: usize) -> Result<Vec<u8>> {
    let backend = shell.backend();
    let id = socket.id;
    let whole = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_TYPE) => int(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(socket.domain()),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => int(i32::from(socket.is_listening())),
        (libc::SOL_SOCKET, libc::SO_ERROR) => int(backend.take_error(id).map_or(0, |e| e.0)),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let linger = backend.linger(id)?;
            let seconds = linger.map_or(0, |d| i32::try_from(d.as_secs()).unwrap_or(i32::MAX));
            [int(i32::from(linger.is_some())), int(seconds)].concat()
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => timeval(socket.receive_timeout()),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => timeval(socket.send_timeout()),
        (libc::SOL_SOCKET, SO_MEMINFO) => tcp_info::meminfo(&backend.memory(id)?),
        (libc::SOL_TCP, libc::TCP_INFO) => tcp_info::layout(&backend.info(id)?),
        // Neither CUBIC nor NewReno has anything to tell: a value of no length, as in Linux.
        (libc::SOL_TCP, TCP_CC_INFO) => Vec::new(),
        (libc::SOL_TCP, libc::TCP_CONGESTION) => {
            let mut name = backend.congestion(id)?.into_bytes();
            name.resize(16, 0);
            name
        }
        _ => {
            let value = backend.option(id, plain(level, name)?)?;
            let doubled =
                level == libc::SOL_SOCKET && (name == libc::SO_SNDBUF || name == libc::SO_RCVBUF);
            // Linux reports the limit with its own overhead, twice what was asked for.
            int(if doubled {
                value.saturating_mul(2)
            } else {
                value
            })
        }
    };
    // ip(7): a short buffer gets a small number as one octet.
    if level == libc::SOL_IP && (1..4).contains(&room) && whole[1..4] == [0, 0, 0] {
        return Ok(vec![whole[0]]);
    }
    Ok(whole[..whole.len().min(room)].to_vec())
}

/// Sets an option from the caller's bytes.
pub fn set(shell: &Shell, socket: &Socket, level: i32, name: i32, value: &[u8]) -> Result<()> {
    let backend = shell.backend();
    let id = socket.id;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let (on, seconds) = (word(value, 0)?, word(value, 4)?);
            let seconds = u64::try_from(seconds).unwrap_or(0);
            backend.set_linger(id, (on != 0).then(|| Duration::from_secs(seconds)))
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            socket.set_receive_timeout(from_timeval(value)?);
            Ok(())
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            socket.set_send_timeout(from_timeval(value)?);
            Ok(())
        }
        (libc::SOL_TCP, libc::TCP_CONGESTION) => {
            let name = value.split(|&b| b == 0).next().unwrap_or_default();
            let name = std::str::from_utf8(name).map_err(|_| Errno(libc::ENOENT))?;
            backend.set_congestion(id, name)
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {
            let bytes = word(value, 0)?.max(LEAST_BUFFER);
            backend.set_option(id, plain(level, name)?, bytes)
        }
        _ => {
            let opt = plain(level, name)?;
            // ip(7): these take an octet as well as an int.
            let number = match value {
                [octet, ..] if level == libc::SOL_IP && value.len() < 4 => i32::from(*octet),
                _ => word(value, 0)?,
            };
            backend.set_option(id, opt, number)
        }
    }
}

fn int(value: i32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// The `int` at `offset`, `EINVAL` when the value is too short for it.
fn word(value: &[u8], offset: usize) -> Result<i32> {
    let bytes = value.get(offset..offset + 4).ok_or(Errno(libc::EINVAL))?;
    Ok(i32::from_ne_bytes(
        bytes.try_into().map_err(|_| Errno(libc::EINVAL))?,
    ))
}

fn timeval(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    [seconds, i64::from(time.subsec_micros())]
        .iter()
        .flat_map(|v| v.to_ne_bytes())
        .collect()
}

/// A `struct timeval`; zero is no timeout.
fn from_timeval(value: &[u8]) -> Result<Option<Duration>> {
    let half = |at: usize| -> Result<i64> {
        let bytes = value.get(at..at + 8).ok_or(Errno(libc::EINVAL))?;
        Ok(i64::from_ne_bytes(
            bytes.try_into().map_err(|_| Errno(libc::EINVAL))?,
        ))
    };
    let (seconds, micros) = (half(0)?, half(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        + Duration::from_micros(micros.unsigned_abs());
    Ok((!time.is_zero()).then_some(time))
}
