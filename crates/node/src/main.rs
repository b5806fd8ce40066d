//! The `punctual` binary: the handlers of this cluster behind the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    punctual_node::cli::main(punctual_handlers::registry())
}
