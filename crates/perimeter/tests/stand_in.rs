//! A stack of one thread whose thread has ended before it.

mod common;

use common::{content, organizations};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Config, Native, Stack};
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc;
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(1);
const MUCH: usize = 200_000;

#[test]
fn the_thread_of_a_stack_of_one_may_end_before_it() {
    for org in organizations().into_iter().filter(|o| o.single_threaded()) {
        let native = Native::default();
        let ([a, b], _) = pair(&native, WireConfig::default());
        let mut config = Config::default();
        // The peer takes little before it reads, and all that is written waits here.
        config.tcp.rcv_buf = 20_000;
        config.tcp.snd_buf = 1 << 20;
        let peer = Stack::builder().on_native(native).config(config.clone());
        let peer = peer.interface(b, &["10.0.0.2/24"]).unwrap();
        let peer = peer.build().unwrap();
        let l = peer.listen("10.0.0.2:80").unwrap();
        let (go, wait) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let (theirs, _) = l.accept().unwrap();
            wait.recv().unwrap();
            let mut all = Vec::new();
            (&theirs).read_to_end(&mut all).map(|_| all.len())
        });
        let name = org.to_string();
        let owner = std::thread::spawn(move || {
            let s = Stack::builder().on_native(native).org(org).config(config);
            let s = s.interface(a, &["10.0.0.1/24"]).unwrap().build().unwrap();
            let c = s.connect("10.0.0.2:80").unwrap();
            (&c).write_all(&content(MUCH)).unwrap();
            (s, c)
        });
        let (s, c) = owner.join().unwrap();
        // Who comes now is not taken for the thread that has ended, whatever it does.
        let newcomer = std::thread::scope(|threads| {
            let s = &s;
            let refused = move || s.connect("10.0.0.2:80").map(drop).map_err(|e| e.kind());
            threads.spawn(refused).join().unwrap()
        });
        assert_eq!(newcomer, Err(ErrorKind::Unsupported), "{name}");
        let others = [(); 4].map(|()| {
            let peer = peer.clone();
            std::thread::spawn(move || peer.connect_timeout(([10, 0, 0, 9], 1).into(), SHORT))
        });
        go.send(()).unwrap();
        drop((s, c));
        let got = reader.join().unwrap().map_err(|e| e.kind());
        assert_eq!(got, Ok(MUCH), "{name}");
        for t in others {
            assert!(t.join().unwrap().is_err(), "{name}: nobody is there");
        }
        // There is nobody at the other end any more.
        peer.stop();
    }
}
