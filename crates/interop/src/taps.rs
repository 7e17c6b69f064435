//! A stack over TAP, with the kernel of the calling thread's namespace at the other end.

use perimeter::link::Device;
use perimeter::link::tap::{Tap, TapConfig, TapError, host};
use perimeter::{Config, OrgSpec, Stack};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// The stack's address.
pub const STACK: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The kernel's address.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The interface's name.
pub const NAME: &str = "perimeter0";

/// A port of the stack.
pub fn stack_at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(STACK), port)
}

/// A port of the kernel.
pub fn kernel_at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(KERNEL), port)
}

/// Opens the TAP interface and gives the kernel its side.
///
/// # Errors
/// As [`Tap::open`].
///
/// # Panics
/// The kernel's side can't be configured though the interface was opened.
pub fn open(config: &TapConfig) -> Result<Tap, TapError> {
    let tap = open_patiently(config)?;
    host::set_address(tap.name(), KERNEL, 24).expect("an address");
    host::set_up(tap.name(), true).expect("up");
    Ok(tap)
}

/// Opens an interface that this process has just let go of. Another test that starts a program
/// meanwhile keeps it in use for a moment: the child holds all descriptors until it executes.
///
/// # Errors
/// As [`Tap::open`]; it is in use for 10 s.
pub fn open_patiently(config: &TapConfig) -> Result<Tap, TapError> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match Tap::open(config) {
            Err(TapError::Busy(_)) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// A stack of that organization over `device`.
///
/// # Panics
/// It can't be built.
pub fn stack_on(org: &OrgSpec, device: impl Device + 'static) -> Stack {
    stack_with(org, Config::default(), device)
}

/// The same, with these settings.
///
/// # Panics
/// It can't be built.
pub fn stack_with(org: &OrgSpec, config: Config, device: impl Device + 'static) -> Stack {
    let b = Stack::builder().org(org.clone()).config(config);
    let b = b
        .interface(device, &[&format!("{STACK}/24")])
        .expect("an interface");
    b.build().expect("a stack")
}

/// A stack of that organization over TAP.
///
/// # Panics
/// It can't be had.
pub fn stack(org: &OrgSpec) -> Stack {
    stack_on(
        org,
        open(&TapConfig::new(NAME)).unwrap_or_else(|e| panic!("{e}")),
    )
}
