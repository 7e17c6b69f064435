//! An organization in as few lines as it takes: one lock around the whole stack. It is not one of
//! the library's: it comes from outside, as yours would. docs/ORGANIZATIONS.md walks through it.
//!
//! Two stacks, the one under test organized like this, send each other a megabyte over a wire in
//! memory, and compare each byte: `cargo run --release -p perimeter --example tiny_org`

use perimeter::link::wire::{WireConfig, pair};
use perimeter::seam::base::Time;
use perimeter::seam::org::{Binding, Job, On, Org};
use perimeter::seam::stack::ops::Op;
use perimeter::seam::stack::shard::ExistsError;
use perimeter::seam::stack::{Ctx, Flow, Shard, SharedState, SockId, Sockets};
use perimeter::seam::sync::{Lock, LockClass, LockStats, Platform, Shared};
use perimeter::seam::wire::FlowKey;
use perimeter::{ConnInfo, Native, OrgSpec, Stack, TcpConfig};
use std::error::Error;
use std::io::{Read, Write};
use std::net::Shutdown;

/// This machine, with real locks around what all threads share.
type K = On<Native, Shared>;
type Sh = SharedState<K>;
type Cx<'a> = Ctx<'a, K>;

/// Placement: whoever comes. Dispatch: a direct call. Protection: this lock.
pub struct BigLock {
    stack: <Native as Platform>::Lock<Shard<K>>,
}

impl Org for BigLock {
    type K = K;

    fn new(_: &OrgSpec, sh: &Sh) -> Self {
        BigLock {
            stack: sh.p.lock(LockClass::Group, Shard::new((0, 1), sh)),
        }
    }

    // A burst from a device. The segments are in `cx.segs`, in order of arrival.
    fn on_packets(&self, cx: &mut Cx) {
        let mut segs = core::mem::take(&mut cx.segs);
        let mut stack = self.stack.lock();
        segs.drain(|seg| stack.input(cx, seg));
        drop(stack);
        // The places of the segments are used again.
        cx.segs = segs;
    }

    // A socket call: the caller waits for its result.
    fn call<Q: Op<K>>(&self, cx: &mut Cx, id: SockId, op: Q) -> Option<Q::Out> {
        self.stack.lock().call(cx, id, op)
    }

    // The stack's own: some time soon, and also on connections that no application holds.
    fn post<Q: Op<K, Out = ()>>(&self, cx: &mut Cx, id: SockId, op: Q) {
        self.stack.lock().posted(cx, id, op);
    }

    fn connect(&self, cx: &mut Cx, f: Flow, c: &TcpConfig) -> Result<SockId, ExistsError> {
        self.stack.lock().connect(cx, f, c)
    }

    fn perimeters(&self) -> u16 {
        1
    }

    fn perimeter_of(&self, _: &Sh, _: &FlowKey) -> Option<u16> {
        Some(0)
    }

    // Whatever else is to be done with the sockets: listeners, ICMP errors, other protocols.
    fn inside<R: Send + 'static>(&self, cx: &mut Cx, _: u16, job: impl Job<K, R>) -> Option<R> {
        Some(job(&mut *self.stack.lock(), cx))
    }

    fn on_timers(&self, cx: &mut Cx) {
        self.stack.lock().on_timers(cx);
    }

    fn next_timer(&self) -> Time {
        self.stack.lock().next_timer()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.stack.lock().inspect(now, out);
    }

    fn live(&self) -> usize {
        self.stack.lock().len()
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Group, self.stack.stats());
    }

    // What `perimeter ss` shows.
    fn binding(&self, _: SockId) -> Binding {
        Binding {
            perimeters: ["big lock", "big lock", "big lock"].map(String::from),
            ..Binding::default()
        }
    }
}

/// Sends `bytes` bytes there and back; yields how often the lock was taken.
pub fn transfer(bytes: usize) -> Result<u64, Box<dyn Error>> {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let server = Stack::builder()
        .on_native(native)
        .org(OrgSpec::outside("big-lock"));
    let server = server
        .interface(a, &["10.0.0.1/24"])?
        .build_as::<BigLock>()?;
    let client = Stack::builder()
        .on_native(native)
        .organization("up:shared")?;
    let client = client.interface(b, &["10.0.0.2/24"])?.build()?;
    let listener = server.listen("10.0.0.1:7")?;
    let sent: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let stream = client.connect("10.0.0.1:7")?;
    let mut back = Vec::new();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let (echo, _) = listener.accept()?;
            std::io::copy(&mut &echo, &mut &echo)
        });
        threads.spawn(|| {
            (&stream).write_all(&sent)?;
            stream.shutdown(Shutdown::Write)
        });
        (&stream).read_to_end(&mut back)
    })?;
    if back != sent {
        return Err("what came back differs".into());
    }
    Ok(server.stats().locks["group"].acquisitions)
}

#[allow(dead_code, reason = "a test runs `transfer` alone")]
fn main() -> Result<(), Box<dyn Error>> {
    let taken = transfer(1 << 20)?;
    println!("a megabyte there and back under big-lock, which was taken {taken} times");
    Ok(())
}
