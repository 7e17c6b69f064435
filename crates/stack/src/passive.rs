//! Passive opens: what becomes of segments that belong to no connection. Whoever owns this owns
//! the SYN cache and the wildcard listeners of a connection table.

use crate::count::Count;
use crate::ctx::Ctx;
use crate::hold::{Held, Syn};
use crate::kind::Kind;
use crate::listener::{Leaving, Listener, Wanted, Wildcards};
use crate::ops::Icmp;
use crate::segment::Seg;
use crate::shared::SharedState;
use perimeter_base::Time;
use perimeter_tcp::SynCache;
use perimeter_tcp::syncache::{AckAction, Established, ListenParams, Origin, SynAction};
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use std::sync::Arc;

/// What a listener offers to the sender of `syn`.
fn params<K: Kind>(sh: &SharedState<K>, l: &Listener<K>, syn: &Syn) -> ListenParams {
    let mut params = l.params();
    params.origin = syn.origin;
    params.from = syn.from;
    params.reuse = syn.iss.is_some();
    params.mss = params
        .mss
        .min(sh.ifaces[usize::from(syn.iface)].mss(syn.key.remote));
    params
}

/// What there is to know of a SYN, or of a segment that may follow one.
fn syn<K: Kind>(sh: &SharedState<K>, seg: &Seg, iss: Option<Seq>, origin: u16) -> Syn {
    Syn {
        key: seg.frame.key,
        hdr: seg.frame.hdr,
        iface: seg.iface,
        from: sh.came_from(seg),
        origin,
        iss,
    }
}

/// Where a segment of that flow goes to that came by interface `iface`, if that is known.
fn wanted(key: &FlowKey, iface: Option<u16>) -> Wanted {
    Wanted {
        local: key.local,
        port: key.local_port,
        iface,
    }
}

/// Who listens where segments of this flow go to that come by interface `iface`.
fn listener<'a, K: Kind>(
    wildcards: &'a Wildcards<K>,
    sh: &SharedState<K>,
    key: &FlowKey,
    iface: Option<u16>,
) -> Option<&'a Arc<Listener<K>>> {
    wildcards.find(wanted(key, iface), || sh.flow_hash(key))
}

/// How a segment of a handshake leaves, as whoever listens there says now.
fn leaving<K: Kind>(
    wildcards: &Wildcards<K>,
    sh: &SharedState<K>,
    key: &FlowKey,
    iface: Option<u16>,
) -> Leaving {
    listener(wildcards, sh, key, iface).map_or(Leaving::default(), |l| l.leaving())
}

/// The SYN cache and the wildcard entries that go with a connection table.
pub struct Passive<K: Kind> {
    syn: SynCache,
    wildcards: Wildcards<K>,
    /// Memory of the cache that the stack has been charged for, bytes.
    charged: usize,
}

/// The fewest buckets of a connection table's SYN cache.
const LEAST_BUCKETS: usize = 2;

impl<K: Kind> Passive<K> {
    /// No listener, no handshake. `tables`: how many connection tables of the stack, this one
    /// included, divide [`syn_buckets`](crate::shared::Config::syn_buckets) among them.
    pub fn new(sh: &SharedState<K>, tables: usize) -> Passive<K> {
        let [k0, k1] = sh.secret;
        let config = &sh.config;
        let share = (config.syn_buckets / tables.max(1)).max(LEAST_BUCKETS);
        // Rounded down: together they are no more than was asked for.
        let buckets = 1 << share.ilog2();
        let syn = SynCache::new(buckets, config.syn_depth, k0 ^ 0x5a5a, k1);
        Passive {
            syn: syn.with_cookies(config.syn_cookies),
            wildcards: Wildcards::default(),
            charged: 0,
        }
    }

    /// Charges the stack for what the cache has grown by, or gives it back.
    fn charge(&mut self, cx: &mut Ctx<K>) {
        let pinned = self.syn.pinned();
        if pinned != self.charged {
            cx.charge(self.charged, pinned);
            self.charged = pinned;
        }
    }

    /// A segment without a connection: for the SYN cache, a listener, or nobody. `iss` is given
    /// when it takes over a connection in TIME-WAIT. Yields a handshake that is complete; the
    /// connection is to be made and the segment given to it.
    #[cold]
    pub fn segment(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        iss: Option<Seq>,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        self.segment_from(cx, seg, iss, 0)
    }

    /// As [`Passive::segment`]; `origin` is kept with a new handshake and comes back in
    /// [`Established::origin`].
    #[cold]
    pub fn segment_from(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        iss: Option<Seq>,
        origin: u16,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let done = self.no_socket(cx, seg, iss, origin);
        self.charge(cx);
        done
    }

