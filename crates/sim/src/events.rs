//! Applications that are event loops: what one-threaded organizations need, and the test of
//! readiness for all.

use crate::run::{Host, spawn};
use crate::script::{Machine, Need};
use perimeter::{
    Events, Inbound, Interest, Poll, Stack, TcpListener, TcpStream, Token, Trigger, Waker,
};
use perimeter_link::rng::SplitMix64;
use perimeter_sync::Thread;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const LISTENER: Token = Token(usize::MAX);

/// A connection of a loop.
struct Entry {
    stream: TcpStream,
    machine: Machine,
    need: Need,
}

/// What the loops of a server share.
#[derive(Default)]
struct Common {
    accepted: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

/// One thread's loop.
struct Loop {
    host: Arc<Host>,
    poll: Poll,
    trigger: Trigger,
    entries: Vec<Option<Entry>>,
    live: usize,
    rng: SplitMix64,
}

fn interest(trigger: Trigger, need: Need) -> Interest {
    let i = match (trigger, need) {
        (Trigger::Edge, _)
        | (
            _,
            Need::Wait {
                read: true,
                write: true,
            }
            | Need::Nothing,
        ) => Interest::BOTH,
        (_, Need::Wait { write: true, .. }) => Interest::WRITABLE,
        (_, Need::Wait { .. }) => Interest::READABLE,
    };
    match trigger {
        Trigger::Level => i,
        Trigger::Edge => i.edge(),
        Trigger::OneShot => i.oneshot(),
    }
}

/// The receive queues that a thread serves while it waits, where each has its own: in every second run
/// in which the application's threads serve them.
fn own_queues(host: &Host, thread: usize) -> Option<Vec<u16>> {
    let sc = &host.sc;
    let own = SplitMix64::new(sc.seed ^ 0x7365_7276).below(2) == 0;
    if !own || sc.inbound == Inbound::Thread || sc.threads() == 1 {
        return None;
    }
    let all = 0..sc.nics() * host.knobs.rx_queues;
    let mine = all.skip(thread).step_by(sc.threads());
    Some(mine.map(|q| q as u16).collect())
}

/// Whether loops send what they send between two polls together: in every second run.
fn batched(host: &Host) -> bool {
    SplitMix64::new(host.sc.seed ^ 0x6261_7463).below(2) == 0
}

impl Loop {
    fn new(
        host: &Arc<Host>,
        stack: &Stack,
        trigger: Trigger,
        thread: usize,
    ) -> Result<Loop, String> {
        let number = thread as u64 + if host.client { 1 } else { 101 };
        let mut poll = stack.poll().map_err(|e| format!("poll: {e}"))?;
        if let Some(queues) = own_queues(host, thread) {
            poll.serve(&queues);
        }
        Ok(Loop {
            host: host.clone(),
            poll,
            trigger,
            entries: Vec::new(),
            live: 0,
            rng: SplitMix64::new(host.sc.seed ^ number << 40),
        })
    }

    fn add(&mut self, stream: TcpStream, machine: Machine, need: Need) -> Result<(), String> {
        stream.set_nonblocking(true).map_err(|e| e.to_string())?;
        let token = Token(self.entries.len());
        let wanted = interest(self.trigger, need);
        let r = self.poll.registry().register(&stream, token, wanted);
        r.map_err(|e| format!("register: {e}"))?;
        self.entries.push(Some(Entry {
            stream,
            machine,
            need,
        }));
        self.live += 1;
        Ok(())
    }

    /// Waits for events; yields whether the listener is among them.
    fn turn(&mut self) -> Result<bool, String> {
        let mut events = Events::with_capacity(1 + self.rng.below(16) as usize);
        self.poll
            .poll(&mut events, None)
            .map_err(|e| format!("poll: {e}"))?;
        let mut listener = false;
        for e in events.iter() {
            if e.token() == LISTENER {
                listener = true;
            } else {
                self.serve(e.token().0)?;
            }
        }
        Ok(listener)
    }

