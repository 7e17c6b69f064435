//! Organizations and events of the Packet Event Framework.

use perimeter::pef::{Direction, EventSpec, Layer, PacketEvent, Under};
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
