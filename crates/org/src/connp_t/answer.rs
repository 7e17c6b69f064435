//! Asking a protocol thread and waiting for its answer, also when it has ended. The answer is the
//! message itself, which comes back to a place that each thread keeps: a call allocates nothing,
//! where a [`crate::answer`] is allocated for each question.

use super::cell::Keep;
use super::spec::Waiting;
use super::thread::{ConnpT, Job, Msg, NOBODY, Reply, Stock};
use crate::Kd;
use core::any::{Any, TypeId};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_stack::{Ctx, Sleeper};
use perimeter_sync::{Event, Mpsc, Platform};

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// How soon who waits for an answer looks again what ended threads have left, ns.
const RESCUE: u64 = 100_000;

/// How many times who waits looks again when a protocol thread has panicked.
const PATIENCE: u32 = 100;

/// `wait=spin`: how long a thread looks for an answer, or for work, before it parks, ns.
const SPIN: u64 = 20_000;
/// How many times it looks at most.
const LOOKS: u32 = 256;

impl<C: Keep> ConnpT<C> {
    /// Hands an answer to who waits for it.
    pub(super) fn answer(&self, who: u32, job: Box<dyn Job<C>>) {
        if let Some(reply) = self.replies.get(who) {
            // It waits for one answer, so there is room.
            let _ = reply.answer.push(job);
            reply.event.set();
        }
    }

    /// Sends a job and waits for it to come back; `None` if it never will, its thread having
    /// panicked.
    pub(super) fn ask<J: Job<C>>(
        &self,
        mut with: Option<&mut Ctx<Kd<C::P>>>,
        to: usize,
        job: Box<J>,
    ) -> Option<Box<J>> {
        let lane = self.p.lane() as u32;
        let make = || Reply {
            answer: Mpsc::new(self.p.clone(), 1),
            event: self.p.event(),
        };
        let reply = self.replies.get_or_make(lane, make)?;
        if self.ended.load(Ordering::SeqCst) {
            // What a thread that panicked owed to an earlier call.
            while reply.answer.pop().is_some() {}
        }
        // A job is no packet, so there is room.
        let _ = self.owners[to].inbox.put(Msg::Job(job, lane));
        let mut back = None;
        match &mut with {
            Some(cx) if self.is_here(to) => back = self.fold(cx, to),
            _ => self.wake(to),
        }
        if back.is_none() && self.spec.wait == Waiting::Spin && self.core(to) != self.p.core() {
            back = self.spin(with.as_deref_mut(), reply);
        }
        let job: Box<dyn Any> = match back {
            Some(job) => job,
            None => self.park_for(with, to, reply)?,
        };
        job.downcast().ok()
    }

    /// Looks for an answer for a while, and plays the protocol's role meanwhile if it is this
    /// thread's.
    pub(super) fn spin(
        &self,
        mut with: Option<&mut Ctx<Kd<C::P>>>,
        reply: &Reply<C>,
    ) -> Option<Box<dyn Job<C>>> {
        let mut back = None;
        self.look(|| {
            if let Some(cx) = &mut with {
                for thread in self.roles() {
                    if !self.owners[thread].inbox.is_empty() {
                        back = back.take().or_else(|| self.fold(cx, thread));
                    }
                }
            }
            back.is_some() || !reply.answer.is_empty()
        });
        back
    }

    /// Calls `found` until it holds, for at most [`SPIN`]; whether it did.
    pub(super) fn look(&self, mut found: impl FnMut() -> bool) -> bool {
        let end = self.p.now().plus(SPIN);
        for _ in 0..LOOKS {
            if found() {
                return true;
            }
            self.p.pause();
            if self.p.now() >= end {
                break;
            }
        }
        false
    }

    /// Sleeps until an answer has come, most likely from thread `to`.
    pub(super) fn park_for(
        &self,
        mut with: Option<&mut Ctx<Kd<C::P>>>,
        to: usize,
        reply: &Reply<C>,
    ) -> Option<Box<dyn Job<C>>> {
        let mut tries = 0;
        while tries <= PATIENCE {
            if let Some(job) = reply.answer.pop() {
                return Some(job);
            }
            let mut until = Time::NEVER;
            if self.ended.load(Ordering::SeqCst) {
                let broken = self.rescue(with.as_deref_mut(), to, || !reply.answer.is_empty());
                if !reply.answer.is_empty() {
                    continue;
                }
                until = self.p.now().plus(RESCUE);
                tries += u32::from(broken);
            }
            match &with {
                Some(cx) => cx.sh.asleep(Sleeper::Caller, || reply.event.wait(until)),
                None => reply.event.wait(until),
            };
        }
        None
    }

    /// Does what ended threads have left, from thread `first` on until it is `enough`: runs it, or,
    /// without the means for that, sends it back unanswered. Whether one of them has left more than
    /// that can mend.
    pub(super) fn rescue(
        &self,
        mut with: Option<&mut Ctx<Kd<C::P>>>,
        first: usize,
        enough: impl Fn() -> bool,
    ) -> bool {
        let mut broken = false;
        let (before, from) = self.owners.split_at(first);
        for owner in from.iter().chain(before) {
            if enough() {
                break;
            }
            broken |= owner.group.is_broken();
            if !owner.gone.load(Ordering::SeqCst) {
                continue;
            }
            let Some(mut group) = owner.group.try_own() else {
                continue;
            };
            if let Some(cx) = &mut with {
                // What others send meanwhile they look after themselves.
                for _ in 0..owner.inbox.len().max(1) {
                    if group.turn(self, cx) == 0 {
                        break;
                    }
                }
                if let Some(job) = group.mine.take() {
                    self.answer(cx.lane as u32, job);
                }
            } else {
                let mut left = Vec::new();
                while owner.inbox.take(&mut group.outlet, &mut left, usize::MAX) > 0 {}
                for msg in left {
                    match msg {
                        Msg::Job(job, who) if who != NOBODY => self.answer(who, job),
                        _ => {}
                    }
                }
            }
            let _ = owner.publish(&self.p, &group);
        }
        broken
    }

    /// If threads have ended, somebody else must run what is sent to them.
    pub(super) fn after_the_end(&self, cx: &mut Ctx<Kd<C::P>>) {
        if self.ended.load(Ordering::SeqCst) {
            self.rescue(Some(cx), 0, || false);
        }
    }

    /// A message of that type that this thread has used before.
    pub(super) fn used<J: Job<C>>(&self) -> Option<Box<J>> {
        let mut stock = self.stock.take()?;
        let found = stock.0.iter().position(|(t, _)| *t == TypeId::of::<J>());
        let job = found.map(|i| stock.0.swap_remove(i).1);
        self.stock.put(stock);
        let job: Box<dyn Any> = job?;
        job.downcast().ok()
    }

    /// Keeps a message for the next use.
    pub(super) fn keep<J: Job<C>>(&self, job: Box<J>) {
        let fresh = || Box::new(Stock(Vec::new()));
        let mut stock = self.stock.take().unwrap_or_else(fresh);
        stock.0.push((TypeId::of::<J>(), job));
        self.stock.put(stock);
    }
}