    fn serve(&mut self, index: usize) -> Result<(), String> {
        // An event that was on its way when the entry was done is stale, not wrong.
        let Some(entry) = self.entries.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let before = entry.need;
        entry.need = entry.machine.advance(&entry.stream)?;
        let registry = self.poll.registry();
        if entry.need == Need::Nothing {
            let entry = self.entries[index].take();
            self.live -= 1;
            self.host.ledger.finished.fetch_add(1, Ordering::Relaxed);
            // Half of them leave by closing alone.
            if self.rng.below(2) == 0
                && let Some(e) = &entry
            {
                // An aborted socket has taken its registration along.
                let _ = registry.deregister(&e.stream);
            }
            return Ok(());
        }
        let again = match self.trigger {
            Trigger::Level => before != entry.need,
            Trigger::Edge => false,
            Trigger::OneShot => true,
        };
        if again {
            let wanted = interest(self.trigger, entry.need);
            let r = registry.reregister(&entry.stream, Token(index), wanted);
            r.map_err(|e| format!("reregister: {e}"))?;
        }
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener, common: &Common) -> Result<(), String> {
        loop {
            match listener.accept() {
                Ok((s, _)) => {
                    let m = Machine::server(&self.host.sc, &self.host.ledger);
                    self.add(
                        s,
                        m,
                        Need::Wait {
                            read: true,
                            write: false,
                        },
                    )?;
                    let n = common.accepted.fetch_add(1, Ordering::Relaxed) + 1;
                    if n == self.host.sc.connections() {
                        // Not under that lock, which is of the machine: virtual threads that
                        // waited for it would all wait.
                        let wakers = common.wakers.lock().unwrap_or_else(PoisonError::into_inner);
                        let list = wakers.clone();
                        drop(wakers);
                        list.iter().for_each(Waker::wake);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(format!("accept: {e}")),
            }
        }
        if self.trigger == Trigger::OneShot {
            let wanted = Interest::READABLE.oneshot();
            let r = self.poll.registry().reregister(listener, LISTENER, wanted);
            r.map_err(|e| format!("reregister listener: {e}"))?;
        }
        Ok(())
    }
}

/// Runs the client's loops to their end.
pub fn clients(host: &Arc<Host>, stack: &Stack, trigger: Trigger) {
    each(host, "client", |h, t| {
        let stack = stack.clone();
        move || {
            let mut l = Loop::new(&h, &stack, trigger, t)?;
            let _batch = batched(&h).then(|| stack.batch());
            for conn in (t..h.sc.connections()).step_by(h.sc.threads()) {
                let s = stack.start_connect(h.server_addr(conn));
                let s = s.map_err(|e| format!("connection {conn} can't be opened: {e}"))?;
                let m = Machine::client(&h.sc, &h.ledger, conn);
                l.add(
                    s,
                    m,
                    Need::Wait {
                        read: false,
                        write: true,
                    },
                )?;
            }
            while l.live > 0 {
                l.turn()?;
            }
            Ok(())
        }
    });
}

/// Runs the server's loops until they have served all connections.
pub fn servers(host: &Arc<Host>, stack: &Stack, listener: TcpListener, trigger: Trigger) {
    listener.set_nonblocking(true).expect("never fails");
    let listener = Arc::new(listener);
    let common = Arc::new(Common::default());
    each(host, "server", |h, t| {
        let (stack, listener, common) = (stack.clone(), listener.clone(), common.clone());
        move || {
            let mut l = Loop::new(&h, &stack, trigger, t)?;
            let _batch = batched(&h).then(|| stack.batch());
            let waker = l.poll.waker();
            let mut wakers = common.wakers.lock().map_err(|e| e.to_string())?;
            wakers.push(waker);
            drop(wakers);
            let wanted = match trigger {
                Trigger::Level => Interest::READABLE,
                Trigger::Edge => Interest::READABLE.edge(),
                Trigger::OneShot => Interest::READABLE.oneshot(),
            };
            let r = l.poll.registry().register(&*listener, LISTENER, wanted);
            r.map_err(|e| format!("register listener: {e}"))?;
            while l.live > 0 || common.accepted.load(Ordering::Relaxed) < h.sc.connections() {
                if l.turn()? {
                    l.accept(&listener, &common)?;
                }
            }
            Ok(())
        }
    });
}

/// One loop per thread; a one-threaded organization's runs on the thread that owns it.
fn each<F, B>(host: &Arc<Host>, name: &str, make: F)
where
    F: Fn(Arc<Host>, usize) -> B,
    B: FnOnce() -> Result<(), String> + Send + 'static,
{
    let threads = host.sc.threads();
    if threads == 1 {
        if let Err(e) = make(host.clone(), 0)() {
            panic!("{e}");
        }
        return;
    }
    let spawned = (0..threads).map(|t| {
        spawn(
            &host.p,
            &format!("{name}-{t}"),
            Some(t),
            make(host.clone(), t),
        )
    });
    for j in spawned.collect::<Vec<_>>() {
        j.join().expect("a panic would have ended the run");
    }
}
