//! The programs around a gateway: servers and a SOCKS5 proxy at one end, clients at the other.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write, copy, stdin};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The proxy's port.
pub const PROXY: u16 = 1080;
const SERVERS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 7000);
const LIMIT: Duration = Duration::from_secs(10);
const CHUNK: usize = 256 * 1024;

/// What a role does, by its words.
pub fn role(words: &[String]) -> Result<()> {
    let number = |n: usize| -> Result<u64> { Ok(words.get(n).context("a number")?.parse()?) };
    match words[0].as_str() {
        "serve" => serve(),
        "echo" => {
            let mut s = open(b'E')?;
            s.write_all(b"x")?;
            s.read_exact(&mut [0])?;
            println!("1");
            Ok(())
        }
        "down" => bulk(number(1)?, number(2)?, b'S'),
        "up" => bulk(number(1)?, number(2)?, b'D'),
        "conns" => connections(number(1)?),
        "requests" => requests(number(1)?),
        "idle" => idle(number(1)?),
        other => bail!("no role `{other}`"),
    }
}

fn open(first: u8) -> Result<TcpStream> {
    let s = TcpStream::connect_timeout(&SERVERS, LIMIT)?;
    s.set_read_timeout(Some(LIMIT))?;
    s.set_write_timeout(Some(LIMIT))?;
    (&s).write_all(&[first])?;
    Ok(s)
}

/// Prints bytes and seconds of so many connections at once.
fn bulk(conns: u64, seconds: u64, first: u8) -> Result<()> {
    let all = (0..conns)
        .map(|_| open(first))
        .collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let one = |mut s: TcpStream| -> Result<u64> {
        let (mut n, mut buf) = (0, vec![0; CHUNK]);
        while Instant::now() < end {
            n += match first {
                b'S' => s.read(&mut buf)? as u64,
                _ => {
                    s.write_all(&buf)?;
                    CHUNK as u64
                }
            };
        }
        if first == b'D' {
            // Until all of it is there: an octet for each chunk. Not a half close, which some
            // gateways do not pass on.
            s.read_exact(&mut vec![0; n as usize / CHUNK])?;
        }
        Ok(n)
    };
    let mut total = 0;
    thread::scope(|t| -> Result<()> {
        let each: Vec<_> = all.into_iter().map(|s| t.spawn(move || one(s))).collect();
        for h in each {
            total += h.join().expect("no panic")?;
        }
        Ok(())
    })?;
    println!("{total} {}", start.elapsed().as_secs_f64());
    Ok(())
}

/// Prints requests a second of 16 connections, a byte to and fro each, and their 99th percentile in µs.
fn requests(seconds: u64) -> Result<()> {
    let all = (0..16).map(|_| open(b'E')).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let one = |mut s: TcpStream| -> Result<Vec<f64>> {
        s.set_nodelay(true)?;
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            s.write_all(b"x")?;
            s.read_exact(&mut [0])?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    };
    timed(start, all.into_iter().map(|s| move || one(s)))
}

/// Runs all of `each` at once, and prints how many times they note a second, and the 99th
/// percentile.
fn timed<F>(start: Instant, each: impl Iterator<Item = F>) -> Result<()>
where
    F: FnOnce() -> Result<Vec<f64>> + Send,
{
    let mut times = thread::scope(|t| -> Result<Vec<f64>> {
        let each: Vec<_> = each.map(|f| t.spawn(f)).collect();
        let mut all = Vec::new();
        for h in each {
            all.extend(h.join().expect("no panic")?);
        }
        Ok(all)
    })?;
    times.sort_by(f64::total_cmp);
    let last = times.get(times.len() * 99 / 100).context("none in time")?;
    println!(
        "{} {last}",
        times.len() as f64 / start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Prints connections a second, each with a byte to and fro, and their 99th percentile in µs.
fn connections(seconds: u64) -> Result<()> {
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let one = || -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            let mut s = open(b'E')?;
            s.write_all(b"x")?;
            s.read_exact(&mut [0])?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    };
    timed(start, (0..16).map(|_| one))
}

/// Opens so many connections, uses each once, says so, and keeps them until its input ends.
fn idle(n: u64) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..n {
        let mut s = open(b'E')?;
        s.write_all(&[7; 1000])?;
        s.read_exact(&mut [0; 1000])?;
        all.push(s);
    }
    println!("ready");
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn each(at: SocketAddr, f: impl Fn(TcpStream) -> Result<()> + Copy + Send + 'static) -> Result<()> {
    let l = TcpListener::bind(at)?;
    thread::spawn(move || {
        for s in l.incoming().flatten() {
            let small = thread::Builder::new().stack_size(1 << 16);
            // How it ends is its peer's to see.
            let _ = small.spawn(move || f(s));
        }
    });
    Ok(())
}

fn serve() -> Result<()> {
    each(SERVERS, |mut s| {
        let mut first = [0];
        s.read_exact(&mut first)?;
        let mut buf = vec![0; CHUNK];
        match first[0] {
            b'S' => loop {
                s.write_all(&buf)?;
            },
            b'D' => {
                while s.read_exact(&mut buf).is_ok() {
                    s.write_all(&[1])?;
                }
            }
            _ => {
                drop(buf);
                copy(&mut s.try_clone()?, &mut s)?;
            }
        }
        Ok(())
    })?;
    each((Ipv4Addr::new(10, 55, 0, 2), PROXY).into(), proxy)?;
    loop {
        thread::park();
    }
}

/// A SOCKS5 proxy (RFC 1928): CONNECT by address, without authentication.
fn proxy(mut s: TcpStream) -> Result<()> {
    s.set_nodelay(true)?;
    let mut hello = [0; 2];
    s.read_exact(&mut hello)?;
    s.read_exact(&mut vec![0; hello[1].into()])?;
    s.write_all(&[5, 0])?;
    let mut head = [0; 4];
    s.read_exact(&mut head)?;
    let [5, 1, _, 1] = head else {
        bail!("not CONNECT to an address of IPv4");
    };
    let mut at = [0; 6];
    s.read_exact(&mut at)?;
    let [a, b, c, d, high, low] = at;
    let to = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]));
    let up = TcpStream::connect(to)?;
    up.set_nodelay(true)?;
    s.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    let back = (up.try_clone()?, s.try_clone()?);
    let small = thread::Builder::new().stack_size(1 << 16);
    let other = small.spawn(move || pass(back.0, back.1))?;
    pass(s, up);
    let _ = other.join();
    Ok(())
}

/// Std's copy moves bytes from socket to socket within the kernel.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
