//! How long a test waits for another program.

use std::time::{Duration, Instant};

/// Most that may pass between two looks without the machine having stood still.
const LOOK: Duration = Duration::from_secs(1);

/// A time limit that does not run out while the whole machine stands still, as a virtual one does
/// that is being moved: the clock goes on meanwhile, and the other program had none of that time.
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// Lasts so long from now on.
    pub fn new(time: Duration) -> Patience {
        Patience {
            left: time,
            looked: Instant::now(),
        }
    }

    /// Whether there is some left. To be asked many times a second.
    pub fn lasts(&mut self) -> bool {
        let passed = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        self.left = self.left.saturating_sub(passed.min(LOOK));
        !self.left.is_zero()
    }
}
