//! The client's role.

use super::wire::{
    bytes_of, counts, make_cookie, read_exact, read_json, read_state, results, write_all,
    write_json, write_state,
};
use super::{Data, LIMIT, Net, Params, Report, Seen, bad, drain, pump, state, total, unfinished};
use serde_json::Value;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Runs one test against a server.
///
/// # Errors
/// As the network says, or the server refuses or breaks the protocol.
pub fn client<N: Net>(net: &mut N, params: &Params) -> io::Result<Report> {
    client_with(net, params, &mut |_| {})
}

/// As [`client`]; `seen` is told of the data.
///
/// # Errors
/// As [`client`].
pub fn client_with<N: Net>(net: &mut N, params: &Params, seen: Seen<'_>) -> io::Result<Report> {
    let cookie = make_cookie();
    let mut control = net.connect()?;
    write_all(net, &mut control, &cookie)?;
    let mut streams = Vec::new();
    let mut time = Duration::ZERO;
    let mut peer = Value::Null;
    loop {
        match next_state(net, &mut control, &mut streams, params.reverse, seen)? {
            state::PARAM_EXCHANGE => write_json(net, &mut control, &params.to_json())?,
            state::CREATE_STREAMS => {
                for _ in 0..params.parallel {
                    let mut stream = net.connect()?;
                    write_all(net, &mut stream, &cookie)?;
                    streams.push(Data::new(stream));
                }
            }
            state::TEST_START => {}
            state::TEST_RUNNING => {
                let start = Instant::now();
                transfer(net, &mut streams, params, seen)?;
                time = start.elapsed();
                write_state(net, &mut control, state::TEST_END)?;
            }
            state::EXCHANGE_RESULTS => {
                write_json(net, &mut control, &results(&counts(&streams), time))?;
                peer = read_json(net, &mut control)?;
            }
            state::DISPLAY_RESULTS => {
                write_state(net, &mut control, state::IPERF_DONE)?;
                let (bytes, peer_bytes) = (total(&streams), bytes_of(&peer));
                return Ok(Report {
                    params: params.clone(),
                    bytes,
                    peer_bytes,
                    time,
                    peer,
                });
            }
            state::ACCESS_DENIED => return Err(bad("the server is busy")),
            state::SERVER_TERMINATE => return Err(bad("the server ends")),
            state::SERVER_ERROR => {
                let mut codes = [0; 8];
                read_exact(net, &mut control, &mut codes)?;
                return Err(bad(format!("the server failed: {codes:?}")));
            }
            other => return Err(bad(format!("unexpected state {other}"))),
        }
    }
}

/// Waits for the next state. A server that sends may be stuck in a write until it is read from.
fn next_state<N: Net>(
    net: &mut N,
    control: &mut N::Stream,
    streams: &mut [Data<N::Stream>],
    reverse: bool,
    seen: Seen<'_>,
) -> io::Result<i8> {
    if !reverse || streams.is_empty() {
        return read_state(net, control);
    }
    let end = Instant::now() + LIMIT;
    let mut buf = vec![0; 64 * 1024];
    while Instant::now() < end {
        if let Some(s) = super::wire::poll_state(control)? {
            return Ok(s);
        }
        if !drain(streams, &mut buf, seen)? {
            net.wait()?;
        }
    }
    Err(ErrorKind::TimedOut.into())
}

fn transfer<N: Net>(
    net: &mut N,
    streams: &mut [Data<N::Stream>],
    params: &Params,
    seen: Seen<'_>,
) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    let mut left = params.bytes;
    let mut block = vec![0x5a; params.len];
    while Instant::now() < end {
        let moved = if params.reverse {
            let moved = drain(streams, &mut block, seen)?;
            left = params.bytes.saturating_sub(total(streams));
            moved
        } else {
            pump(streams, &mut block, &mut left, seen)?
        };
        if left == 0 && !unfinished(streams) {
            return Ok(());
        }
        if !moved {
            net.wait()?;
        }
    }
    Err(ErrorKind::TimedOut.into())
}
