//! What a stack is opened with, and how one organization on one platform becomes one.

use crate::Org;
use crate::engine::{Engine, Running};
use crate::instance::Instance;
use crate::protocol::Protocol;
use crate::serve;
pub use crate::serve::Inbound;
use crate::spec::OrgSpec;
use crate::udp::Udp;
use perimeter_stack::{Config, IfaceSpec, Kind, Route};
use perimeter_sync::Platform;
use perimeter_sync::native::Profiling;
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
    /// What the platform notes for ([`perimeter_sync::Native::with_profiling`]), if it does: kept
    /// for as long as the stack.
    pub profiling: Option<Profiling>,
}

/// Opens a stack of an organization that is given as a type: how one from outside this crate gets
/// in. `options.org` is what it is called and what [`Org::new`] sees;
/// [`OrgSpec::outside`] for one that is not of this crate. `protocols` are those beside TCP.
pub fn open_with<O: Org>(
    p: <O::K as Kind>::P,
    options: Options,
    protocols: Vec<Arc<dyn Protocol<O>>>,
) -> Arc<Running<O>> {
    let o = options;
    let inline = o.org.single_threaded() || o.inbound == Inbound::Inline;
    let i = Instance::new(p, o.org, o.config, (o.ifaces, o.routes), protocols);
    let i = Arc::new(i);
    let joins = serve::start(&i, o.inbound);
    Arc::new(Running {
        i,
        joins: Mutex::new(joins),
        inline,
        _profiling: o.profiling,
    })
}

/// The same, with TCP and UDP.
pub fn open_as<O: Org>(p: <O::K as Kind>::P, options: Options) -> Arc<dyn Engine> {
    open_with::<O>(p, options, vec![Arc::new(Udp)])
}

/// Who wants to know which type the name of an organization stands for.
pub trait Visit<P: Platform> {
    /// What comes of it.
    type Out;

    /// It is `O`.
    fn visit<O>(self, p: P, options: Options) -> Self::Out
    where
        O: Org,
        O::K: Kind<P = P>;
}

/// Starts it.
pub(crate) struct Start;

impl<P: Platform> Visit<P> for Start {
    type Out = Arc<dyn Engine>;

    fn visit<O>(self, p: P, options: Options) -> Arc<dyn Engine>
    where
        O: Org,
        O::K: Kind<P = P>,
    {
        open_as::<O>(p, options)
    }
}
