//! TCP sequence numbers (RFC 9293, section 3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// A sequence number: a point on the circle of 2³² octets.
///
/// There is deliberately no `Ord` or `PartialOrd`: "before" on a circle is not
/// transitive (`0 < 2³⁰·1 < 2³⁰·2 < 2³⁰·3 < 0`), so sorting or a `BTreeMap` of
/// `Seq` would be wrong. [`lt`](Seq::lt) and its kin compare two numbers less
/// than 2³¹ apart, which holds for any two numbers of one window (RFC 7323,
/// section 2.3, limits windows to 2³⁰). At a distance of exactly 2³¹ each of
/// two numbers is `lt` the other.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// Signed distance in octets from `earlier` to `self`, in `-2³¹..2³¹`.
    #[inline]
    pub const fn diff(self, earlier: Seq) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Distance in octets going forward from `earlier` to `self`, in `0..2³²`.
    #[inline]
    pub const fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// `self` is before `other`.
    #[inline]
    pub const fn lt(self, other: Seq) -> bool {
        self.diff(other) < 0
    }

    /// `self` is before `other` or equal to it.
    #[inline]
    pub const fn le(self, other: Seq) -> bool {
        self.diff(other) <= 0
    }

    /// `self` is after `other`: `other.lt(self)`, also at a distance of 2³¹.
    #[inline]
    pub const fn gt(self, other: Seq) -> bool {
        other.lt(self)
    }

    /// `self` is after `other` or equal to it: `other.le(self)`.
    #[inline]
    pub const fn ge(self, other: Seq) -> bool {
        other.le(self)
    }

    /// The later of the two; `self` when neither is.
    #[inline]
    pub const fn max(self, other: Seq) -> Seq {
        if self.lt(other) { other } else { self }
    }

    /// The earlier of the two; `self` when neither is.
    #[inline]
    pub const fn min(self, other: Seq) -> Seq {
        if other.lt(self) { other } else { self }
    }

    /// `lo <= self < hi` on the circle, going forward from `lo`. Exact for a
    /// range of any length below 2³²; the range is empty when `lo == hi`.
    #[inline]
    pub const fn between(self, lo: Seq, hi: Seq) -> bool {
        self.since(lo) < hi.since(lo)
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn add(self, octets: u32) -> Seq {
        Seq(self.0.wrapping_add(octets))
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn sub(self, octets: u32) -> Seq {
        Seq(self.0.wrapping_sub(octets))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, octets: u32) {
        *self = *self + octets;
    }
}

impl SubAssign<u32> for Seq {
    #[inline]
    fn sub_assign(&mut self, octets: u32) {
        *self = *self - octets;
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
