//! Prints the organizations that `cargo xtask packetdrill` runs scripts under, a line each: those of
//! the suites.

fn main() {
    for org in perimeter_org::OrgSpec::tested() {
        println!("{org}");
    }
}
