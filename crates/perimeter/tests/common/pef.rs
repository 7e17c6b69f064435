//! Organizations and events of the Packet Event Framework.

use perimeter::Stack;
use perimeter::link::wire::{WireConfig, pair};
use perimeter::pef::{Direction, EventSpec, Layer, PacketEvent, Under};
use perimeter_sync::Native;
use std::sync::Arc;

/// Every assignment of layers, and of finer events, that is tested.
pub const NAMES: [&str; 6] = [
    "pef:random",
    "pef:vertical",
    "pef:horizontal",
    "pef:ip=0:tcp=1:sockfs=0",
    "pef:vertical:events=fine",
    "pef:horizontal:events=fine",
];

/// A stack of the organization `name` at 10.0.0.1, and its peer at 10.0.0.2, on threads of the
/// machine.
pub fn stacks(name: &str) -> [Stack; 2] {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let stack = |org: &str, end, addr: &str| {
        let b = Stack::builder().on_native(native);
        let b = b.organization(org).unwrap();
        b.interface(end, &[addr]).unwrap().build().unwrap()
    };
    [
        stack(name, a, "10.0.0.1/24"),
        stack("up:shared", b, "10.0.0.2/24"),
    ]
}

/// An event of that name and place.
pub fn event(
    name: &str,
    (direction, layer, under): (Direction, Layer, Under),
    event: impl PacketEvent,
) -> EventSpec {
    EventSpec {
        name: name.to_string(),
        direction,
        layer,
        under,
        event: Arc::new(event),
    }
}
