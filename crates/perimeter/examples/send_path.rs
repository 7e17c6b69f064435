//! The send path alone: one thread, an event loop over N connections on a memory NIC with an
//! ideal peer, sending the same pages for ever. Prints what a segment costs the stack.
//!
//! `cargo run --release --example send_path -- [organization] [connections] [milliseconds]`

use perimeter::link::mem::{Nic, NicConfig};
use perimeter::{Bytes, Events, Inbound, Interest, Native, Poll, Stack, TcpStream, Token};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let org = args.next().unwrap_or_else(|| "up".to_string());
    let conns: usize = args.next().map_or(Ok(6), |a| a.parse())?;
    let run_ms: u64 = args.next().map_or(Ok(1000), |a| a.parse())?;

    let native = Native::default();
    let config = NicConfig::new(0);
    let host = format!("{}/{}", config.host, config.prefix);
    let first = u32::from(config.host) + 1;
    let (nic, peer) = Nic::new(&native, config);
    let stack = Stack::builder()
        .on_native(native)
        .organization(&org)?
        .inbound(Inbound::Inline)
        .interface(nic, &[&host])?
        .build()?;

    let poll = stack.poll()?;
    let mut streams = Vec::new();
    for i in 0..conns {
        let addr = SocketAddr::new(
            std::net::Ipv4Addr::from(first + (i % 64) as u32).into(),
            5001,
        );
        let s = stack.connect(addr)?;
        s.set_nonblocking(true)?;
        poll.registry().register(&s, Token(i), Interest::WRITABLE)?;
        streams.push(s);
    }
    let page = Bytes::from(vec![7u8; 64 * 1024]);
    let mut events = Events::with_capacity(64);
    let warm = Duration::from_millis(run_ms / 4);
    spin(&poll, &mut events, &streams, &page, warm)?;

    let (s0, p0, t0) = (stack.stats(), peer.counts(), Instant::now());
    let app = spin(
        &poll,
        &mut events,
        &streams,
        &page,
        Duration::from_millis(run_ms),
    )?;
    let wall = t0.elapsed().as_nanos() as f64;
    let (s1, p1) = (stack.stats(), peer.counts());
    let _ = (p0, p1);
    let bytes = (s1.count("tx_bytes") - s0.count("tx_bytes")) as f64;
    let segs = bytes / 1448.0;
    let peer_ns = (s1.peer_ns - s0.peer_ns) as f64;
    let idle = (s1.count("idle_ns") - s0.count("idle_ns")) as f64;
    println!(
        "{org}, {conns} connections: {:.1} Gb/s, per 1448-byte segment: wall {:.1} ns, stack {:.1}, \
         peer {:.1}, idle {:.1}, application {:.1}",
        bytes * 8.0 / wall,
        wall / segs,
        (wall - peer_ns - idle - app) / segs,
        peer_ns / segs,
        idle / segs,
        app / segs,
    );
    let mut acked: Vec<u64> = peer.flows().iter().map(|f| f.acked).collect();
    acked.sort_unstable();
    println!(
        "bytes acknowledged by connection: least {}, median {}, most {}",
        acked.first().unwrap_or(&0),
        acked.get(acked.len() / 2).unwrap_or(&0),
        acked.last().unwrap_or(&0),
    );
    if std::env::var_os("DUMP").is_some() {
        for c in stack.connections().iter().take(200) {
            let t = &c.tcp;
            println!(
                "{:?} acked {} queued {} unacked {} cwnd {} wnd {} rto {:?} backoff {} {:?}",
                c.id,
                c.acked,
                c.snd_queued,
                t.unacked,
                t.snd_cwnd,
                t.snd_wnd,
                t.rto,
                t.backoff,
                t.ca_state
            );
        }
    }
    Ok(())
}

/// Runs the loop for `time`; yields the time spent outside the stack, ns.
fn spin(
    poll: &Poll,
    events: &mut Events,
    streams: &[TcpStream],
    page: &Bytes,
    time: Duration,
) -> std::io::Result<f64> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        poll.poll(events, Some(Duration::from_millis(10)))?;
        for e in events.iter() {
            let s = &streams[e.token().0];
            // Until the buffer is full.
            while s
                .send_zero_copy(std::slice::from_ref(page))
                .is_ok_and(|n| n == page.len())
            {}
        }
    }
    Ok(0.0)
}
