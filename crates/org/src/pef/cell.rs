//! A connection, as the squeue of its TCP layer has it.
//!
//! It is `squeue`'s, with receive side and room account outside, and with two collecting points:
//! for news that the socket layer is to have in its own turn, and for segments that IP is to
//! send in its own. Where those layers are under TCP's perimeter and nothing stands between them
//! on the lists, the collecting points are closed: then TCP delivers to the socket layer and
//! places segments itself, within its own turn, as FireEngine does.

use super::bind::Bind;
use super::event::Layer;
use super::flows::{Flows, Found};
use super::link::{Link, Version, Way};
use super::list::List;
use crate::place::Places;
use crate::squeue::Kd;
use crate::squeue::cell::{Home, Parted};
use core::sync::atomic::{AtomicUsize, Ordering};
use perimeter_stack::conn::{Apart, Leaving, OutSeg, SndSide, TcbSide, Up};
use perimeter_stack::{Access, Bufs, Cell, Commons, Conn, Ctx, SockId};
use perimeter_sync::{Lock, Platform};
use std::sync::Arc;

/// What connections start with.
pub(super) struct Defaults {
    pub(super) receive: Arc<List>,
    pub(super) transmit: Arc<List>,
    /// Of packets that belong to no connection.
    pub(super) unbound: Arc<List>,
}

/// How the connections of a stack are made.
pub(super) struct Manner<P: Platform> {
    pub(super) defaults: P::Lock<Defaults>,
    pub(super) light_queue: bool,
    pub(super) light_tcp: bool,
    /// Layers of a connection whose TCP state is with that squeue.
    pub(super) bind: Box<dyn Fn(u16) -> Bind + Send + Sync>,
}

/// A send side, the account of its segments, and the transmit queue that they take.
type Remnant<P> = (Arc<Leaving>, u16, SndSide<Kd<P>>);

/// Send sides of connections that are over, while segments of theirs are between TCP and the
/// ring.
pub(super) struct Remains<P: Platform> {
    waiting: P::Lock<Vec<Remnant<P>>>,
    /// How many.
    n: AtomicUsize,
}

impl<P: Platform> Remains<P> {
    pub(super) fn new(p: &P) -> Remains<P> {
        Remains {
            waiting: p.lock(perimeter_sync::LockClass::Leaf, Vec::new()),
            n: AtomicUsize::new(0),
        }
    }

    /// Buries those whose segments have all been placed.
    #[inline]
    pub(super) fn bury(&self, cx: &mut Ctx<Kd<P>>) {
        if self.n.load(Ordering::Acquire) > 0 {
            self.bury_some(cx);
        }
    }

    #[cold]
    fn bury_some(&self, cx: &mut Ctx<Kd<P>>) {
        let mut ready = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            let mut i = 0;
            while i < waiting.len() {
                if let Some(ticket) = waiting[i].0.ticket() {
                    let (_, txq, snd) = waiting.swap_remove(i);
                    ready.push((txq, ticket, snd));
                } else {
                    i += 1;
                }
            }
            self.n.store(waiting.len(), Ordering::Release);
        }
        let nothing = crate::place::no_rcv();
        for (txq, ticket, mut snd) in ready {
            snd.ticketed(ticket);
            cx.sh.bury(cx, (txq, ticket), &mut snd, &nothing);
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.n.load(Ordering::Acquire)
    }
}

/// Where the connections of one squeue have their parts.
pub(super) struct Homes<P: Platform> {
    pub(super) outer: Arc<Home<P>>,
    pub(super) links: Arc<Places<Link<P>>>,
    pub(super) flows: Arc<Flows<P>>,
    pub(super) manner: Arc<Manner<P>>,
    pub(super) remains: Arc<Remains<P>>,
}

impl<P: Platform> Clone for Homes<P> {
    fn clone(&self) -> Self {
        Homes {
            outer: self.outer.clone(),
            links: self.links.clone(),
            flows: self.flows.clone(),
            manner: self.manner.clone(),
            remains: self.remains.clone(),
        }
    }
}

/// A connection.
pub(super) struct Member<P: Platform> {
    conn: Parted<P>,
    home: Homes<P>,
    id: SockId,
    /// What is handed on goes by this version, of that serial number.
    version: Version,
    serial: u32,
    /// Whether the collecting points are open.
    up_open: bool,
    out_open: bool,
    up: Up,
    out: Vec<OutSeg>,
    leaving: Option<Arc<Leaving>>,
    /// Pages are held whose ticket is not known yet.
    unsure: bool,
}

