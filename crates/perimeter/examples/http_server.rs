//! An HTTP server: GET serves one file zero-copy, PUT takes an upload and answers with its
//! SHA-256. A thread per connection; under `up`, which has one thread, one after another.
//!
//! Over memory a client in the same process fetches the file and uploads it again:
//! `cargo run --release --example http_server -- Cargo.lock`
//!
//! Over TAP, as root, the host's own programs are the clients:
//! `http_server --device tap --org connp-l:8 FILE`, then `curl http://10.99.0.2/ | sha256sum`
//! and `curl -T FILE http://10.99.0.2/upload`.

mod common;

use clap::Parser;
use common::{Ends, Result, hex, receive, send_file};
use perimeter::{SharedFile, Stack, TcpListener, TcpStream};
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The longest request head that is read, bytes.
const HEAD: u64 = 16 * 1024;

#[derive(Parser)]
#[command(about = "Serves FILE over HTTP; PUT answers with the upload's SHA-256")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port to listen on
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// End after this many connections
    #[arg(long)]
    connections: Option<usize>,
    /// The file to serve
    file: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let setup = SharedFile::open(&args.file)
        .map_err(|e| format!("{}: {e}", args.file.display()).into())
        .and_then(|f| Ok((args.net.open()?, Arc::new(f))));
    let (ends, file) = match setup {
        Ok((e, f)) => (Ok(e), Some(f)),
        Err(e) => (Err(e), None),
    };
    common::main(ends, |ends| {
        run(&args, &ends, &file.expect("opened together"))
    })
}

fn run(args: &Args, ends: &Ends, file: &Arc<SharedFile>) -> Result<()> {
    let listener = ends.stack.listen(ends.at(args.port))?;
    println!(
        "listening on {} ({})",
        listener.local_addr()?,
        ends.stack.organization()
    );
    let client = ends.peer.clone().map(|peer| {
        let (at, file) = (ends.at(args.port), file.clone());
        std::thread::spawn(move || visit(&peer, at, &file))
    });
    let connections = if client.is_some() {
        Some(2)
    } else {
        args.connections
    };
    serve(&ends.stack, &listener, file, connections)?;
    common::finish(&ends.stack, client)
}

fn serve(
    stack: &Stack,
    listener: &TcpListener,
    file: &Arc<SharedFile>,
    connections: Option<usize>,
) -> Result<()> {
    let alone = stack.organization().single_threaded();
    let mut threads = Vec::new();
    for s in listener.incoming().take(connections.unwrap_or(usize::MAX)) {
        let (s, file) = (s?, file.clone());
        let work = move || {
            if let Err(e) = answer(&s, &file) {
                eprintln!("connection failed: {e}");
            }
        };
        if alone {
            work();
            continue;
        }
        threads.push(std::thread::spawn(work));
        threads.retain(|t| !t.is_finished());
    }
    for t in threads {
        t.join().map_err(|_| "a connection's thread panicked")?;
    }
    Ok(())
}

/// What a request head says.
struct Request {
    method: String,
    path: String,
    length: u64,
    expect: bool,
}

fn read_head(from: &mut impl BufRead) -> io::Result<Option<Request>> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_string());
    let mut head = from.take(HEAD);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(bad("no request line"));
    };
    let mut r = Request {
        method,
        path,
        length: 0,
        expect: false,
    };
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(bad("the request head ends early or is too long"));
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(Some(r));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            r.length = value
                .parse()
                .map_err(|_| bad("Content-Length is no number"))?;
        } else if name.eq_ignore_ascii_case("expect") {
            r.expect = value.eq_ignore_ascii_case("100-continue");
        }
    }
}

fn answer(s: &TcpStream, file: &SharedFile) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 * 1024, s);
    let Some(r) = read_head(&mut reader)? else {
        return Ok(());
    };
    let head = |status: &str, length: u64| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let mut w = s;
    match r.method.as_str() {
        "GET" if r.path == "/" => {
            s.send_more(head("200 OK", file.len()).as_bytes())?;
            let digest = send_file(s, file)?;
            println!("GET {} {} {digest}", r.path, file.len());
        }
        "HEAD" if r.path == "/" => w.write_all(head("200 OK", file.len()).as_bytes())?,
        "GET" | "HEAD" => w.write_all(head("404 Not Found", 0).as_bytes())?,
        "PUT" => {
            if r.expect {
                w.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let (digest, n) = receive(&mut reader, &mut io::sink(), r.length)?;
            if n < r.length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            println!("PUT {} {n} {digest}", r.path);
            let body = format!("{digest}\n");
            w.write_all((head("201 Created", body.len() as u64) + &body).as_bytes())?;
        }
        _ => w.write_all(head("405 Method Not Allowed", 0).as_bytes())?,
    }
    s.shutdown(Shutdown::Write)?;
    // Unread input would turn the close into a reset, which may overtake the answer. A client
    // that stays is not waited for.
    s.set_read_timeout(Some(Duration::from_secs(5)))?;
    match io::copy(&mut reader, &mut io::sink()) {
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => Ok(()),
    }
}

/// The client over memory: fetches the file, uploads it, compares.
fn visit(stack: &Stack, at: SocketAddr, file: &SharedFile) -> io::Result<()> {
    let body = |s: &TcpStream| -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        (&*s).read_to_end(&mut all)?;
        let end = all
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(all.split_off(end + 4))
    };
    let mut s = stack.connect(at)?;
    s.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
    let mut digest = Sha256::new();
    digest.update(body(&s)?);
    let got = hex(digest);
    drop(s);
    let mut s = stack.connect(at)?;
    write!(
        s,
        "PUT /copy HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n",
        file.len()
    )?;
    let sent = send_file(&s, file)?;
    let back = String::from_utf8_lossy(&body(&s)?).trim().to_string();
    println!("fetched {got}\nsent    {sent}\nanswer  {back}");
    if got != sent || back != sent {
        return Err(io::Error::other("the digests differ"));
    }
    Ok(())
}
