//! iperf3 each way, in either role.

use crate::common::{LIMIT, each, finish, size, wind_up};
use perimeter::{Events, Interest, OrgSpec, Poll, Registry, Stack, TcpListener, TcpStream, Token};
use perimeter_interop::iperf::{self, Net, Params};
use perimeter_interop::program::Program;
use perimeter_interop::taps;
use serde_json::Value;
use std::io;
use std::time::Duration;

/// Connections of a stack, with a poller to wait by.
struct OnStack {
    stack: Stack,
    listener: TcpListener,
    poll: Poll,
    registry: Registry,
    events: Events,
    streams: usize,
}

impl OnStack {
    fn new(stack: &Stack) -> OnStack {
        let poll = stack.poll().expect("a poller");
        let listener = stack.listen(taps::stack_at(5201)).expect("a listener");
        listener
            .set_accept_timeout(Some(Duration::from_secs(30)))
            .expect("a limit");
        OnStack {
            stack: stack.clone(),
            listener,
            registry: poll.registry(),
            poll,
            events: Events::with_capacity(64),
            streams: 0,
        }
    }

    fn watch(&mut self, s: TcpStream) -> io::Result<TcpStream> {
        s.set_nonblocking(true)?;
        self.registry
            .register(&s, Token(self.streams), Interest::BOTH.edge())?;
        self.streams += 1;
        Ok(s)
    }
}

impl Net for OnStack {
    type Stream = TcpStream;

    fn connect(&mut self) -> io::Result<TcpStream> {
        let s = self.stack.connect(taps::kernel_at(5201))?;
        self.watch(s)
    }

    fn accept(&mut self) -> io::Result<TcpStream> {
        let (s, _) = self.listener.accept()?;
        self.watch(s)
    }

    fn wait(&mut self) -> io::Result<()> {
        self.poll
            .poll(&mut self.events, Some(Duration::from_millis(50)))
    }
}

/// Their client, our server.
fn serve(stack: &Stack, reverse: bool, parallel: usize) {
    let mut net = OnStack::new(stack);
    let (bytes, streams) = (size().to_string(), parallel.to_string());
    let mut args = vec![
        "--client",
        "10.99.0.2",
        "--json",
        "--bytes",
        &bytes,
        "-P",
        &streams,
    ];
    if reverse {
        args.push("--reverse");
    }
    let p = Program::start("iperf3", args, LIMIT);
    let report = iperf::server(&mut net).expect("served");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    assert_eq!(report.params.reverse, reverse);
    let number = |which: &str| theirs["end"][which]["bytes"].as_u64().expect("a number");
    let (sent, received) = (number("sum_sent"), number("sum_received"));
    if reverse {
        // The client stops when it has enough; what is in flight then is lost to it.
        assert!(
            received >= size() && report.bytes >= received,
            "{received} {}",
            report.bytes
        );
    } else {
        assert!(sent >= size());
        assert_eq!((sent, received), (report.bytes, report.bytes));
    }
}

/// Our client, their server.
fn visit(stack: &Stack, reverse: bool, parallel: usize) {
    let args = ["--server", "--one-off", "--json", "--bind", "10.99.0.1"];
    let p = Program::start("iperf3", args, LIMIT);
    wait_for_port(5201);
    let mut net = OnStack::new(stack);
    let params = Params {
        bytes: size(),
        parallel,
        reverse,
        ..Params::default()
    };
    let report = iperf::client(&mut net, &params).expect("a test");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    if reverse {
        assert!(
            report.bytes >= size() && report.peer_bytes >= report.bytes,
            "{report:?}"
        );
    } else {
        // Whole blocks.
        assert!(report.bytes >= size() && report.bytes < size() + 4 * (128 << 10));
        // Their count is taken when our end arrives, which may overtake data.
        assert!(
            report.peer_bytes <= report.bytes && report.peer_bytes > size() / 2,
            "{report:?}"
        );
    }
}

/// Waits until the kernel has a listener on that port.
fn wait_for_port(port: u16) {
    let want = format!(":{port:04X} 00000000:0000 0A");
    for _ in 0..500 {
        if std::fs::read_to_string("/proc/thread-self/net/tcp")
            .expect("sockets")
            .contains(&want)
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nobody listens on port {port}");
}

fn all(org: &OrgSpec, run: fn(&Stack, bool, usize)) {
    let stack = taps::stack(org);
    for (reverse, parallel) in [(false, 1), (true, 1), (false, 4), (true, 4)] {
        println!("{org}: reverse {reverse}, {parallel} streams");
        run(&stack, reverse, parallel);
    }
    wind_up(&stack);
}

#[test]
fn iperf3_as_client() {
    each(&["iperf3"], |org| all(org, serve));
}

#[test]
fn iperf3_as_server() {
    each(&["iperf3"], |org| all(org, visit));
}
