//! Passive opens: what becomes of segments that belong to no connection. Whoever owns this owns
//! the SYN cache and the wildcard listeners of a connection table.

use crate::commons::Commons;
use crate::conn::Seg;
use crate::count::Count;
use crate::kind::{Ctx, Kind};
use crate::listener::{Listener, Wildcards};
use perimeter_base::Time;
use perimeter_tcp::SynCache;
use perimeter_tcp::syncache::{AckAction, Established, ListenParams, SynAction};
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use std::sync::Arc;

/// The SYN cache and the wildcard entries that go with a connection table.
pub struct Passive<K: Kind> {
    syn: SynCache,
    wildcards: Wildcards<K>,
}

impl<K: Kind> Passive<K> {
    /// No listener, no handshake.
    pub fn new(sh: &Commons<K>) -> Passive<K> {
        let [k0, k1] = sh.secret;
        Passive {
            syn: SynCache::new(sh.config.syn_buckets, sh.config.syn_depth, k0 ^ 0x5a5a, k1),
            wildcards: Wildcards::default(),
        }
    }

    /// A segment without a connection: for the SYN cache, a listener, or nobody. `iss` is given
    /// when it takes over a connection in TIME-WAIT. Yields a handshake that is complete; the
    /// connection is to be made and the segment given to it.
    #[cold]
    pub fn segment(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        seg: &Seg,
        iss: Option<Seq>,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        self.segment_from(sh, cx, seg, iss, 0)
    }

    /// As [`Passive::segment`]; `origin` is kept with a new handshake and comes back in
    /// [`Established::origin`].
    #[cold]
    pub fn segment_from(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        seg: &Seg,
        iss: Option<Seq>,
        origin: u16,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let now = cx.now(&sh.p);
        let (key, flags) = (seg.frame.key, seg.frame.hdr.flags);
        if flags.contains(TcpFlags::RST) {
            self.syn.on_rst(&key, &seg.frame.hdr);
            sh.count(cx.lane, Count::NoConnection, 1);
            return None;
        }
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            self.syn_arrived(sh, cx, seg, (iss, origin), now);
            return None;
        }
        match self.syn.on_ack(&key, &seg.frame.hdr, now) {
            AckAction::Established(e) => return self.complete(sh, cx, seg, e, now),
            AckAction::Rst(seq) => {
                let rst = perimeter_tcp::Rst::new(seq, None);
                sh.reply(cx, &key, seg.hash, &rst.seg());
            }
            AckAction::Ignore => {}
            AckAction::None => sh.refuse(cx, seg),
        }
        None
    }

    fn syn_arrived(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        seg: &Seg,
        (iss, origin): (Option<Seq>, u16),
        now: Time,
    ) {
        let key = seg.frame.key;
        let Some(l) = self.wildcards.find(key.local, key.local_port) else {
            return sh.refuse(cx, seg);
        };
        let iss = iss.unwrap_or_else(|| sh.isn.iss(&key, now));
        let ts = sh.isn.ts_offset(&key);
        let params = ListenParams {
            origin,
            ..l.params()
        };
        match self.syn.on_syn(key, &seg.frame.hdr, &params, iss, ts, now) {
            SynAction::SendSynAck(out) => sh.reply(cx, &key, seg.hash, &out),
            SynAction::Drop(_) => sh.count(cx.lane, Count::SynDropped, 1),
        }
        cx.after.armed = cx.after.armed.min(self.syn.deadline());
    }

    fn complete(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        seg: &Seg,
        e: Established,
        now: Time,
    ) -> Option<(Arc<Listener<K>>, Established)> {
        let Some(l) = self
            .wildcards
            .find(seg.frame.key.local, seg.frame.key.local_port)
            .cloned()
        else {
            sh.refuse(cx, seg);
            return None;
        };
        if l.full() {
            self.syn.put_back(seg.frame.key, &e, now);
            cx.after.armed = cx.after.armed.min(self.syn.deadline());
            sh.count(cx.lane, Count::SynDropped, 1);
            return None;
        }
        Some((l, e))
    }

    /// Adds a listener's wildcard entry.
    pub fn listen(&mut self, l: Arc<Listener<K>>) {
        self.wildcards.insert(l);
    }

    /// Removes a listener's wildcard entry, and the handshakes under way for it.
    pub fn unlisten(&mut self, l: &Listener<K>) {
        self.wildcards.remove(l.id, l.port);
        let (port, wildcards) = (l.port, &self.wildcards);
        self.syn.remove_if(&mut |key| {
            key.local_port == port
                && l.matches(key.local)
                && wildcards.find(key.local, port).is_none()
        });
    }

    /// ICMP: the SYN-ACK that starts at `seq` did not arrive.
    pub fn unreachable(&mut self, key: &FlowKey, seq: Seq) {
        self.syn.on_unreachable(key, seq);
    }

    /// When [`Passive::on_timer`] has something to do.
    pub fn deadline(&self) -> Time {
        self.syn.deadline()
    }

    /// Sends again the SYN-ACKs that are due.
    pub fn on_timer(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let now = cx.now(&sh.p);
        if self.syn.deadline() <= now {
            self.syn.on_timer(now, &mut |key, out| {
                sh.count(cx.lane, Count::Retransmits, 1);
                sh.reply(cx, key, sh.flow_hash(key), &out);
            });
        }
    }

    /// Handshakes under way.
    pub fn len(&self) -> usize {
        self.syn.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.syn.is_empty()
    }
}
