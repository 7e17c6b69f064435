//! Somebody else's events: what a callback is shown of a packet, and what becomes of its answer.

use super::cell::Defaults;
use super::counted::EVENT_PANICS;
use super::event::{Packet, Peek, Verdict};
use super::framework::{Body, Env, Inner, Msg, Pef, Pkt};
use super::list::{Callback, Event, ListRef, caught};
use super::moving::at_home;
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_stack::segment::Turn;
use perimeter_stack::{Cell, SockId, ops, output};
use perimeter_sync::{Lock, Platform};
use perimeter_tcp::{Info, Tcb};
use perimeter_wire::{FlowKey, TcpHdr};

/// A connection's TCP state, for events under its perimeter.
#[derive(Debug)]
struct Looking<'a>(&'a Tcb, Time);

impl Peek for Looking<'_> {
    fn info(&self) -> Info {
        self.0.info(self.1)
    }
}

impl<P: Platform> Pef<P> {
    /// Somebody else's event.
    pub(super) fn foreign(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        event: &Event,
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        let Callback::Foreign(callback) = &event.callback else {
            return Verdict::Next;
        };
        let member = at.as_ref().and_then(|(_, inner)| inner.shard.peek(pkt.id));
        // Not before what the connection has seen: its last packet may have come by a thread that
        // read the clock later.
        let seen = member.map_or(Time::ZERO, |m| m.peek().meta.now);
        let now = env.cx.now_from(seen);
        let looking = member.map(|m| Looking(&m.peek().tcb, now));
        let (mut disable, mut panics) = (false, 0);
        let mut sends = Vec::new();
        let mut ask = |iface, flow, header: Option<&TcpHdr>, len: u32, payload: &mut [u8]| {
            if panics > 0 {
                return Verdict::Next;
            }
            let mut view = Packet {
                now,
                direction: pkt.direction,
                layer: event.layer,
                flow,
                header,
                len,
                payload,
                iface,
                send: Vec::new(),
                tcp: looking.as_ref().map(|l| l as &dyn Peek),
                disable: false,
            };
            let Some(verdict) = caught(|| callback.on_packet(&mut view)) else {
                panics += 1;
                return Verdict::Next;
            };
            disable |= view.disable;
            sends.append(&mut view.send);
            verdict
        };
        let mut lost = 0;
        let verdict = match &mut pkt.body {
            Body::Seg(seg) => {
                let len = seg.payload.len() as u32;
                let payload = seg.payload.as_mut_slice();
                // In front of IP nobody has looked at the frame.
                let header = (seg.ip == Turn::Done).then_some(&seg.frame.hdr);
                ask(0, seg.frame.key, header, len, payload)
            }
            Body::Up(key, hdr, up) => {
                // Each buffer is a packet here; one that is done goes no further.
                up.data.retain(|b| {
                    let len = b.len() as u32;
                    let keep = ask(0, *key, hdr.as_ref(), len, b.as_mut_slice()) != Verdict::Done;
                    lost += if keep { 0 } else { len };
                    keep
                });
                Verdict::Next
            }
            Body::Chain(apart) => {
                let (key, n) = (apart.key, apart.out.segs.len());
                apart.out.segs.retain(|s| {
                    let hdr = s.plan.seg.to_hdr(key.local_port, key.remote_port);
                    ask(0, key, Some(&hdr), s.plan.len, &mut []) != Verdict::Done
                });
                output::dropped(&mut env.cx, apart, n - apart.out.segs.len());
                Verdict::Next
            }
            Body::Call(call) => match call.data() {
                Some(data) => {
                    let len = data.len() as u32;
                    match self.key_of(pkt.id) {
                        Some(key) => ask(0, key, None, len, data),
                        None => Verdict::Next,
                    }
                }
                None => Verdict::Next,
            },
            Body::Frame(iface, b) => {
                let len = b.len() as u32;
                ask(*iface, FlowKey::UNSPECIFIED, None, len, b.as_mut_slice())
            }
            Body::Datagrams(all) => {
                all.look(&mut env.cx, &mut |key, iface, data| {
                    ask(iface, *key, None, data.len() as u32, data) != Verdict::Done
                });
                Verdict::Next
            }
            Body::Sent(sent) => {
                sent.all().look(&mut env.cx, &mut |key, iface, data| {
                    ask(iface, *key, None, data.len() as u32, data) != Verdict::Done
                });
                Verdict::Next
            }
            Body::Nothing => Verdict::Done,
        };
        let off = if panics > 0 {
            env.cx.count_own(EVENT_PANICS, panics);
            event.break_off()
        } else {
            disable && event.switch_off()
        };
        if off {
            self.sweep_defaults();
        }
        if !pkt.direction.is_of_connection() {
            for (iface, frame) in sends {
                env.cx.sh.send_frame(&mut env.cx, iface, &frame);
            }
            return verdict;
        }
        if lost > 0 {
            self.lost(env, pkt.id, lost);
        }
        if off {
            self.sweep(pkt.id);
        }
        verdict
    }

    /// The lists that connections start with, and those of datagrams and of packets without a
    /// connection, lose their tombstones.
    #[cold]
    fn sweep_defaults(&self) {
        // What the callbacks own is dropped when the lock has been released.
        let mut old = Vec::new();
        let mut d = self.manner.defaults.lock();
        let Defaults {
            lists,
            datagrams,
            unbound,
        } = &mut *d;
        let stacks = datagrams.iter_mut().chain([&mut *unbound]);
        for list in lists.iter_mut().chain(stacks) {
            if list.has_tombstones() {
                let swept = ListRef::new(list.swept());
                old.push(core::mem::replace(list, swept));
            }
        }
        self.wanted.store(!unbound.is_empty(), Ordering::Release);
        for (watched, list) in self.watched.iter().zip(datagrams) {
            watched.store(!list.is_plain(), Ordering::Release);
        }
    }

    /// An event has dropped data on its way to the socket: it takes up no room there, and TCP is
    /// told if it waits for that.
    fn lost(&self, env: &mut Env<'_, P>, id: SockId, n: u32) {
        let Some(place) = self.place(id) else {
            return;
        };
        let tell = {
            let mut part = place.rcv.lock();
            part.generation == id.generation() && part.value.took(n)
        };
        if tell {
            let job = at_home(id, move |_, env, _, inner| {
                inner.shard.with(&mut env.cx, id, true, ops::tell_space);
            });
            self.post(env, self.home(id), Msg::Job(job));
        }
    }
}
