//! TCP.

mod listener;
mod owned;
mod split;
mod stream;

pub use listener::TcpListener;
pub use owned::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use split::{ReadHalf, WriteHalf};
pub use stream::TcpStream;
