//! Devices: what carries frames between a stack and something else.

pub mod device;

pub use device::{Capabilities, Device, Medium, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
