//! Addresses as std has them, and as the stack does: it tells link-local addresses of two links
//! apart by a zone within the address, std by a scope id beside it; and addresses of IPv4 that are
//! written as ones of IPv6 are IPv4's.

use perimeter_org::engine::Engine;
use perimeter_wire::FlowKey;
use perimeter_wire::ipv6::{is_link_local, with_zone, without_zone, zone};
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The address as the stack has it.
///
/// # Errors
/// `InvalidInput`: the scope id of a link-local address names no interface.
pub(crate) fn inward(engine: &dyn Engine, addr: SocketAddr) -> Result<SocketAddr> {
    let SocketAddr::V6(v6) = addr else {
        return Ok(addr);
    };
    let ip = v6.ip().to_canonical();
    let IpAddr::V6(ip) = ip else {
        return Ok(SocketAddr::new(ip, v6.port()));
    };
    if !is_link_local(ip) {
        return Ok(SocketAddr::new(IpAddr::V6(ip), v6.port()));
    }
    let ifaces = engine.addrs().len();
    let scope = match v6.scope_id() {
        0 if ifaces == 1 => 1,
        id => id,
    };
    let named = u16::try_from(scope)
        .ok()
        .filter(|n| (1..=ifaces).contains(&usize::from(*n)));
    let Some(zone) = named else {
        let what = format!(
            "{addr}: a link-local address needs the number of its interface as scope id, 1 to \
             {ifaces}, as in [fe80::1%1]:80"
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    };
    Ok(SocketAddr::new(IpAddr::V6(with_zone(ip, zone)), v6.port()))
}

/// The number of the interface of that name, if one is given.
///
/// # Errors
/// `NotFound`: there is none.
pub(crate) fn interface(engine: &dyn Engine, name: Option<&str>) -> Result<Option<u16>> {
    let Some(name) = name else { return Ok(None) };
    let all = engine.interfaces();
    if let Some(n) = all.iter().position(|i| i == name) {
        return Ok(Some(n as u16));
    }
    let all = all.join(", ");
    let what = format!("this stack has no interface `{name}`; it has {all}");
    Err(Error::new(ErrorKind::NotFound, what))
}

/// The name of the interface of that number, if one is given.
pub(crate) fn name(engine: &dyn Engine, interface: Option<u16>) -> Option<String> {
    engine.interfaces().into_iter().nth(interface?.into())
}

/// The address as std has it.
pub(crate) fn outward(ip: IpAddr, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if is_link_local(ip) => {
            SocketAddrV6::new(without_zone(ip), port, 0, zone(ip).into()).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

/// Our end of a flow.
pub(crate) fn local(key: &FlowKey) -> SocketAddr {
    outward(key.local, key.local_port)
}

/// The peer's end of a flow.
pub(crate) fn remote(key: &FlowKey) -> SocketAddr {
    outward(key.remote, key.remote_port)
}
