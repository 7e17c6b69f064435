//! The example of an organization from outside: it moves what it says.

#[path = "../examples/tiny_org.rs"]
mod tiny_org;

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{BuildError, Native, OrgSpec, Stack};

#[test]
fn it_moves_bytes_there_and_back() {
    // A burst takes the lock once, so there are far fewer than segments.
    let taken = tiny_org::transfer(300_000).unwrap();
    assert!(taken > 20, "the lock was taken {taken} times");
}

#[test]
fn it_is_built_as_a_type_only() {
    let native = Native::default();
    let ([a, _b], _) = pair(&native, WireConfig::default());
    let builder = Stack::builder()
        .on_native(native)
        .org(OrgSpec::outside("big-lock"));
    let refused = builder.interface(a, &["10.0.0.1/24"]).unwrap().build();
    assert!(matches!(refused, Err(BuildError::Missing(why)) if why.contains("build_as")));
}
