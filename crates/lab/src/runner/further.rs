//! Further passes, after those of the plans: for what lacks runs with near cores, or with far ones.

use super::{
    Backends, Runner, order,
    passes::{Lacking, lacking},
    point,
};
use crate::{
    Error,
    host::apart,
    plan::{Cell, Plan},
    units,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How often the distance of the cores is looked at where nothing can be done with the present one.
const LOOK: Duration = Duration::from_secs(2);

impl<'a> Runner<'a> {
    /// Makes further passes for as long as was asked for, or until nothing lacks runs of either
    /// kind; none on one core. `look` tells how far apart the cores are.
    ///
    /// # Errors
    /// That a row can't be recorded.
    pub(super) fn further(
        &mut self,
        look: &mut dyn FnMut() -> Option<f64>,
        backends: Backends<'_>,
    ) -> Result<(), Error> {
        if self.host.cores < 2 {
            return Ok(());
        }
        let until = Instant::now() + self.request.more;
        let mut told = None;
        while Instant::now() < until {
            if self.is_stopped() {
                return Ok(());
            }
            let is_far = look().map(apart::is_far);
            if let Some(is_far) = is_far
                && let Some((plan, cells)) = self.next_lacking(is_far)?
            {
                self.again(plan, &cells, until, backends)?;
                continue;
            }
            let lacks = [self.next_lacking(false)?, self.next_lacking(true)?];
            let wanted = match lacks.map(|l| l.is_some()) {
                [false, false] => return Ok(()),
                [true, true] => "to tell how far apart the cores are",
                [true, false] => "for near cores",
                [false, true] => "for far cores",
            };
            let left = until.saturating_duration_since(Instant::now());
            if told.replace(wanted) != Some(wanted) {
                let at_most = units::roughly(left);
                let line = format!("waiting {wanted}, {at_most} at most");
                self.watcher.remark(&line);
            }
            thread::sleep(LOOK.min(left));
        }
        Ok(())
    }

    /// Of the plans that lack runs with such cores the one that soonest has enough, so that whatever
    /// time there is gives most verdicts, and what of it lacks them.
    fn next_lacking(&self, is_far: bool) -> Result<Option<(&'a Plan, Vec<Cell>)>, Error> {
        let request = self.request;
        let mut soonest: Option<(Duration, &Plan, Vec<Cell>)> = None;
        for plan in &request.plans {
            // What is modelled does not depend on it.
            if plan.metric.is_modelled() {
                continue;
            }
            let measured = |cell: Cell| {
                let point = point(plan, &cell);
                let passes = self.passes.get(&point)?;
                (!self.is_given_up(&point)).then(|| (cell, passes.of(is_far)))
            };
            let cells = plan.cells(request.mode, request.device)?.into_iter();
            let (cells, points): (Vec<_>, Vec<_>) = cells.filter_map(measured).unzip();
            let Lacking { which, passes } = lacking(&points);
            let cells: Vec<Cell> = which.into_iter().map(|i| cells[i].clone()).collect();
            let takes = cells.iter().map(Cell::estimate).sum::<Duration>() * passes;
            if !cells.is_empty() && soonest.as_ref().is_none_or(|(least, ..)| takes < *least) {
                soonest = Some((takes, plan, cells));
            }
        }
        Ok(soonest.map(|(_, plan, cells)| (plan, cells)))
    }

    /// One further pass over `cells`.
    fn again(
        &mut self,
        plan: &Plan,
        cells: &[Cell],
        until: Instant,
        backends: Backends<'_>,
    ) -> Result<(), Error> {
        let of_plan = self.passes.iter().filter(|(point, _)| point.0 == plan.name);
        let repeat = of_plan.map(|(_, p)| p.last + 1).max().unwrap_or(0);
        self.of += cells.len();
        for index in order(cells.len(), self.request.seed, &plan.name, repeat) {
            let left = until.saturating_duration_since(Instant::now());
            if self.is_stopped() || left.is_zero() {
                return Ok(());
            }
            // It is time by the clock already, and `once` multiplies it by the pace.
            self.left = left.div_f64(self.pace());
            let cell = &cells[index];
            let mut backend = backends(cell);
            let configuration = std::slice::from_ref(&cell.configuration);
            if backend.check(&cell.settings, configuration).is_ok() {
                self.once(plan, cell, repeat, &mut *backend)?;
            }
            self.done += 1;
        }
        Ok(())
    }
}