impl<P: Platform> Member<P> {
    /// By which version TCP hands on.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    fn link(&self) -> Option<&Link<P>> {
        self.home.links.get(self.id.slot())
    }

    /// Takes over a version that was published.
    #[cold]
    fn renew(&mut self) {
        let Some(link) = self.home.links.get(self.id.slot()) else {
            return;
        };
        // What was collected by the old version has been handed on: the points are empty.
        if let Some(version) = link.version(Way::On, self.id) {
            self.serial = version.serial();
            self.version = version;
            self.open();
        }
    }

    fn open(&mut self) {
        let bind = self.version.bind;
        let tcp = bind.of(Layer::Tcp);
        self.up_open = bind.of(Layer::Sockfs) != tcp || !self.version.receive.is_plain();
        self.out_open = bind.of(Layer::Ip) != tcp || !self.version.transmit.is_plain();
    }

    /// Learns the ticket of what was placed meanwhile.
    fn learn(&mut self) {
        let Some(leaving) = &self.leaving else {
            return;
        };
        let side = self.conn.tcb();
        match leaving.ticket() {
            Some(ticket) => {
                side.meta.ticket = if side.meta.ticket == Leaving::LATER {
                    ticket
                } else {
                    side.meta.ticket.max(ticket)
                };
                if core::mem::take(&mut self.unsure) {
                    self.conn.snd().ticketed(ticket);
                }
            }
            None => {
                side.meta.ticket = Leaving::LATER;
                self.unsure = true;
            }
        }
    }
}

impl<P: Platform> Bufs for Member<P> {
    type K = Kd<P>;
    type Snd<'a> = <Parted<P> as Bufs>::Snd<'a>;
    type Rcv<'a> = <Parted<P> as Bufs>::Rcv<'a>;

    #[inline]
    fn snd(&mut self) -> Self::Snd<'_> {
        self.conn.snd()
    }

    #[inline]
    fn rcv(&mut self) -> Self::Rcv<'_> {
        self.conn.rcv()
    }
}

impl<P: Platform> Access for Member<P> {
    #[inline]
    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        self.conn.tcb()
    }

    #[inline]
    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Snd<'_>) {
        self.conn.tcb_snd()
    }

    #[inline]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        self.conn.tcb_rcv()
    }

    #[inline]
    fn up(&mut self) -> Option<&mut Up> {
        self.up_open.then_some(&mut self.up)
    }

    #[inline]
    fn out(&mut self) -> Option<&mut Vec<OutSeg>> {
        self.out_open.then_some(&mut self.out)
    }
}

impl<P: Platform> Cell for Member<P> {
    type Home = Homes<P>;

    fn settle(home: &mut Homes<P>, sh: &Commons<Kd<P>>, mut conn: Conn<Kd<P>>) -> Option<Self> {
        let (id, key) = (conn.tcb.meta.id, conn.tcb.meta.key);
        let link = home.links.get_or_make(id.slot(), || Link::new(&sh.p))?;
        let bind = (home.manner.bind)(id.shard());
        let (receive, transmit) = {
            let d = home.manner.defaults.lock();
            (d.receive.clone(), d.transmit.clone())
        };
        let version = Version::first(receive, transmit, bind);
        let altered = !version.is_plain();
        link.fill(id, key, version.clone());
        if !home.flows.add(key, Found { id, bind, altered }) {
            link.vacate();
            return None;
        }
        if home.manner.light_queue {
            conn.rcv.set_marks();
        } else {
            conn.rcv.messages = true;
        }
        conn.tcb.tcb.set_prediction(home.manner.light_tcp);
        let Some(conn) = Parted::settle(&mut home.outer, sh, conn) else {
            home.flows.remove(&key, id);
            link.vacate();
            return None;
        };
        let mut member = Member {
            conn,
            home: home.clone(),
            id,
            serial: version.serial(),
            version,
            up_open: false,
            out_open: false,
            up: Up::default(),
            out: Vec::new(),
            leaving: None,
            unsure: false,
        };
        member.open();
        Some(member)
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        self.conn.peek()
    }

    #[inline]
    fn entered(&mut self) {
        let serial = self.link().map(Link::serial);
        if serial != Some(self.serial) {
            self.renew();
        }
        if self.leaving.is_some() {
            self.learn();
        }
    }

    #[inline]
    fn left(&mut self, cx: &mut Ctx<Kd<P>>) {
        self.conn.left(cx);
        if self.up.is_empty() && self.out.is_empty() {
            return;
        }
        let leaving = self.leaving.get_or_insert_default().clone();
        leaving.started(self.out.len());
        let meta = &self.conn.peek().meta;
        cx.apart.push(Apart {
            id: self.id,
            key: meta.key,
            up: core::mem::take(&mut self.up),
            out: core::mem::take(&mut self.out),
            template: meta.template.clone(),
            txq: meta.txq,
            leaving,
        });
    }

    fn unlinked(&self, home: &mut Homes<P>) {
        home.flows.remove(&self.conn.peek().meta.key, self.id);
        self.conn.unlinked(&mut home.outer);
    }

    fn leave(mut self, home: &mut Homes<P>) -> Conn<Kd<P>> {
        if let Some(link) = self.link() {
            link.vacate();
        }
        self.learn();
        let mut conn = self.conn.leave(&mut home.outer);
        if let Some(leaving) = self.leaving
            && leaving.ticket().is_none()
        {
            let snd = core::mem::replace(&mut conn.snd, crate::place::no_snd());
            let mut waiting = home.remains.waiting.lock();
            waiting.push((leaving, conn.tcb.meta.txq, snd));
            home.remains.n.store(waiting.len(), Ordering::Release);
        }
        conn
    }
}
