//! A connection, as the squeue of its TCP layer has it.
//!
//! It is `squeue`'s, with receive side and room account outside, and with two collecting points:
//! for news that the socket layer is to have in its own turn, and for segments that IP is to
//! send in its own. Where the lists are direct and those layers are under TCP's perimeter, the
//! collecting points are closed: then TCP delivers to the socket layer and places segments
//! itself, within its own turn, as FireEngine does.

use super::bind::Bind;
use super::event::Layer;
use super::flows::{Flows, Found};
use super::home::Vacated;
use super::link::{Link, Version, Way};
use super::list::ListRef;
use crate::Kd;
use crate::outer::Places;
use crate::squeue::cell::{OuterTable, Parted};
use crate::squeue::collecting::{Collecting, Points};
use perimeter_stack::conn::TcbSide;
use perimeter_stack::segment::{Outgoing, Up};
use perimeter_stack::{Cell, Conn, Ctx, SharedState, SockId};
use perimeter_sync::{Lock, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// What connections start with.
pub(super) struct Defaults {
    /// The list to receive and the one to transmit.
    pub(super) lists: [ListRef; 2],
    /// Of datagrams, received and sent ones.
    pub(super) datagrams: [ListRef; 2],
    /// Of packets that belong to no connection.
    pub(super) unbound: ListRef,
}

/// How the connections of a stack are made.
pub(super) struct Manner<P: Platform> {
    pub(super) defaults: P::Lock<Defaults>,
    /// The lists before any event was registered: who has them needs not be asked.
    pub(super) first: [ListRef; 2],
    pub(super) light_queue: bool,
    pub(super) light_tcp: bool,
    /// Layers of a connection whose TCP state is with that squeue.
    pub(super) bind: Box<dyn Fn(u16) -> Bind + Send + Sync>,
}

/// Where the connections of one squeue have their parts.
pub(super) struct MemberTables<P: Platform> {
    pub(super) outer: Arc<OuterTable<P>>,
    /// Slots here whose connections had moved to other squeues and are over.
    pub(super) vacated: Arc<Vacated<P>>,
    pub(super) links: Arc<Places<Link<P>>>,
    pub(super) flows: Arc<Flows<P>>,
    pub(super) manner: Arc<Manner<P>>,
}

impl<P: Platform> Clone for MemberTables<P> {
    fn clone(&self) -> Self {
        MemberTables {
            outer: self.outer.clone(),
            vacated: self.vacated.clone(),
            links: self.links.clone(),
            flows: self.flows.clone(),
            manner: self.manner.clone(),
        }
    }
}

/// A connection.
pub(super) type Member<P> = Collecting<P, ByVersion<P>>;

/// Collecting points, open or closed as a version of the connection's lists has it.
pub(super) struct ByVersion<P: Platform> {
    tables: MemberTables<P>,
    id: SockId,
    /// What is handed on goes by this version, of that serial number.
    version: Version,
    serial: u32,
    /// Whether the collecting points are open.
    up_open: bool,
    out_open: bool,
    up: Up,
    out: Outgoing,
}

impl<P: Platform> ByVersion<P> {
    /// By which version TCP hands on.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    fn link(&self) -> Option<&Link<P>> {
        self.tables.links.get(self.id.slot())
    }

    /// Takes over a version that was published.
    #[cold]
    fn renew(&mut self) {
        let Some(link) = self.tables.links.get(self.id.slot()) else {
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
        self.up_open = bind.of(Layer::Sockfs) != tcp || !self.version.receive.is_direct();
        self.out_open = bind.of(Layer::Ip) != tcp || !self.version.transmit.is_direct();
    }
}

/// Enters a flow's connection, which may have been announced; `false`: the flow has one.
fn enter<P: Platform>(tables: &MemberTables<P>, key: FlowKey, found: Found) -> bool {
    let announced = tables.flows.with(&key, |f| {
        let soon = f.soon;
        if soon {
            *f = found;
        }
        soon
    });
    announced.unwrap_or_else(|| tables.flows.insert(key, found))
}

impl<P: Platform> Points for ByVersion<P> {
    #[inline]
    fn up(&mut self) -> Option<&mut Up> {
        self.up_open.then_some(&mut self.up)
    }

    #[inline]
    fn out(&mut self) -> Option<&mut Outgoing> {
        self.out_open.then_some(&mut self.out)
    }
}

impl<P: Platform> Cell for Member<P> {
    type Outside = MemberTables<P>;

    fn make(
        tables: &mut MemberTables<P>,
        (sh, config): (&SharedState<Kd<P>>, &Config),
        mut conn: Conn<Kd<P>>,
    ) -> Option<Self> {
        let (id, key) = (conn.tcb.meta.id, conn.tcb.meta.key);
        let link = tables.links.get_or_make(id.slot(), || Link::new(&sh.p))?;
        let usual = (tables.manner.bind)(id.shard());
        let bind = usual.told(config.layers);
        let lists = tables.manner.defaults.lock().lists.clone();
        let mut pairs = lists.iter().zip(&tables.manner.first);
        let off = config.layers.events == Some(false);
        let altered = off || bind != usual || !pairs.all(|(list, first)| list.is(first));
        let mut version = Version::first(lists, bind);
        link.fill(id, key, altered.then(|| version.clone()));
        if off {
            version = link.start_off(id, version)?;
        }
        let found = Found {
            id,
            bind,
            altered,
            soon: false,
        };
        if !enter(tables, key, found) {
            link.vacate();
            return None;
        }
        if tables.manner.light_queue {
            conn.rcv.set_marks();
        } else {
            conn.rcv.messages = true;
        }
        conn.tcb.tcb.set_prediction(tables.manner.light_tcp);
        let Some(conn) = Parted::make(&mut tables.outer, (sh, config), conn) else {
            tables.flows.remove(&key, |found| found.id == id);
            link.vacate();
            return None;
        };
        let mut points = ByVersion {
            tables: tables.clone(),
            id,
            serial: version.serial(),
            version,
            up_open: false,
            out_open: false,
            up: Up::default(),
            out: Outgoing::default(),
        };
        points.open();
        Some(Member { conn, points })
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        self.conn.peek()
    }

    #[inline]
    fn entered(&mut self) {
        let points = &mut self.points;
        let serial = points.link().map(Link::serial);
        if serial != Some(points.serial) {
            points.renew();
        }
    }

    #[inline]
    fn left(&mut self, cx: &mut Ctx<Kd<P>>) {
        self.conn.left(cx);
        let points = &mut self.points;
        if points.up.is_empty() && points.out.segs.is_empty() {
            return;
        }
        let meta = &self.conn.peek().meta;
        let (up, out) = (
            core::mem::take(&mut points.up),
            core::mem::take(&mut points.out),
        );
        cx.apart((points.id, meta.key), (&meta.template, meta.txq), (up, out));
    }

    fn unlinked(&self, tables: &mut MemberTables<P>) {
        let key = &self.conn.peek().meta.key;
        tables.flows.remove(key, |found| found.id == self.points.id);
    }

    fn vacated(tables: &mut MemberTables<P>) -> Option<u32> {
        tables.vacated.take()
    }

    fn leave(self, tables: &mut MemberTables<P>) -> Conn<Kd<P>> {
        let Member { conn, points } = self;
        if let Some(link) = points.link() {
            link.vacate();
        }
        // Its parts are where it was made.
        let ByVersion {
            tables: made, id, ..
        } = points;
        let MemberTables {
            mut outer, vacated, ..
        } = made;
        let moved = !Arc::ptr_eq(&outer, &tables.outer);
        let conn = conn.leave(&mut outer);
        if moved {
            vacated.put(id.slot());
        }
        conn
    }
}
