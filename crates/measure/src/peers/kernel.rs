//! The host's kernel as the other end, behind a TAP interface that the stack under test makes.

use crate::{
    Error,
    linux::{
        Job,
        sockets::{self, Near, Worksite, give_up},
        veth::{self, Namespace},
    },
    ours,
    session::Worker,
    workload::{Control, Family, Roles, Settings},
};
use std::{
    net::{SocketAddr, SocketAddrV4},
    sync::{Arc, mpsc},
    time::Instant,
};

/// Name of the interface, in a namespace of its own.
pub(super) const INTERFACE: &str = "tap0";
/// Prefix length of the interface's subnet.
pub(super) const PREFIX: u8 = 24;

/// The kernel's side of a run: a namespace, and a thread with the far ends of all connections.
pub(super) struct Site {
    /// Where the interface and the kernel's sockets are.
    pub namespace: Arc<Namespace>,
    /// What the kernel's sockets send and expect.
    pub job: Job,
}

/// What the near end is given to reach the far one.
pub(super) struct Gate {
    namespace: Arc<Namespace>,
    open: mpsc::SyncSender<()>,
    near: Near,
}

/// The kernel's listeners, once they are there.
pub(super) struct Kernel {
    near: Near,
    listening: Vec<SocketAddrV4>,
}

impl Site {
    /// Makes the namespace.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new() -> Result<Site, Error> {
        Ok(Site {
            namespace: Arc::new(veth::aside(Namespace::enter_new)?),
            job: Job::new(false)?,
        })
    }

    /// The far end of so many connections, and what the near end is to be given.
    pub(super) fn far(
        &self,
        settings: &Settings,
        roles: Roles,
        connections: usize,
        deadline: Option<Instant>,
    ) -> (Gate, Worker) {
        let (near, far) = sockets::sides(vec![0; connections], 1);
        let (open, opened) = mpsc::sync_channel::<()>(1);
        let worksite = Worksite {
            namespace: Some(self.namespace.clone()),
            options: sockets::Options::of(settings),
            deadline,
        };
        let make = move |control: &Control| match opened.recv() {
            Ok(()) => far.establish(&worksite, control),
            Err(_) => Err(give_up(control)),
        };
        let gate = Gate {
            namespace: self.namespace.clone(),
            open,
            near,
        };
        (gate, self.job.worker(roles, None, make))
    }
}

impl Gate {
    /// Moves the calling thread, with a descriptor table of its own, to where the interface is to
    /// be made.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn enter(&self) -> Result<(), Error> {
        sockets::enter(Some(&self.namespace))
    }

    /// Gives the interface, which is there by now, its address on the kernel's side. The calling
    /// thread has entered.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn interface_is_there(&self) -> Result<(), Error> {
        ours::kernel::kernel_side(INTERFACE, (Family::Ipv4, 0), false)
    }

    /// Has the kernel listen, now that it has its address.
    ///
    /// # Errors
    /// What the system says, or that the other end gave up.
    pub(super) fn open(self, control: &Control) -> Result<Kernel, Error> {
        let gone = |_| give_up(control);
        self.open.send(()).map_err(gone)?;
        let listening = self.near.listening.recv();
        let listening = listening.map_err(|_| give_up(control))?;
        let ipv4 = |at: SocketAddr| match at {
            SocketAddr::V4(at) => Ok(at),
            SocketAddr::V6(at) => Err(Error::Run(format!("{at}: other stacks have IPv4 only"))),
        };
        Ok(Kernel {
            listening: listening.into_iter().map(ipv4).collect::<Result<_, _>>()?,
            near: self.near,
        })
    }
}

impl Kernel {
    /// Where the `k`-th connection goes.
    pub(super) fn address(&self, k: usize) -> SocketAddrV4 {
        self.listening[self.near.listener(k, 0)]
    }

    /// The `k`-th connection is established.
    ///
    /// # Errors
    /// That the other end gave up.
    pub(super) fn connected(&self, k: usize, control: &Control) -> Result<(), Error> {
        let listener = self.near.listener(k, 0);
        let told = self.near.connected.send(listener);
        told.map_err(|_| give_up(control))
    }
}
