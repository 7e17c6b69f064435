//! Connections that no application holds any more: how many there may be, and which of them ends
//! when there are too many.
//!
//! There are two accounts, as in Linux. [`End::Orphan`]s still have something to deliver: data,
//! or at least their FIN. [`End::Waiting`] are those whose part is done: TIME-WAIT, and
//! FIN-WAIT-2, which by then owes the peer nothing but patience. A connection that closes is
//! always taken in. When its account is full, the one that has been in it for longest ends: a
//! waiting connection loses only what is left of its wait, and the oldest orphan is the one whose
//! peer had the most time to take the data. (Linux resets the orphan that closes at that moment;
//! then an attacker who fills the account with connections that make no progress decides over all
//! who come later.)
//!
//! The limits are the whole stack's. Perimeters take their share from a [`Quota`](crate::quota::Quota) some places at
//! a time, so that they rarely meet there; one that gets none ends its own oldest. A perimeter
//! that has none to end goes over the limit by one.

use crate::ctx::Ctx;
use crate::id::SockId;
use crate::kind::Kind;
use crate::quota::End;

const NONE: u32 = u32::MAX;

/// Where a slot's connection stands. Slots whose connections are counted nowhere have no more
/// than their place here.
#[derive(Copy, Clone)]
struct Node {
    id: Option<SockId>,
    /// Its account; `None`: it was told to end.
    end: Option<End>,
    prev: u32,
    next: u32,
}

const NOBODY: Node = Node {
    id: None,
    end: None,
    prev: NONE,
    next: NONE,
};

/// One account: a list in the order of arrival.
#[derive(Copy, Clone)]
struct Account {
    head: u32,
    tail: u32,
    len: usize,
    /// Places taken from the quota.
    granted: usize,
}

/// The two accounts of one perimeter. All operations take constant time.
pub struct Ends {
    nodes: Vec<Node>,
    accounts: [Account; 2],
}

impl Default for Ends {
    /// Accounts that get their places from the stack's quotas.
    fn default() -> Ends {
        Ends::with_limits([0, 0])
    }
}

impl Ends {
    /// Accounts of so many orphans and waiting connections, for a perimeter that is the only one
    /// and asks no quota.
    pub fn with_limits(limits: [usize; 2]) -> Ends {
        let account = |granted| Account {
            head: NONE,
            tail: NONE,
            len: 0,
            granted,
        };
        Ends {
            nodes: Vec::new(),
            accounts: limits.map(account),
        }
    }

    /// Counts the connection `id` as `end` from now on, `None`: not any more. Yields whoever is to
    /// end for it, and as what that one was counted.
    pub fn set(&mut self, id: SockId, end: Option<End>) -> Option<(SockId, End)> {
        self.set_at(id.slot(), id, end)
    }

    /// As [`Ends::set`], for a connection that is in `slot` here, whatever its name says.
    fn set_at(&mut self, slot: u32, id: SockId, end: Option<End>) -> Option<(SockId, End)> {
        let node = self.nodes.get(slot as usize).copied().unwrap_or(NOBODY);
        let known = node.id == Some(id);
        if known && end.is_some() && (node.end == end || node.end.is_none()) {
            return None;
        }
        if !known && end.is_none() {
            return None;
        }
        if let Some(old) = node.end {
            self.unlink(slot, old);
        }
        let Some(end) = end else {
            if let Some(node) = self.nodes.get_mut(slot as usize) {
                *node = NOBODY;
            }
            return None;
        };
        self.push(slot, id, end);
        let account = &self.accounts[end as usize];
        if account.len <= account.granted || account.len == 1 {
            return None;
        }
        let oldest = account.head;
        self.unlink(oldest, end);
        // It is told once.
        let id = self.nodes[oldest as usize].id?;
        Some((id, end))
    }

    fn push(&mut self, slot: u32, id: SockId, end: End) {
        if self.nodes.len() <= slot as usize {
            self.nodes.resize(slot as usize + 1, NOBODY);
        }
        let account = &mut self.accounts[end as usize];
        self.nodes[slot as usize] = Node {
            id: Some(id),
            end: Some(end),
            prev: account.tail,
            next: NONE,
        };
        match account.tail {
            NONE => account.head = slot,
            tail => self.nodes[tail as usize].next = slot,
        }
        account.tail = slot;
        account.len += 1;
    }

