//! UDP (RFC 768; RFC 1122, section 4.1): sockets and who gets a datagram.
//!
//! A socket lives in one perimeter, in a table there ([`Table`]). Which one a datagram is for is
//! found before any perimeter is entered, in what all threads share ([`Ports`]): so a datagram goes
//! to its socket's perimeter and nowhere else.

mod departing;
mod path;
mod ports;
mod send;
mod setting;
mod socket;
mod table;

pub use departing::Departing;
pub use path::{Outgoing, Payload, Sent};
pub use ports::{Bound, Claim, Ports, Target};
pub use setting::{UdpConfig, UdpSetting};
pub use socket::{Addressed, Rx, Socket, UdpInfo};
pub use table::Table;

use perimeter_tcp::TcpError;

/// Why a call on a socket did not succeed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UdpError {
    /// Nothing can be done now; wait for readiness.
    WouldBlock,
    /// The socket has gone.
    Closed,
    /// There is no peer to send to.
    NotConnected,
    /// The network says so, of a datagram that was sent before, or of the route.
    Failed(TcpError),
    /// The datagram is longer than can be sent.
    TooLong,
    /// It would go to all stations, which the socket has not said that it wants.
    Permission,
    /// An address of another family, a port 0, or a segment size that can't be.
    Invalid,
    /// There is no interface of that number.
    NoInterface,
    /// The local address is not ours.
    NotOurs,
    /// Address and port are in use.
    InUse,
    /// The stack's memory is used up.
    NoMemory,
}
