//! Which squeue each layer of a connection runs under.

use super::event::{Layer, Under};
use super::spec::Arrangement;
use perimeter_tcp::Layers;

/// The squeues of a connection's layers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    squeues: [u16; 3],
    /// How many squeues there are.
    n: u16,
}

impl Bind {
    /// The connection's TCP state is with squeue `tcp`, of `n`.
    pub(crate) fn new(arrangement: Arrangement, tcp: u16, n: u16) -> Bind {
        let squeues = match arrangement {
            Arrangement::Random | Arrangement::Vertical => [tcp; 3],
            Arrangement::Horizontal => [(tcp + 1) % n, tcp, (tcp + 2) % n],
            Arrangement::At { ip, sockfs, .. } => [ip % n, tcp, sockfs % n],
        };
        Bind { squeues, n }
    }

    /// The same with the squeues that IP and the socket layer were given; TCP's is where the
    /// connection is.
    pub(crate) fn told(self, layers: Layers) -> Bind {
        let mut bind = self;
        for (layer, squeue) in [(Layer::Ip, layers.ip), (Layer::Sockfs, layers.sockfs)] {
            if let Some(squeue) = squeue {
                bind = bind.with(layer, squeue);
            }
        }
        bind
    }

    /// All layers under squeue `tcp`, of `n`.
    pub(crate) fn whole(tcp: u16, n: u16) -> Bind {
        let squeues = [tcp; 3];
        Bind { squeues, n }
    }

    /// All layers under squeue `tcp`, of as many as there are here.
    pub(crate) fn whole_at(self, tcp: u16) -> Bind {
        Bind::whole(tcp, self.n)
    }

    /// The squeue of a layer.
    #[inline]
    pub(crate) fn of(self, layer: Layer) -> u16 {
        self.squeues[layer as usize]
    }

    /// The squeue of an event on `layer`; `None`: outside any.
    #[inline]
    pub(crate) fn under(self, layer: Layer, under: Under) -> Option<u16> {
        match under {
            Under::Layer => Some(self.of(layer)),
            Under::Squeue(q) => Some(q % self.n),
            Under::Nothing => None,
        }
    }

    /// One squeue for all.
    #[inline]
    pub(crate) fn is_whole(self) -> bool {
        let [ip, tcp, sockfs] = self.squeues;
        ip == tcp && tcp == sockfs
    }

    /// The same with another squeue for a layer.
    pub(crate) fn with(mut self, layer: Layer, squeue: u16) -> Bind {
        self.squeues[layer as usize] = squeue % self.n;
        self
    }
}
