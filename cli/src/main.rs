//! The `mmzap` command: measures how fast huge memory is given back, and says
//! what this kernel and this sandbox allow.

mod bench;
mod cpu_time;
mod doctor;
mod frames;
mod machine;
mod memory;
mod memory_group;
mod output;
mod restore;
mod size;
mod smaps;
mod sys;
mod thp;
mod unavailable;
mod zram;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "mmzap",
    version,
    about = "Gives huge amounts of memory back to the kernel quickly, and measures it"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how fast memory is given back, against what a program does without mmzap
    Bench(bench::Args),
    /// Say what this kernel and this sandbox allow, and what mmzap does instead
    Doctor(doctor::Args),
    /// A process that a bench scenario measures; started by the bench itself
    #[command(name = bench::child::COMMAND, hide = true)]
    Child(bench::child::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Child(args) => bench::child::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Ends the program the way a wrong command line does: the reason and the usage
/// of `command` on stderr, exit status 2.
fn usage_error(command: &str, message: &str) -> ! {
    use clap::CommandFactory;
    let mut root = Cli::command();
    root.build();
    let error = match root.find_subcommand_mut(command) {
        Some(command) => command.error(clap::error::ErrorKind::ArgumentConflict, message),
        None => root.error(clap::error::ErrorKind::ArgumentConflict, message),
    };
    error.exit()
}
