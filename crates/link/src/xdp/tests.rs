use super::*;

fn refused(config: &XdpConfig) -> XdpError {
    Xdp::open(config).expect_err("refused")
}

#[test]
fn bad_requests_are_named() {
    for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "..", "a\0b"] {
        let e = refused(&XdpConfig::new(name));
        assert!(matches!(e, XdpError::BadName(_)), "{name:?}: {e}");
    }
    let config = XdpConfig::new("x0");
    for mac in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED] {
        let mac = Some(mac);
        let config = XdpConfig {
            mac,
            ..config.clone()
        };
        assert!(matches!(refused(&config), XdpError::BadMac(_)));
    }
    for ring in [0, 32, 100, 65_536] {
        let config = XdpConfig {
            ring,
            ..config.clone()
        };
        assert!(matches!(refused(&config), XdpError::BadRing(n) if n == ring));
    }
    let e = refused(&XdpConfig::new("no-such-one"));
    assert!(matches!(e, XdpError::NoInterface(_)), "{e}");
}

#[test]
fn frames_fit_their_memory() {
    let frame = |mtu| frame_for("x0", mtu);
    assert_eq!(frame(1500).expect("fits"), 2048);
    assert_eq!(frame(1774).expect("fits"), 2048);
    assert_eq!(frame(1775).expect("fits"), 4096);
    assert_eq!(frame(3822).expect("fits"), 4096);
    let e = frame(9000).expect_err("longer than a page");
    assert!(e.to_string().contains("3822"), "{e}");
}
