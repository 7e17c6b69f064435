//! The server's role.

use super::wire::{
    bytes_of, counts, poll_state, read_cookie, read_json, read_state, results, write_json,
    write_state,
};
use super::{Data, LIMIT, Net, Params, Report, Seen, bad, drain, pump, state, total};
use std::io::{self, ErrorKind};
use std::time::Instant;

/// Serves one test.
///
/// # Errors
/// As the network says, or the client breaks the protocol.
pub fn server<N: Net>(net: &mut N) -> io::Result<Report> {
    server_with(net, &mut |_| {})
}

/// As [`server`]; `seen` is told of the data.
///
/// # Errors
/// As [`server`].
pub fn server_with<N: Net>(net: &mut N, seen: Seen<'_>) -> io::Result<Report> {
    let mut control = net.accept()?;
    let cookie = read_cookie(net, &mut control)?;
    write_state(net, &mut control, state::PARAM_EXCHANGE)?;
    let params = Params::from_json(&read_json(net, &mut control)?)?;
    write_state(net, &mut control, state::CREATE_STREAMS)?;
    let mut streams = Vec::new();
    while streams.len() < params.parallel {
        let mut stream = net.accept()?;
        if read_cookie(net, &mut stream)? == cookie {
            streams.push(Data::new(stream));
        } else {
            write_state(net, &mut stream, state::ACCESS_DENIED)?;
        }
    }
    write_state(net, &mut control, state::TEST_START)?;
    write_state(net, &mut control, state::TEST_RUNNING)?;
    let start = Instant::now();
    transfer(net, &mut control, &mut streams, &params, seen)?;
    let time = start.elapsed();
    if params.reverse {
        // The client may sit in a read of a whole block: the end of the stream gets it out.
        for d in &mut streams {
            d.stream = None;
        }
    }
    write_state(net, &mut control, state::EXCHANGE_RESULTS)?;
    let peer = read_json(net, &mut control)?;
    let peer_bytes = bytes_of(&peer);
    if !params.reverse {
        // The end was told on another connection: what was sent before may still be on its way.
        let end = Instant::now() + LIMIT;
        let mut buf = vec![0; params.len];
        while total(&streams) < peer_bytes && Instant::now() < end {
            if !drain(&mut streams, &mut buf, seen)? {
                net.wait()?;
            }
        }
    }
    write_json(net, &mut control, &results(&counts(&streams), time))?;
    write_state(net, &mut control, state::DISPLAY_RESULTS)?;
    match read_state(net, &mut control)? {
        state::IPERF_DONE => {}
        other => return Err(bad(format!("state {other} instead of the end"))),
    }
    Ok(Report {
        bytes: total(&streams),
        params,
        peer_bytes,
        time,
        peer,
    })
}

/// Until the client says that it is over.
fn transfer<N: Net>(
    net: &mut N,
    control: &mut N::Stream,
    streams: &mut [Data<N::Stream>],
    params: &Params,
    seen: Seen<'_>,
) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    let mut block = vec![0x5a; params.len];
    while Instant::now() < end {
        match poll_state(control)? {
            Some(state::TEST_END) => return Ok(()),
            Some(state::CLIENT_TERMINATE) => return Err(bad("the client gave up")),
            Some(other) => return Err(bad(format!("state {other} during the transfer"))),
            None => {}
        }
        let moved = if params.reverse {
            // As much as a turn holds; the client says when it has enough.
            let mut turn = 16 * params.len as u64;
            pump(streams, &mut block, &mut turn, seen)?
        } else {
            drain(streams, &mut block, seen)?
        };
        if !moved {
            net.wait()?;
        }
    }
    Err(ErrorKind::TimedOut.into())
}
