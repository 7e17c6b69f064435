//! Applications whose threads block.

use crate::content::Histogram;
use crate::run::{Host, spawn};
use crate::scenario::Workload;
use crate::script::{HELLO, How, Machine, Need, Parts, Step, WRITERS, drain, pour};
use perimeter::{Stack, TcpListener, TcpStream};
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Runs the client's threads to their end.
pub fn clients(host: &Arc<Host>, stack: &Stack) {
    let threads = host.sc.threads();
    let mut joins = Vec::new();
    for t in 0..threads {
        let (h, stack) = (host.clone(), stack.clone());
        joins.push(spawn(&host.p, &format!("client-{t}"), Some(t), move || {
            for conn in (t..h.sc.connections()).step_by(threads) {
                let s = stack
                    .connect(h.server_addr(conn))
                    .map_err(|e| format!("connection {conn} can't be opened: {e}"))?;
                let mut m = Machine::client(&h.sc, &h.ledger, conn);
                one(&h, &mut m, s)?;
                h.ledger.finished.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }));
    }
    for j in joins {
        j.join().expect("a panic would have ended the run");
    }
}

/// Runs the server's threads until they have served all connections.
pub fn servers(host: &Arc<Host>, listener: TcpListener) {
    let listener = Arc::new(listener);
    let taken = Arc::new(AtomicUsize::new(0));
    let mut joins = Vec::new();
    for t in 0..host.sc.threads() {
        let (h, listener, taken) = (host.clone(), listener.clone(), taken.clone());
        joins.push(spawn(&host.p, &format!("server-{t}"), Some(t), move || {
            while taken.fetch_add(1, Ordering::Relaxed) < h.sc.connections() {
                let (s, _) = listener.accept().map_err(|e| format!("accept: {e}"))?;
                let mut m = Machine::server(&h.sc, &h.ledger);
                one(&h, &mut m, s)?;
                h.ledger.finished.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }));
    }
    for j in joins {
        j.join().expect("a panic would have ended the run");
    }
}

/// One connection from its introduction to its end.
fn one(h: &Arc<Host>, m: &mut Machine, s: TcpStream) -> Result<(), String> {
    if h.sc.seed.is_multiple_of(3) {
        // Longer than any run of losses: closing waits until all is acknowledged.
        let linger = Some(Duration::from_secs(100));
        s.set_linger(linger).map_err(|e| format!("linger: {e}"))?;
    }
    let s = Arc::new(s);
    let mut looks = 0;
    loop {
        // The steps that need more than one thread stop here.
        if let Some(Step::Exchange(out, inn)) = m.step().cloned() {
            exchange(h, m, &s, out, inn)?;
            continue;
        }
        if m.step().is_none() {
            break;
        }
        match m.advance_one(&s)? {
            Need::Nothing => {}
            _ if matches!(m.step(), Some(Step::Released)) => {
                looks += 1;
                if looks > 100 {
                    return Err("zero-copy pages are not given back".to_string());
                }
                // A run of losses may take timeouts of seconds to repair.
                h.p.sleep_until(h.p.now() + Duration::from_millis(1 << looks.min(10)));
            }
            need => return Err(format!("a blocking call did not block: {need:?}")),
        }
    }
    match h.sc.workload {
        Workload::Shared => shared(h, m.conn(), h.client, &s),
        Workload::CloseBlocked => close_blocked(h, m.conn(), &s),
        Workload::CloseTwice => close_twice(h, m.conn(), &s),
        _ => Ok(()),
    }
}

/// One thread sends while this one receives.
fn exchange(
    h: &Arc<Host>,
    m: &mut Machine,
    s: &Arc<TcpStream>,
    out: u64,
    inn: u64,
) -> Result<(), String> {
    let mut sender = m.part(Step::Send(out, How::Copy));
    let mut receiver = m.part(Step::Recv(inn));
    let theirs = s.clone();
    let t = spawn(&h.p, "sender", None, move || {
        sender.advance(&theirs).map(|_| ())
    });
    receiver.advance(s)?;
    t.join().expect("a panic would have ended the run");
    m.skip(out, inn);
    Ok(())
}

/// Four threads write one socket at each end; four read it at the server's, and one, which can
/// tell the order of everything, at the client's.
fn shared(h: &Arc<Host>, conn: usize, client: bool, s: &Arc<TcpStream>) -> Result<(), String> {
    let each = h.sc.bulk() / 12;
    let mut writers = Vec::new();
    for k in 0..WRITERS {
        let (h, s) = (h.clone(), s.clone());
        writers.push(spawn(&h.p.clone(), "writer", None, move || {
            pour(&s, &h.ledger, k, each, 300 + 1500 * k)
        }));
    }
    let sum = Arc::new(std::sync::Mutex::new(Histogram::default()));
    let mut readers = Vec::new();
    let many = if client { 1 } else { WRITERS };
    for k in 0..many {
        let (h, s, sum) = (h.clone(), s.clone(), sum.clone());
        readers.push(spawn(&h.p.clone(), "reader", None, move || {
            let part = drain(&s, &h.ledger, 300 + 2000 * k, many == 1)?;
            sum.lock().map_err(|e| e.to_string())?.merge(&part);
            Ok(())
        }));
    }
    for w in writers {
        w.join().expect("a panic would have ended the run");
    }
    s.shutdown(Shutdown::Write)
        .map_err(|e| format!("shutdown: {e}"))?;
    for r in readers {
        r.join().expect("a panic would have ended the run");
    }
    let got = sum.lock().map_err(|e| e.to_string())?.clone();
    if got != Parts::whole(WRITERS, each) {
        return Err(format!(
            "connection {conn}: readers got {} of {} octets, or others",
            got.total(),
            WRITERS as u64 * each
        ));
    }
    Ok(())
}

/// Two threads close the socket, at both ends at about the same time, while a third reads.
fn close_twice(h: &Arc<Host>, conn: usize, s: &Arc<TcpStream>) -> Result<(), String> {
    let over = |r: &std::io::Result<usize>| match r {
        Ok(0) => true,
        Ok(_) => false,
        Err(e) => e.kind() == ErrorKind::NotConnected,
    };
    let reader = s.clone();
    let mut threads = vec![spawn(&h.p, "blocked", None, move || {
        let r = (&*reader).read(&mut [0; HELLO]);
        if !over(&r) {
            return Err(format!("connection {conn}: closed under a read: {r:?}"));
        }
        Ok(())
    })];
    let closed = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let (s, closed) = (s.clone(), closed.clone());
        threads.push(spawn(&h.p, "closer", None, move || {
            match s.close() {
                Ok(()) => _ = closed.fetch_add(1, Ordering::Relaxed),
                Err(e) if e.kind() == ErrorKind::NotConnected => {}
                Err(e) => return Err(format!("connection {conn}: close: {e}")),
            }
            let r = (&*s).read(&mut [0]);
            match r {
                Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
                other => Err(format!("connection {conn}: closed, read gives {other:?}")),
            }
        }));
    }
    for t in threads {
        t.join().expect("a panic would have ended the run");
    }
    if closed.load(Ordering::Relaxed) == 0 {
        return Err(format!("connection {conn}: nobody has closed it"));
    }
    Ok(())
}

/// The server closes a socket under a thread that is blocked on it; the client sees the end.
fn close_blocked(h: &Arc<Host>, conn: usize, s: &Arc<TcpStream>) -> Result<(), String> {
    let mut here: &TcpStream = s;
    if h.client {
        return match here.read(&mut [0; HELLO]) {
            Ok(0) => Ok(()),
            other => Err(format!(
                "connection {conn}: the peer closed, and read gives {other:?}"
            )),
        };
    }
    let blocked = s.clone();
    let t = spawn(&h.p, "blocked", None, move || {
        match (&*blocked).read(&mut [0; HELLO]) {
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
            other => Err(format!(
                "connection {conn}: closed under a read that gives {other:?}"
            )),
        }
    });
    h.p.sleep_until(h.p.now() + Duration::from_millis(conn as u64 % 3));
    s.close().map_err(|e| format!("close: {e}"))?;
    t.join().expect("a panic would have ended the run");
    match here.write(&[1]) {
        Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
        other => Err(format!(
            "connection {conn}: closed, and write gives {other:?}"
        )),
    }
}
