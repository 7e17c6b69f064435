//! `perimeter completions` and `perimeter man`: what shells and `man` know of the command.

use crate::{args::Cli, print};
use clap::CommandFactory as _;
use clap_complete::Shell;
use perimeter_measure::Error;
use std::path::Path;

pub const COMPLETIONS_HELP: &str = "\
Examples:
  perimeter completions bash > ~/.local/share/bash-completion/completions/perimeter
  perimeter completions zsh > \"${fpath[1]}/_perimeter\"
  perimeter completions fish > ~/.config/fish/completions/perimeter.fish";

pub const MAN_HELP: &str = "\
Examples:
  mkdir -p ~/.local/share/man/man1 && perimeter man ~/.local/share/man/man1
  man perimeter-bench";

/// Prints what a shell completes by.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "perimeter", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Writes a page for each command into a directory.
pub fn man(directory: &Path) -> Result<(), Error> {
    if !directory.is_dir() {
        let line = format!("{}: no such directory", directory.display());
        return Err(Error::Input(line));
    }
    clap_mangen::generate_to(Cli::command(), directory).map_err(|source| Error::Io {
        context: format!("writing to {}", directory.display()),
        source,
    })
}