    fn unlink(&mut self, slot: u32, end: End) {
        let Node { prev, next, .. } = self.nodes[slot as usize];
        let account = &mut self.accounts[end as usize];
        match prev {
            NONE => account.head = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => account.tail = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        account.len -= 1;
        self.nodes[slot as usize].end = None;
    }

    /// As [`Ends::set`] for the connection in `slot` of a perimeter among others: places come from
    /// the stack's quotas, and whoever is to end is noted in `cx.deferred`.
    pub fn note<K: Kind>(&mut self, cx: &mut Ctx<K>, (slot, id): (u32, SockId), end: Option<End>) {
        if let Some(end) = end {
            let account = &mut self.accounts[end as usize];
            if account.len == account.granted {
                account.granted += cx.sh.quotas[end as usize].take();
            }
        }
        let ended = self.set_at(slot, id, end);
        tell(cx, ended);
        for end in End::ALL {
            let account = &mut self.accounts[end as usize];
            let quota = &cx.sh.quotas[end as usize];
            account.granted = quota.relieve(account.len, account.granted);
        }
    }
}

/// Sees to it that whoever [`Ends::set`] yielded ends, once the perimeter is left.
pub fn tell<K: Kind>(cx: &mut Ctx<K>, ended: Option<(SockId, End)>) {
    if let Some((id, end)) = ended {
        cx.count(end.count(), 1);
        cx.deferred.aborts.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use crate::shared::Config;
    use crate::{Own, SharedState};
    use perimeter_sync::Native;
    use std::collections::VecDeque;

    /// How many orphans, and how many who wait.
    fn counted(e: &Ends) -> (usize, usize) {
        (e.accounts[0].len, e.accounts[1].len)
    }

    fn id(slot: u32, generation: u32) -> SockId {
        SockId::conn(0, slot, generation)
    }

    #[test]
    fn the_oldest_of_the_same_account_ends() {
        let mut e = Ends::with_limits([2, 3]);
        for slot in 0..2 {
            assert_eq!(e.set(id(slot, 1), Some(End::Orphan)), None);
        }
        for slot in 2..5 {
            assert_eq!(e.set(id(slot, 1), Some(End::Waiting)), None);
        }
        // Told again: nothing changes, not even the order.
        assert_eq!(e.set(id(2, 1), Some(End::Waiting)), None);
        let waiting = Some((id(2, 1), End::Waiting));
        assert_eq!(e.set(id(5, 1), Some(End::Waiting)), waiting);
        let orphan = Some((id(0, 1), End::Orphan));
        assert_eq!(e.set(id(6, 1), Some(End::Orphan)), orphan);
        // Who was told is not told again, nor counted while it lasts.
        assert_eq!(e.set(id(0, 1), Some(End::Waiting)), None);
        assert_eq!(counted(&e), (2, 3));
        assert_eq!(e.set(id(0, 1), None), None);
        // The next one in that place is somebody else.
        let orphan = Some((id(1, 1), End::Orphan));
        assert_eq!(e.set(id(0, 2), Some(End::Orphan)), orphan);
        // From one account to the other.
        let waiting = Some((id(3, 1), End::Waiting));
        assert_eq!(e.set(id(6, 1), Some(End::Waiting)), waiting);
        assert_eq!(counted(&e), (1, 3));
    }

    #[test]
    fn agrees_with_a_queue() {
        let mut e = Ends::with_limits([20, 50]);
        let mut model: [VecDeque<u32>; 2] = Default::default();
        let limits = [20, 50];
        let mut x = 1u64;
        for _ in 0..100_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = (x >> 40) as u32 % 100;
            let end = match x >> 61 {
                0..3 => Some(End::Orphan),
                3..6 => Some(End::Waiting),
                _ => None,
            };
            let ended = e.set(id(slot, 1), end);
            if let Some(end) = end
                && model[end as usize].contains(&slot)
            {
                assert_eq!(ended, None);
                continue;
            }
            model.iter_mut().for_each(|m| m.retain(|s| *s != slot));
            let mut want = None;
            if let Some(end) = end {
                let m = &mut model[end as usize];
                m.push_back(slot);
                if m.len() > limits[end as usize] {
                    want = m.pop_front().map(|s| (id(s, 1), end));
                }
            }
            assert_eq!(ended, want);
            if let Some((gone, _)) = ended {
                assert_eq!(e.set(gone, None), None);
            }
            assert_eq!(counted(&e), (model[0].len(), model[1].len()));
        }
    }

    #[test]
    fn perimeters_share_a_quota() {
        let config = Config {
            orphans: 10,
            ..Config::default()
        };
        let sh = SharedState::<OneThread>::new(Native::default(), config, Vec::new(), Vec::new());
        let mut own = Own::new(0, sh.packets.clone());
        let mut cx = Ctx::new(&sh, &mut own);
        let (mut a, mut b) = (Ends::default(), Ends::default());
        for slot in 0..8 {
            a.note(&mut cx, (slot, id(slot, 1)), Some(End::Orphan));
        }
        for slot in 0..4 {
            b.note(&mut cx, (slot, id(slot, 2)), Some(End::Orphan));
        }
        // The whole stack has its ten; who wants more ends its own oldest.
        assert_eq!((counted(&a).0, counted(&b).0), (8, 2));
        assert_eq!(cx.deferred.aborts, [id(0, 2), id(1, 2)]);
        // What one gives back the other may have.
        for slot in 0..8 {
            a.note(&mut cx, (slot, id(slot, 1)), None);
        }
        for slot in 4..10 {
            b.note(&mut cx, (slot, id(slot, 2)), Some(End::Orphan));
        }
        assert_eq!(counted(&a), (0, 0));
        assert_eq!((counted(&b).0, cx.deferred.aborts.len()), (8, 2));
    }
}