    fn no_socket(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        iss: Option<Seq>,
        origin: u16,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let now = cx.now();
        let (key, flags) = (seg.frame.key, seg.frame.hdr.flags);
        if flags.contains(TcpFlags::RST) {
            let known = self.syn.on_rst(&key, &seg.frame.hdr);
            if !known {
                self.challenge(cx, seg, now);
            }
            let l = self.listener(cx.sh, &key, Some(seg.iface));
            if let Some(l) = l.filter(|l| l.holds()) {
                l.request_reset(&key, seg.frame.hdr.seq, known);
            }
            cx.count(Count::NoConnection, 1);
            return None;
        }
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            self.syn_arrived(cx, seg, (iss, origin), now);
            return None;
        }
        let other = match self.syn.on_ack(&key, &seg.frame.hdr, now) {
            AckAction::Established(e) => return self.complete(cx, seg, e, now),
            AckAction::Ignore => {
                self.challenge(cx, seg, now);
                return None;
            }
            AckAction::Rst(seq) => Some(seq),
            AckAction::None => None,
        };
        if self.syn.expects_cookie(now)
            && let Some((l, e)) = self.cookie(cx, seg, origin, now)
        {
            // The next acknowledgment, or the data that the peer sends again, will do as well.
            if l.full() || cx.sh.memory_full() {
                cx.count(Count::SynDropped, 1);
                return None;
            }
            cx.count(Count::CookiesAccepted, 1);
            if l.holds() {
                l.request_complete(&key);
            }
            return Some((l, e));
        }
        match other {
            Some(seq) => {
                let rst = perimeter_tcp::Rst::new(seq, None);
                cx.sh.reset_no_socket(cx, seg, &rst);
            }
            // LISTEN: what has no SYN, ACK or RST is dropped (RFC 9293, section 3.10.7.2).
            None if !flags.contains(TcpFlags::ACK) && self.listens(seg) => {
                cx.count(Count::NoConnection, 1);
            }
            None => cx.sh.refuse(cx, seg),
        }
        None
    }

    /// A half-open connection's peer may have lost track: it is told where we are.
    fn challenge(&mut self, cx: &mut Ctx<K>, seg: &Seg, now: Time) {
        if let Some(ack) = self.syn.challenge(&seg.frame.key, &seg.frame.hdr, now) {
            let leaving = leaving(&self.wildcards, cx.sh, &seg.frame.key, Some(seg.iface));
            cx.sh.answer(cx, seg, &ack, leaving);
        }
    }

    fn listener(
        &self,
        sh: &SharedState<K>,
        key: &FlowKey,
        iface: Option<u16>,
    ) -> Option<&Arc<Listener<K>>> {
        listener(&self.wildcards, sh, key, iface)
    }

    /// Whether somebody listens where a segment goes to.
    pub fn listens(&self, seg: &Seg) -> bool {
        let to = wanted(&seg.frame.key, Some(seg.iface));
        self.wildcards.find(to, || 0).is_some()
    }

    /// The handshake by cookie that a segment completes.
    fn cookie(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        origin: u16,
        now: Time,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let (key, hdr) = (seg.frame.key, &seg.frame.hdr);
        if !hdr.flags.contains(TcpFlags::ACK) || hdr.flags.contains(TcpFlags::SYN) {
            return None;
        }
        let l = self.listener(cx.sh, &key, Some(seg.iface))?.clone();
        let params = params(cx.sh, &l, &syn(cx.sh, seg, None, origin));
        let ts = cx.sh.isn.ts_offset(&key);
        let Some(e) = self.syn.on_cookie(&key, hdr, &params, ts, now) else {
            cx.count(Count::CookiesRefused, 1);
            return None;
        };
        Some((l, e))
    }

    fn syn_arrived(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        (iss, origin): (Option<Seq>, u16),
        now: Time,
    ) {
        let key = seg.frame.key;
        let Some(l) = self.listener(cx.sh, &key, Some(seg.iface)) else {
            return cx.sh.refuse(cx, seg);
        };
        if cx.sh.memory_full() {
            return cx.count(Count::SynDropped, 1);
        }
        let l = l.clone();
        let syn = syn(cx.sh, seg, iss, origin);
        if l.holds() && !self.syn.knows(&key) {
            // What could not be accepted is not worth a decision.
            let held = match l.full() {
                true => Held::Full,
                false => l.hold(syn, now, &mut cx.deferred.wakes),
            };
            match held {
                Held::New => return cx.count(Count::SynsHeld, 1),
                Held::Again => return,
                Held::Full => return cx.count(Count::SynDropped, 1),
                Held::Allowed => {}
            }
        }
        self.answer(cx, &l, &syn, now);
    }

    /// A held SYN is allowed: it is answered, unless its listener has gone meanwhile.
    pub fn admit(&mut self, cx: &mut Ctx<K>, l: &Listener<K>, syn: &Syn) {
        if !self
            .listener(cx.sh, &syn.key, Some(syn.iface))
            .is_some_and(|found| found.id == l.id)
        {
            return;
        }
        let now = cx.now();
        self.answer(cx, l, syn, now);
        self.charge(cx);
    }

    fn answer(&mut self, cx: &mut Ctx<K>, l: &Listener<K>, syn: &Syn, now: Time) {
        let key = syn.key;
        let params = params(cx.sh, l, syn);
        let iss = syn.iss.unwrap_or_else(|| cx.sh.isn.iss(&key, now));
        let ts = cx.sh.isn.ts_offset(&key);
        match self.syn.on_syn(key, &syn.hdr, &params, iss, ts, now) {
            SynAction::SendSynAck(out) => cx.sh.reply(cx, &key, syn.from, &out, l.leaving()),
            SynAction::SendCookie(out) => {
                cx.count(Count::CookiesSent, 1);
                cx.sh.reply(cx, &key, syn.from, &out, l.leaving());
            }
            SynAction::Drop(_) => cx.count(Count::SynDropped, 1),
        }
        cx.deferred.armed = cx.deferred.armed.min(self.syn.deadline());
    }

    fn complete(
        &mut self,
        cx: &mut Ctx<K>,
        seg: &Seg,
        e: Established,
        now: Time,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let l = self.listener(cx.sh, &seg.frame.key, Some(seg.iface));
        let Some(l) = l.cloned() else {
            cx.sh.refuse(cx, seg);
            return None;
        };
        if l.full() || cx.sh.memory_full() {
            let from = cx.sh.came_from(seg);
            self.syn.put_back(seg.frame.key, &e, from, now);
            cx.deferred.armed = cx.deferred.armed.min(self.syn.deadline());
            cx.count(Count::SynDropped, 1);
            return None;
        }
        if l.holds() {
            l.request_complete(&seg.frame.key);
        }
        Some((l, e))
    }

    /// Adds a listener's wildcard entry.
    pub fn listen(&mut self, l: Arc<Listener<K>>) {
        self.wildcards.insert(l);
    }

    /// Removes a listener's wildcard entry, and the handshakes under way for it. Those that
    /// peers keep by cookie end as well: no other listener takes them. The peer of a handshake is
    /// told by a reset, as far as strangers get any: its acknowledgment may be on its way, and it
    /// believes that it is connected; when that arrives there may be no stack to refuse it.
    pub fn unlisten(&mut self, cx: &mut Ctx<K>, l: &Listener<K>) {
        self.wildcards.remove(l.id, l.port);
        let wildcards = &self.wildcards;
        let mut gone = |key: &FlowKey, from: Option<Origin>| {
            let to = wanted(key, from.map(|(iface, _)| iface));
            let was = l.is_at(to.port) && l.matches(to.local, to.iface);
            was && wildcards.find(to, || 0).is_none()
        };
        self.syn.remove_if(&mut gone, &mut |key, from, rst| {
            if cx.sh.may_reset(cx) {
                cx.sh.reply(cx, key, from, &rst, l.leaving());
            }
        });
        self.charge(cx);
    }

    /// An ICMP error for a flow without a connection: perhaps its SYN-ACK did not arrive.
    pub fn icmp(&mut self, cx: &mut Ctx<K>, key: &FlowKey, what: Icmp) {
        match what {
            Icmp::Unreachable(_, seq) => {
                self.syn.on_unreachable(key, seq);
                self.charge(cx);
            }
            // No SYN-ACK is so long.
            Icmp::TooBig(..) => cx.count(Count::TooBigRefused, 1),
        }
    }

    /// When [`Passive::on_timer`] has something to do.
    pub fn deadline(&self) -> Time {
        self.syn.deadline()
    }

    /// Sends again the SYN-ACKs that are due.
    pub fn on_timer(&mut self, cx: &mut Ctx<K>) {
        let now = cx.now();
        if self.syn.deadline() <= now {
            let wildcards = &self.wildcards;
            self.syn.on_timer(now, &mut |key, from, out| {
                cx.count(Count::Retransmits, 1);
                let leaving = leaving(wildcards, cx.sh, key, from.map(|(iface, _)| iface));
                cx.sh.reply(cx, key, from, &out, leaving);
            });
            self.charge(cx);
        }
    }
}
