//! TCP.

mod listener;
mod owned;
mod socket;
mod split;
mod stream;

pub use listener::TcpListener;
pub use owned::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use socket::TcpSocket;
pub use split::{ReadHalf, WriteHalf};
pub use stream::TcpStream;
