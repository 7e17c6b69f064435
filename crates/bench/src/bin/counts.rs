//! Runs one path, for callgrind to count: `counts <path> <steps>`. Everything that is to be
//! counted happens inside `measured`. Without arguments it lists the paths. Prints the units
//! done as a number.
#![forbid(unsafe_code)]

use perimeter_bench::paths::{Path, Visitor, all};
use std::process::ExitCode;

/// Steps before the first that is counted: buffers and tables have their sizes then.
const WARM: usize = 32;

/// A step, under a name that callgrind is told.
#[inline(never)]
fn measured<P: Path>(path: &mut P) {
    path.step();
}

fn run<P: Path>(steps: u64) -> u64 {
    let mut path = P::new();
    for _ in 0..WARM {
        path.prepare();
        path.step();
    }
    let mut units = 0;
    for _ in 0..steps {
        path.prepare();
        measured(&mut path);
        units += path.units();
    }
    units
}

struct Chosen {
    name: String,
    steps: u64,
    units: Option<u64>,
}

impl Visitor for Chosen {
    fn visit<P: Path>(&mut self) {
        if P::NAME == self.name {
            self.units = Some(run::<P>(self.steps));
        }
    }
}

struct List;

impl Visitor for List {
    fn visit<P: Path>(&mut self) {
        println!("{}\t{}", P::NAME, P::UNIT);
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(name) = args.next() else {
        all(&mut List);
        return ExitCode::SUCCESS;
    };
    let steps = args.next().and_then(|s| s.parse().ok()).unwrap_or(64);
    let mut chosen = Chosen {
        name,
        steps,
        units: None,
    };
    all(&mut chosen);
    match chosen.units {
        Some(n) if n > 0 => {
            println!("{n}");
            ExitCode::SUCCESS
        }
        Some(_) => {
            eprintln!("error: path `{}` did nothing", chosen.name);
            ExitCode::FAILURE
        }
        None => {
            eprintln!("error: there is no path `{}`", chosen.name);
            ExitCode::from(2)
        }
    }
}
