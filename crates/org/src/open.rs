//! From a name to a running stack: each organization × platform is one instance, chosen here
//! at run time.

use crate::Org;
use crate::connp_l::ConnpL;
use crate::connp_t::{self, ConnpT};
use crate::engine::{Engine, Running};
use crate::instance::Instance;
use crate::msgp::Msgp;
use crate::pef::Pef;
use crate::serve;
pub use crate::serve::Inbound;
use crate::spec::OrgSpec;
use crate::squeue::FireEngine;
use crate::streams::Streams;
use crate::up::{Up, UpShared};
use perimeter_stack::{Config, IfaceSpec, Kind, Route};
use perimeter_sync::native::Profiling;
use perimeter_sync::{Native, Platform, Virtual};
use std::sync::{Arc, Mutex};

/// What to open a stack with.
pub struct Options {
    /// The organization.
    pub org: OrgSpec,
    /// Settings.
    pub config: Config,
    /// Interfaces.
    pub ifaces: Vec<IfaceSpec>,
    /// Routes beside those of the interfaces' own prefixes.
    pub routes: Vec<Route>,
    /// Who takes packets from the devices.
    pub inbound: Inbound,
    /// What the platform notes for ([`Native::with_profiling`]), if it does: kept for as long as
    /// the stack.
    pub profiling: Option<Profiling>,
}

/// The platforms that a stack can run on.
#[derive(Clone)]
pub enum Platforms {
    /// This machine.
    Native(Native),
    /// Virtual cores.
    Virtual(Virtual),
}

/// Opens a stack.
///
/// # Panics
/// The organization is [`OrgSpec::Outside`]: [`open_as`] opens those.
pub fn open(platform: Platforms, options: Options) -> Arc<dyn Engine> {
    match platform {
        Platforms::Native(p) => on(p, options),
        Platforms::Virtual(p) => on(p, options),
    }
}

fn on<P: Platform>(p: P, o: Options) -> Arc<dyn Engine> {
    match o.org {
        OrgSpec::Up | OrgSpec::UpNetisr => start::<Up<P>, P>(p, o),
        OrgSpec::Msgp(_) => start::<Msgp<P>, P>(p, o),
        OrgSpec::Squeue(_) => start::<FireEngine<P>, P>(p, o),
        OrgSpec::ConnpT(spec) if spec.fold => start::<ConnpT<connp_t::Whole<P>>, P>(p, o),
        OrgSpec::ConnpT(_) => start::<ConnpT<connp_t::Apart<P>>, P>(p, o),
        OrgSpec::Streams => start::<Streams<P>, P>(p, o),
        OrgSpec::Pef(_) => start::<Pef<P>, P>(p, o),
        OrgSpec::UpShared => start::<UpShared<P>, P>(p, o),
        OrgSpec::ConnpL { .. } => start::<ConnpL<P>, P>(p, o),
        OrgSpec::Outside(name) => panic!("`{name}` is opened with `open_as`"),
        #[cfg(feature = "testing")]
        OrgSpec::Split => start::<crate::split::Split<P>, P>(p, o),
    }
}

/// Opens a stack of an organization that is given as a type: how one from outside this crate gets
/// in. `options.org` is what it is called and what [`Org::new`] sees;
/// [`OrgSpec::Outside`] for one that is not of this crate.
pub fn open_as<O>(p: <O::K as Kind>::P, options: Options) -> Arc<dyn Engine>
where
    O: Org,
{
    start::<O, _>(p, options)
}

fn start<O, P>(p: P, o: Options) -> Arc<dyn Engine>
where
    P: Platform,
    O: Org,
    O::K: Kind<P = P>,
{
    let inline = o.org.single_threaded() || o.inbound == Inbound::Inline;
    let i = Arc::new(Instance::<O>::new(p, o.org, o.config, o.ifaces, o.routes));
    let joins = serve::start(&i, o.inbound);
    Arc::new(Running {
        i,
        joins: Mutex::new(joins),
        inline,
        _profiling: o.profiling,
    })
}
